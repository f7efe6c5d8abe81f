"""The suffix store's file: what is whole comes back, what is not is never taken for tokens.

Method: a file truncated at every byte and with every byte flipped; a script of opens, appends and a
trim with every call failing once and for ever, with power cut before every call, and killed at
every point in a process of its own. Faults planted in the program or the drive must be seen.
Covers cache.suffix_format, cache.suffix_open and sim.kill_files.
"""

import errno
import itertools
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from suffix_files import (
    CAP,
    OTHER,
    SHA,
    Faulty,
    PowerFiles,
    allowed,
    cuts,
    document,
    documents_of,
    held,
    opened,
    script,
    states,
)

from cache import suffix_format
from cache.host import OsFiles
from cache.suffix_format import HEAD_BYTES, HEADER_BYTES, Document, head, parse, record, text_of
from cache.suffix_log import LOCK, NAME, PARTIAL
from cache.suffix_open import open_log
from cache.types import Refusal
from sim.kill_files import KillFiles

SMALL = [document(n)[:size] for n, size in ((1, 5), (2, 1), (3, 7))]
TESTS = Path(__file__).parent
WITHOUT_TORCH = "import sys, types; sys.modules['torch'] = types.ModuleType('torch')\n"
WITHOUT_TORCH += "import kill_suffix; kill_suffix.main()"
"""Forking is quick as long as a process is small, and the store needs torch by name alone."""


def put(root: Path, data: bytes) -> OsFiles:
    files = OsFiles(root)
    (root / NAME).write_bytes(data)
    return files


def lists(documents: list[np.ndarray]) -> list[list[int]]:
    return [d.tolist() for d in documents]


def test_what_was_added_comes_back_in_private_files(tmp_path: Path) -> None:
    root = tmp_path / "store"
    log = opened(OsFiles(root)).log
    assert log.append(SMALL[:2]) == (True, ()) and log.append(SMALL[2:]) == (True, ())
    log.close()
    assert held(OsFiles(root)) == lists(SMALL)
    assert root.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in root.iterdir())
    assert b"".join(map(record, SMALL)) in (root / NAME).read_bytes()


def test_the_oldest_half_is_forgotten_at_a_document(tmp_path: Path) -> None:
    log = opened(OsFiles(tmp_path)).log
    forgotten = []
    for number in range(30):
        written, gone = log.append([document(number)])
        forgotten += [number] * bool(gone)
        assert written and log.end <= CAP
        assert log.documents[0].at == HEADER_BYTES
        if gone:
            assert log.end <= CAP // 2
    assert len(forgotten) > 2
    kept = held(OsFiles(tmp_path))
    assert kept == [document(n).tolist() for n in range(30 - len(kept), 30)]


def test_another_tokenizer_is_refused_and_an_old_store_gets_its_own(tmp_path: Path) -> None:
    files = put(tmp_path, head(None) + record(SMALL[0]))
    assert held(files) == lists(SMALL[:1])
    assert (tmp_path / NAME).read_bytes()[:HEADER_BYTES] == head(None), "read only writes nothing"
    opened(files, SHA).log.close()
    assert (tmp_path / NAME).read_bytes() == head(SHA) + record(SMALL[0])
    for readonly in (False, True):
        for sha in (OTHER, None):
            refused = open_log(files, sha, CAP, readonly=readonly)
            assert isinstance(refused, Refusal) and "tokenizer" in refused.why
    assert not isinstance(open_log(files, SHA, CAP), Refusal), "a refusal gives the lock back"


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "no suffix store"),
        (b"some text", "no suffix store"),
        (head(SHA)[:-1], "no suffix store"),
        (head(SHA)[:16] + (2).to_bytes(4, "big") + head(SHA)[20:], "version 2 is newer"),
        (head(SHA)[:30] + b"?" + head(SHA)[31:], "damaged"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, data: bytes, word: str) -> None:
    files = put(tmp_path, data)
    refused = open_log(files, SHA, CAP)
    assert isinstance(refused, Refusal) and refused.name == NAME and word in refused.why
    assert (tmp_path / NAME).read_bytes() == data


def test_a_second_writer_is_refused_and_a_reader_is_not(tmp_path: Path) -> None:
    first = opened(OsFiles(tmp_path)).log
    second = open_log(OsFiles(tmp_path), SHA, CAP)
    assert isinstance(second, Refusal) and second.name == LOCK
    assert held(OsFiles(tmp_path)) == []
    first.close()
    opened(OsFiles(tmp_path)).log.close()


