"""Run by a test in a process of its own: kills children at every point, and checks what is left."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from suffix_files import CAP, SHA, allowed, document, documents_of, opened, script, states

from cache import suffix_log, suffix_open
from cache.host import OsFiles
from cache.suffix_format import head, record
from cache.suffix_log import NAME, PARTIAL, SuffixLog
from cache.suffix_open import open_log
from cache.types import Refusal
from sim.kill_files import KillFiles


def prepared(root: Path, scenario: str) -> None:
    """An empty place, or a store without a tokenizer whose last document is torn."""
    shutil.rmtree(root, ignore_errors=True)
    if scenario == "torn":
        files = OsFiles(root)
        handle = files.create(NAME)
        files.write(handle, 0, head(None) + record(document(90)) + record(document(91))[:-7])
        files.close(handle)


def child(root: Path, at: int, pipe: int) -> None:
    """Run the script and say of every acknowledged document so; ends with a kill, or with 0."""
    files = KillFiles(OsFiles(root), at)
    script(files, lambda number: _said(pipe, number))
    os._exit(0)


def _said(pipe: int, number: int) -> None:
    os.write(pipe, bytes([number]))


def killed(root: Path, at: int) -> tuple[int, bool]:
    """(documents that a child had acknowledged, whether it was killed)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        child(root, at, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        acknowledged = len(pipe.read())
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return acknowledged, os.WIFSIGNALED(status)


def wrong(root: Path, acknowledged: int, kept: list[list[list[int]]]) -> str:
    """What is not as it must be in what a killed process left."""
    found = open_log(OsFiles(root), SHA, CAP)
    if isinstance(found, Refusal):
        return found.why
    documents = documents_of(found.text)
    if documents not in allowed(acknowledged, kept):
        return f"{len(documents)} documents after {acknowledged} acknowledged"
    if (root / PARTIAL).exists():
        return "a partial file is left"
    if (root / NAME).stat().st_size != found.log.end:
        return "the file goes on after its last document"
    if found.damaged or (root / NAME).stat().st_mode & 0o777 != 0o600:
        return "damage, or a mode that others can read"
    found.log.close()
    bytes_before = (root / NAME).read_bytes()
    opened(OsFiles(root)).log.close()
    return "" if (root / NAME).read_bytes() == bytes_before else "opening again changed it"


def plant(fault: str) -> None:
    """Break the program: cut no torn tail, leave partial files, or write the log anew in place."""
    if fault == "torn kept":
        whole = SuffixLog.rewrite
        SuffixLog.rewrite = lambda log, first, *, owed=False: owed or whole(log, first)
    elif fault == "partial kept":
        suffix_open.PARTIAL = "suffix.other"
    elif fault == "in place":
        suffix_log.PARTIAL = NAME


def main() -> None:
    """Every point of both scenarios; prints counts and the first wrong states."""
    root, counts, failures = Path(sys.argv[1]), dict[str, int](), list[str]()
    fault = sys.argv[2] if len(sys.argv) > 2 else ""
    plant(fault)
    for scenario in ("empty", "torn"):
        prepared(root, scenario)
        kept = states(OsFiles(root))
        at, alive = 0, False
        while not alive and not (failures and fault):
            prepared(root, scenario)
            acknowledged, dead = killed(root, at)
            if why := wrong(root, acknowledged, kept):
                failures.append(f"{scenario}: killed at {at}: {why}")
            alive, at = not dead, at + 1
        counts[scenario] = at - 1
    print(json.dumps({"kills": counts, "failures": failures[:5], "failed": len(failures)}))


if __name__ == "__main__":
    main()
