"""Run by a test in a process of its own: kills children that keep conversations at every point."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from kills import OnDrive, forked, prepared
from spill_oracle import SpillOracle
from spill_rig import astray
from spill_scenarios import BY_NAME, CODECS, Scenario

from cache.spill import open as opening
from cache.spill.codec import CodecConfig
from cache.spill.shelf import Shelf
from sim.kill_files import KillFiles


def lives(
    scenario: Scenario, codec: CodecConfig, root: Path, at: int, tell: Callable[[str], None]
) -> None:
    """The scenario, killed at point `at`."""
    rig = scenario.rig(KillFiles(OnDrive(root), at), codec, tell)
    scenario.play(rig)
    rig.close()


def reopened(
    scenario: Scenario, codec: CodecConfig, root: Path, tell: Callable[[str], None]
) -> None:
    """What is wrong in what a killed process left, on the drive itself."""
    files = OnDrive(root)
    before = files.snapshot()
    rig = scenario.rig(files, codec)
    found = astray(rig, before)
    rig.comes_back()
    rig.turn("z")
    outcome = rig.save()
    found += [] if outcome.ok else [f"nothing can be saved: {outcome.why}"]
    rig.close()
    for why in found + rig.wrong + astray(rig, before):
        tell(why)
    files.close_all()


def checked(
    scenario: Scenario, codec: CodecConfig, root: Path, told: list[str], oracle: SpillOracle
) -> list[str]:
    """The directory as it is, by the oracle that judges crash states; then opened where it lies."""
    raised = [line for line in told if line.startswith("raised")]
    left = {path.name: path.read_bytes() for path in root.iterdir()}
    # A child that was killed before it could say so knows what was there as well.
    notes = [*scenario.begin(codec).notes, *(x for x in told if not x.startswith("raised"))]
    found, killed = forked(partial(reopened, scenario, codec, root))
    return [*raised, *oracle.noted(left, notes), *found, *(["killed"] if killed else [])]


def planted(fault: str) -> Callable[[], None]:
    """Break the program: keep what was not finished, or leave what is given up. Mends it again."""
    tmp, remove = opening.TMP, Shelf._remove
    if fault == "tmp kept":
        opening.TMP = ".other"
    elif fault == "files kept":
        Shelf._remove = lambda shelf, names: None  # type: ignore[method-assign]

    def mend() -> None:
        opening.TMP = tmp
        Shelf._remove = remove  # type: ignore[method-assign]

    return mend


def killed(name: str, how: str, fault: str, root: Path, step: int) -> dict[str, object]:
    """Every point of a scenario, or one of so many, up to the first failure of a planted fault."""
    scenario, codec, at, kills = BY_NAME[name], CODECS[how], 0, 0
    alive, failures = False, list[str]()
    start, oracle = scenario.begin(codec).files, scenario.oracle(codec)
    mend = planted(fault)
    while not alive and not (failures and fault):
        prepared(root, start)
        told, dead = forked(partial(lives, scenario, codec, root, at))
        whys = checked(scenario, codec, root, told, oracle)
        failures += [f"killed at {at}: {why}" for why in whys]
        alive, at, kills = not dead, at + step, kills + dead
    mend()
    return {"kills": kills, "failures": failures[:5], "failed": len(failures)}


def main() -> None:
    """Arguments: the directory, 1 for every point or n for one of n, and runs that are named
    `scenario/codec/fault`, the fault empty for none. Prints kills and findings."""
    torch.set_num_threads(1)
    root, step = Path(sys.argv[1]), int(sys.argv[2])
    print(json.dumps({run: killed(*run.split("/"), root, step) for run in sys.argv[3:]}))


if __name__ == "__main__":
    main()