def test_reading_makes_nothing(tmp_path: Path) -> None:
    refused = open_log(OsFiles(tmp_path / "none", readonly=True), SHA, CAP, readonly=True)
    assert isinstance(refused, Refusal) and not (tmp_path / "none").exists()
    torn = head(SHA) + record(SMALL[0]) + record(SMALL[1])[:-1]
    put(tmp_path, torn)
    found = opened(OsFiles(tmp_path, readonly=True), readonly=True)
    assert found.torn_bytes and documents_of(found.text) == lists(SMALL[:1])
    assert found.log.append(SMALL[:1]) == (False, ())
    assert (tmp_path / NAME).read_bytes() == torn and os.listdir(tmp_path) == [NAME]


def test_a_torn_tail_is_cut_at_every_length(tmp_path: Path) -> None:
    data = head(SHA) + b"".join(map(record, SMALL))
    ends = list(itertools.accumulate([HEADER_BYTES, *(len(record(d)) for d in SMALL)]))
    for size in range(HEADER_BYTES, len(data)):
        files = put(tmp_path, data[:size])
        whole = max(count for count, end in enumerate(ends) if end <= size)
        log = opened(files).log
        assert (tmp_path / NAME).read_bytes() == data[: ends[whole]]
        assert log.append([document(9)])[0]
        log.close()
        assert held(files) == [*lists(SMALL[:whole]), document(9).tolist()]


def flips(data: bytes) -> int:
    """How many single bits, flipped, give documents that nobody wrote, or lose another's."""
    whole, wrong = lists(SMALL), 0
    for at, bit in itertools.product(range(len(data)), (0, 7)):
        bad = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        if suffix_format.refusal(bad, SHA):
            continue
        found = documents_of(text_of(bad, parse(bad)))
        wrong += any(d not in whole for d in found) or len(found) < len(whole) - 1
    return wrong


def test_no_flipped_bit_gives_a_wrong_token_or_costs_a_second_document() -> None:
    data = head(SHA) + b"".join(map(record, SMALL))
    assert flips(data) == 0
    middle = bytearray(data)
    middle[HEADER_BYTES + 20] ^= 4
    found = parse(bytes(middle))
    assert found.damaged == 1 and len(found.documents) == 2 and not found.torn_bytes


def test_canary_a_checksum_that_nobody_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(data: bytes, at: int) -> Document | None:
        if at + 16 > len(data) or data[at : at + 4] != b"\xffdoc":
            return None
        found = Document(at, int.from_bytes(data[at + 4 : at + 8], "big"))
        return found if found.tokens and found.stop <= len(data) else None

    monkeypatch.setattr(suffix_format, "_document", trusting)
    assert flips(head(SHA) + b"".join(map(record, SMALL))) > 20


