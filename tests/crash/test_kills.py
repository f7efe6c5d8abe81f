"""Goal: a process that is killed leaves what the next one opens, on a real file system.

Method: children save on a real directory and end by SIGKILL before every call and inside every
write; what is left is judged as a crash state is, and opened where it lies. Canaries: leftovers
that are kept, files that are given up and stay.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oracle import Tally
from scenarios import BY_NAME

Told = Callable[[Tally], Tally]
HERE = Path(__file__).parent
SHM = Path("/dev/shm")


NAME = "save that shares chunks"
STEP = 3
"""Of so many points one is tried; every one is among the slow tests' kills."""


def in_memory() -> Path | None:
    """A file system in memory, where there is one: ten times as many kills in a second."""
    return SHM if os.access(SHM, os.W_OK) else None


def killed(
    folder: Path | None, *runs: str, script: str = "kills.py", step: int = 1
) -> dict[str, Any]:
    """Of each run the kills, at one of `step` points, and what was wrong after them."""
    path = os.pathsep.join(map(str, (HERE, HERE.parent, HERE.parent.parent)))
    with tempfile.TemporaryDirectory(dir=folder, prefix="moorage-tier-") as root:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(HERE / script), f"{root}/tier", str(step), *runs],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=550,
        )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def tally_of(found: dict[str, Any], run: str, where: str) -> Tally:
    kills = found[run]["kills"]
    return Tally(f"SIGKILL {where}, {run}", kills, kills, violations=found[run]["failures"])


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    """One scenario and the canaries, in one process: starting it takes as long as many kills."""
    return killed(in_memory(), NAME, f"{NAME}/tmp kept", "budget/files kept", step=STEP)


def test_a_kill_at_any_point(quick: dict[str, Any], tallied: Told) -> None:
    tally = tallied(tally_of(quick, NAME, "in memory"))
    assert tally.violations == [] and tally.states > 60 / STEP


@pytest.mark.parametrize("run", [f"{NAME}/tmp kept", "budget/files kept"])
def test_canary_kills(quick: dict[str, Any], run: str) -> None:
    assert any("is left" in why for why in quick[run]["failures"])


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_a_kill_at_any_point_of_every_scenario(name: str, tallied: Told) -> None:
    found = killed(in_memory(), name)
    assert tallied(tally_of(found, name, "in memory")).violations == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first save", "budget", "fenced"])
def test_a_kill_at_any_point_on_a_drive(name: str, tmp_path: Path, tallied: Told) -> None:
    found = killed(tmp_path, name)
    assert tallied(tally_of(found, name, "on a drive")).violations == []
