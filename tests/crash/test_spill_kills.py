"""Goal: a process that is killed while it keeps a conversation leaves what the next one opens.

Method: children save on a real directory and end by SIGKILL before every call and inside every
write; what is left is judged as a crash state is, and opened where it lies. Canaries: leftovers
that are kept, files that are given up and stay.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spill_scenarios import BY_NAME, CODECS
from states import Tally
from test_kills import STEP, in_memory, tally_of
from test_kills import killed as killed_by

Told = Callable[[Tally], Tally]
NAME = "grown/planes/"
FAULTS = {"grown/planes/tmp kept": ".tmp is left", "grown/planes/files kept": "is left"}


def killed(folder: Path | None, *runs: str, step: int = 1) -> dict[str, Any]:
    return killed_by(folder, *runs, script="spill_kills.py", step=step)


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    """One scenario and the canaries, in one process: starting it takes as long as many kills."""
    return killed(in_memory(), NAME, *FAULTS, step=STEP)


def test_a_kill_at_any_point(quick: dict[str, Any], tallied: Told) -> None:
    tally = tallied(tally_of(quick, NAME, "in memory"))
    assert tally.violations == [] and tally.states > 60 / STEP


@pytest.mark.parametrize("run", FAULTS)
def test_canary_kills(quick: dict[str, Any], run: str) -> None:
    assert any(FAULTS[run] in why for why in quick[run]["failures"])


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", BY_NAME)
def test_a_kill_at_any_point_of_every_scenario(name: str, codec: str, tallied: Told) -> None:
    run = f"{name}/{codec}/"
    found = killed(in_memory(), run)
    assert tallied(tally_of(found, run, "in memory")).violations == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first save", "grown", "stopped, grown"])
def test_a_kill_at_any_point_on_a_drive(name: str, tmp_path: Path, tallied: Told) -> None:
    run = f"{name}/planes/"
    found = killed(tmp_path, run)
    assert tallied(tally_of(found, run, "on a drive")).violations == []