def test_damage_in_the_middle_is_cut_once(tmp_path: Path) -> None:
    data = bytearray(head(SHA) + b"".join(map(record, SMALL)))
    data[HEADER_BYTES + 20] ^= 1
    files = put(tmp_path, bytes(data))
    assert opened(files, readonly=True).damaged == 1
    first = opened(files)
    first.log.close()
    assert first.damaged == 1 and documents_of(first.text) == lists(SMALL[1:])
    assert opened(files).damaged == 0


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("for_ever", [False, True])
def test_a_call_that_fails_costs_documents_and_nothing_else(
    tmp_path: Path, number: int, for_ever: bool
) -> None:
    """Never an exception, never a wrong token, no handle left open, no partial file at the end."""
    root = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    for at in range(80):
        place = root / f"moorage-test-{os.getpid()}"
        files = Faulty(OsFiles(place), at, number, for_ever=for_ever)
        acknowledged: list[int] = []
        try:
            script_or_refused(files, acknowledged)
            assert not files.open_handles
            log = opened(OsFiles(place))
            documents = documents_of(log.text)
            log.log.close()
            numbers = [d[0] // 1_000 for d in documents]
            assert documents == [document(n).tolist() for n in numbers]
            assert numbers == sorted(set(numbers))
            newest = acknowledged[-3:]
            assert [n for n in newest if n in numbers] == newest, (at, newest, numbers)
            assert not (place / PARTIAL).exists()
        finally:
            for path in place.iterdir():
                path.unlink()
            place.rmdir()
    assert files.calls < at, "every call of the script was tried"


def script_or_refused(files: Faulty, acknowledged: list[int]) -> None:
    """The script, as far as opening goes."""
    for numbers in (range(14), range(14, 15)):
        found = open_log(files, SHA, CAP)
        if isinstance(found, Refusal):
            continue
        for number in numbers:
            if found.log.append([document(number)])[0]:
                acknowledged.append(number)
        found.log.close()


def lost(deaf: str, *, names_at_once: bool) -> tuple[int, int]:
    """(power cuts, those after which an acknowledged document is missing or one is wrong)."""
    kept, wrong, count = states(PowerFiles()), 0, 0
    for _, files, acknowledged in cuts(deaf):
        again = files.after(names_at_once=names_at_once)
        found = open_log(again, SHA, CAP)  # type: ignore[arg-type]
        documents = None if isinstance(found, Refusal) else documents_of(found.text)
        wrong += documents not in allowed(acknowledged, kept)
        count += 1
    return count, wrong


@pytest.mark.parametrize("names_at_once", [False, True])
def test_power_may_go_before_every_call(names_at_once: bool) -> None:
    count, wrong = lost("", names_at_once=names_at_once)
    print(f"{count} power cuts")
    assert count > 50 and wrong == 0


@pytest.mark.parametrize(
    ("deaf", "names_at_once"), [("new", True), ("new", False), ("log", False), ("dir", False)]
)
def test_canary_a_sync_that_does_nothing(deaf: str, names_at_once: bool) -> None:
    """No fsync before the rename; none of a document; none of the directory."""
    assert lost(deaf, names_at_once=names_at_once)[1] > 0


def kill_sweep(tmp_path: Path, fault: str = "") -> dict[str, object]:
    shared = os.access("/dev/shm", os.W_OK)
    root = f"/dev/shm/moorage-kill-{os.getpid()}" if shared else str(tmp_path / "kill")
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, root, fault],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    counts: dict[str, object] = json.loads(run.stdout)
    print(fault or "as it is", counts)
    return counts


def test_a_process_may_be_killed_at_every_point(tmp_path: Path) -> None:
    counts = kill_sweep(tmp_path)
    assert counts["failed"] == 0, counts
    assert sum(counts["kills"].values()) > 120  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", ["torn kept", "partial kept", "in place"])
def test_canary_killed_with_a_fault_in_the_program(tmp_path: Path, fault: str) -> None:
    assert kill_sweep(tmp_path, fault)["failed"] != 0


def test_kill_files_stop_at_their_point_and_inside_a_write(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def stop() -> None:
        raise Killed

    def points(at: int | None) -> int:
        files = KillFiles(OsFiles(tmp_path), at, stop)
        handle = files.create("x")
        files.write(handle, 0, b"abcd")
        files.close(handle)
        return files.points

    assert points(None) == 4
    for at, left in ((0, None), (1, b""), (2, b"ab"), (3, b"abcd")):
        (tmp_path / "x").unlink(missing_ok=True)
        with pytest.raises(Killed):
            points(at)
        assert ((tmp_path / "x").read_bytes() if (tmp_path / "x").exists() else None) == left


def test_the_script_forgets_and_its_states_say_so(tmp_path: Path) -> None:
    kept = states(OsFiles(tmp_path / "a"))
    assert len(kept) == 16 and any(len(a) > len(b) for a, b in itertools.pairwise(kept))
    said: list[int] = []
    script(OsFiles(tmp_path / "b"), said.append)
    assert said == list(range(15)) and held(OsFiles(tmp_path / "b")) == kept[-1]


def test_a_head_that_was_changed_is_no_document_whatever_its_body_sums_to() -> None:
    """One of three tokens that says two, with the sum of those two: only the head's sum tells."""
    whole = bytearray(record(np.array([7, 8, 9], np.int32)))
    body = bytes(whole[HEAD_BYTES : HEAD_BYTES + 8])
    whole[4:12] = struct.pack(">II", 2, zlib.crc32(body))
    assert parse(head(SHA) + bytes(whole)).documents == ()
    assert len(parse(head(SHA) + record(np.array([7, 8], np.int32))).documents) == 1
