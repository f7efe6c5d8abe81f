"""Run by a test in a process of its own: kills children at every point, and checks what is left."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from oracle import Oracle
from rig import LONG, Owed, astray
from scenarios import BY_NAME, Scenario

from cache.direct import DirectFiles
from cache.disk import open as opening
from cache.disk.work import Work
from sim.kill_files import KillFiles


class OnDrive(DirectFiles):
    """Files of a real directory that can be looked through."""

    def snapshot(self) -> dict[str, bytes]:
        """Every name's bytes."""
        return {name: (self.root / name).read_bytes() for name in self.list()}


def prepared(root: Path, state: Mapping[str, bytes]) -> None:
    """A directory with these files."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(mode=0o700)
    for name, data in state.items():
        (root / name).write_bytes(data)


def forked(work: Callable[[Callable[[str], None]], None]) -> tuple[list[str], bool]:
    """(what a child told, whether it was killed); a child that fails tells why."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            work(lambda what: (os.write(writing, f"{what}\n".encode()), None)[1])
        except Exception as error:
            os.write(writing, f"raised {type(error).__name__} {error}\n".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read().splitlines()
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return told, os.WIFSIGNALED(status)


def lives(scenario: Scenario, root: Path, at: int, tell: Callable[[str], None]) -> None:
    """The scenario, killed at point `at`."""
    rig = scenario.rig(KillFiles(OnDrive(root), at), tell=tell)
    scenario.play(rig)
    rig.close()


def reopened(scenario: Scenario, root: Path, tell: Callable[[str], None]) -> None:
    """What is wrong in what a killed process left, on the drive itself."""
    files = OnDrive(root)
    before = files.snapshot()
    rig = scenario.rig(files)
    rig.settle()
    for why in astray(rig, before):
        tell(why)
    rig.ask(LONG)
    rig.close()
    for why in rig.wrong + astray(rig, before):
        tell(why)
    files.close_all()


def checked(scenario: Scenario, root: Path, told: list[str], oracle: Oracle) -> list[str]:
    """The directory as it is, by the oracle that judges crash states; then opened where it lies."""
    raised = [line for line in told if line.startswith("raised")]
    left = {path.name: path.read_bytes() for path in root.iterdir()}
    owed = Owed.by(line for line in told if not line.startswith("raised"))
    found, killed = forked(partial(reopened, scenario, root))
    return [*raised, *oracle.judge(left, owed), *found, *(["killed"] if killed else [])]


def planted(fault: str) -> Callable[[], None]:
    """Break the program: keep what was not finished, or leave what is given up. Mends it again."""
    tmp, unlink = opening.TMP, Work.unlink
    if fault == "tmp kept":
        opening.TMP = ".other"
    elif fault == "files kept":
        Work.unlink = lambda work, names: None  # type: ignore[method-assign]

    def mend() -> None:
        opening.TMP = tmp
        Work.unlink = unlink  # type: ignore[method-assign]

    return mend


def killed(name: str, fault: str, root: Path, step: int) -> dict[str, object]:
    """Every point of a scenario, or one of so many, up to the first failure of a planted fault."""
    scenario, at, kills, failures = BY_NAME[name], 0, 0, list[str]()
    alive = False
    start, oracle = scenario.start(), scenario.oracle()
    mend = planted(fault)
    while not alive and not (failures and fault):
        prepared(root, start)
        told, dead = forked(partial(lives, scenario, root, at))
        whys = checked(scenario, root, told, oracle)
        failures += [f"killed at {at}: {why}" for why in whys]
        alive, at, kills = not dead, at + step, kills + dead
    mend()
    return {"kills": kills, "failures": failures[:5], "failed": len(failures)}


def main() -> None:
    """Arguments: the directory, 1 for every point or n for one of n, and runs that are named
    `scenario` or `scenario/fault`. Prints for each its kills and what was wrong."""
    torch.set_num_threads(1)
    root, step = Path(sys.argv[1]), int(sys.argv[2])
    found = {run: killed(*run.partition("/")[::2], root, step) for run in sys.argv[3:]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
