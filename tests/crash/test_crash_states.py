"""Goal: whatever of the unsynced a crash keeps or loses, the disk tier opens, serves the right
bytes and has what was acknowledged.

Method: real turns of the witness on a grid of 4 over simulated files; the log of file operations
gives every state a crash may leave. Each is opened, looked through, opened again, asked for prompts
whose every row is checked, written to and asked again; and so is every crash while it is opened.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracle import Tally
from scenarios import BY_NAME, SCENARIOS

from sim.crash import Order
from sim.files import SimFiles

Told = Callable[[Tally], Tally]
LARGE = {"first save", "chunk damaged", "too old", "another fingerprint", "fenced"}
"""Those with many states when nothing is in order; the slow tests have them."""
CASES = [
    pytest.param(name, order, id=f"{name}-{order}", marks=[pytest.mark.slow] * slow)
    for name in BY_NAME
    for order in (Order.WEAK, Order.ORDERED)
    for slow in (name in LARGE and order is Order.WEAK,)
]


@pytest.mark.parametrize(("name", "order"), CASES)
def test_no_crash_costs_more_than_what_was_not_acknowledged(
    name: str, order: Order, tallied: Told
) -> None:
    scenario = BY_NAME[name]
    start, oracle = scenario.start(), scenario.oracle()
    log = scenario.run(SimFiles(start))
    tally = tallied(oracle.crashes(name, start, log, order, again=True))
    assert tally.violations == []
    assert tally.states > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", BY_NAME)
def test_nor_does_another_order_of_the_jobs(name: str, seed: int, tallied: Told) -> None:
    scenario = BY_NAME[name]
    start, oracle = scenario.start(), scenario.oracle()
    log = scenario.run(SimFiles(start), seed)
    for order in Order:
        tally = tallied(oracle.crashes(f"{name}, seed {seed}", start, log, order, again=True))
        assert tally.violations == []


@pytest.mark.parametrize("name", BY_NAME)
def test_no_order_of_the_jobs_leaves_files_behind_or_gives_wrong_bytes(name: str) -> None:
    for seed in range(5):
        BY_NAME[name].run(SimFiles(BY_NAME[name].start()), seed)


def test_every_scenario_is_another() -> None:
    logs = [tuple(scenario.run(SimFiles(scenario.start()))) for scenario in SCENARIOS]
    assert len(set(logs)) == len(SCENARIOS)
