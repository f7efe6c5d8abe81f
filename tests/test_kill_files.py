"""Files that kill their process: at every point of a save, before a call or half way in a write.

Method: an exception in place of the kill, over every kind of files; then real kills of forked
children on a real directory, in a process without torch, where forking is quick.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cache.direct import DirectFiles
from cache.host import OsFiles
from cache.ports import PAGE
from sim.files import SimFiles
from sim.kill_files import KillFiles

ROOT = Path(__file__).parent.parent


class Killed(BaseException):
    pass


def stop() -> None:
    raise Killed


def save(files: Any) -> None:
    """Three pages by a transfer and one by a write, then read, renamed and closed: 11 points."""
    data = files.buffer(3 * PAGE)
    data[:] = b"n" * len(data)
    handle = files.create("x.tmp")
    files.start_write(handle, 0, data).wait()
    files.write(handle, 3 * PAGE, data[: 2 * PAGE])
    files.fsync(handle)
    files.start_read(handle, 0, data).wait()
    files.close(handle)
    files.rename("x.tmp", "x")
    files.fsyncdir()


LEFT = [
    *([None] * 2),  # before buffer, create
    *(0, 1),  # before start_write, inside it
    *(3, 4),  # before write, inside it
    *([5] * 5),  # before fsync, start_read, close, rename, fsyncdir
]
"""Pages in the file at each point; None where there is no file."""


def kinds(tmp_path: Path) -> list[Callable[[str], Any]]:
    return [
        lambda name: OsFiles(tmp_path / f"os-{name}"),
        lambda name: DirectFiles(tmp_path / f"direct-{name}"),
        lambda name: SimFiles(),
    ]


def left(make: Callable[[str], Any], kill: type[KillFiles] = KillFiles) -> list[int | None]:
    """Pages in the file after a stop at each point."""
    whole = kill(make("whole"), None, stop)
    save(whole)
    found: list[int | None] = []
    for at in range(whole.points):
        inner = make(str(at))
        with pytest.raises(Killed):
            save(kill(inner, at, stop))
        names = inner.list()
        assert names in ([], ["x.tmp"] if at < whole.points - 1 else ["x"])
        found.append(inner.size(names[0]) // PAGE if names else None)
    return found


@pytest.mark.parametrize("kind", range(3))
def test_every_point_leaves_what_was_done_before_it(tmp_path: Path, kind: int) -> None:
    assert left(kinds(tmp_path)[kind]) == LEFT


def test_canary_files_that_never_stop_inside_a_write_are_seen() -> None:
    class Whole(KillFiles):
        def start_write(self, handle: int, offset: int, data: memoryview) -> Any:
            self._point()
            return self._inner.start_write(handle, offset, data)

    assert left(lambda name: SimFiles(), Whole) != LEFT


def test_a_write_that_is_no_whole_pages_is_halved_all_the_same(tmp_path: Path) -> None:
    inner = OsFiles(tmp_path)
    files = KillFiles(inner, 2, stop)
    handle = files.create("x")
    with pytest.raises(Killed):
        files.write(handle, 0, b"abcd")
    inner.close(handle)
    assert (tmp_path / "x").read_bytes() == b"ab"


KILLS = """
import json, os, signal, sys, types
sys.modules["torch"] = types.ModuleType("torch")
from pathlib import Path
from cache.direct import DirectFiles
from cache.ports import PAGE
from sim.kill_files import KillFiles

SAVE

left = []
for at in range(12):
    root = Path(sys.argv[1]) / str(at)
    pid = os.fork()
    if pid == 0:
        save(KillFiles(DirectFiles(root), at))
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    sizes = [path.stat().st_size // PAGE for path in root.iterdir()]
    left.append([killed, sizes[0] if sizes else None])
print(json.dumps(left))
"""


def test_a_process_is_killed_at_every_point(tmp_path: Path) -> None:
    source = Path(__file__).read_text()
    body = source[source.index("def save") : source.index("LEFT = ")]
    run = subprocess.run(
        [sys.executable, "-c", KILLS.replace("SAVE", body).replace(": Any", ""), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(run.stdout) == [*([True, pages] for pages in LEFT), [False, 5]]
