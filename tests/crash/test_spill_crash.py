"""Goal: whatever of the unsynced a crash keeps or loses, the spill opens, a conversation comes back
with the bytes that were saved, and what a save acknowledged is there.

Method: real turns of the witness on a grid of 4 with blocks of 8 rows over simulated files; the log
of file operations gives every state a crash may leave. Each is opened, looked through and opened
again; every conversation in it is brought back, compared as bytes, goes on under the witness' eyes,
is saved and comes back again; and so is every crash while it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from spill_scenarios import BY_NAME, CODECS, SCENARIOS
from states import Tally

from sim.crash import Order
from sim.files import SimFiles

Told = Callable[[Tally], Tally]


def held(name: str, codec: str, *orders: Order) -> Iterator[Tally]:
    """Every crash of a scenario, and every crash while the next process opens what it left."""
    scenario, how = BY_NAME[name], CODECS[codec]
    oracle = scenario.oracle(how)
    log = scenario.run(SimFiles(scenario.begin(how).files), how)
    for order in orders:
        yield scenario.crashes(how, log, order, oracle, again=True)


@pytest.mark.parametrize("name", BY_NAME)
def test_no_crash_costs_more_than_what_was_not_acknowledged(name: str, tallied: Told) -> None:
    for tally in held(name, "planes", Order.WEAK, Order.ORDERED):
        assert tallied(tally).violations == []
        assert tally.states > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_nor_does_it_with_rows_as_they_are(name: str, tallied: Told) -> None:
    for tally in held(name, "raw", *Order):
        assert tallied(tally).violations == []


def test_every_scenario_is_another() -> None:
    how, seen = CODECS["planes"], set()
    for scenario in SCENARIOS:
        files = scenario.begin(how).files
        seen.add((tuple(sorted(files.items())), tuple(scenario.run(SimFiles(files), how))))
    assert len(seen) == len(SCENARIOS)
