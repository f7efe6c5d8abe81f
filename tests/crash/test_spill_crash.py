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


LARGE = {
    *("stopped, grown", "stopped, given up", "parked", "block damaged", "copy damaged", "budget"),
    *("others' files", "no session", "two sessions", "another codec", "another fingerprint"),
}
"""Those with many states when nothing is in order; the slow tests have them."""


def held(name: str, codec: str, *orders: Order, again: bool = True) -> Iterator[Tally]:
    """Every crash of a scenario, and every crash while the next process opens what it left."""
    scenario, how = BY_NAME[name], CODECS[codec]
    oracle = scenario.oracle(how)
    log = scenario.run(SimFiles(scenario.begin(how).files), how)
    for order in orders:
        yield scenario.crashes(how, log, order, oracle, again=again)


@pytest.mark.parametrize("name", BY_NAME)
def test_no_crash_costs_more_than_what_was_not_acknowledged(name: str, tallied: Told) -> None:
    for tally in held(name, "planes", Order.ORDERED):
        assert tallied(tally).violations == []
        assert tally.states > 5


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in LARGE])
def test_nor_does_one_that_keeps_nothing_in_order(name: str, tallied: Told) -> None:
    for tally in held(name, "planes", Order.WEAK, again=name == "grown"):
        assert tallied(tally).violations == []


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", BY_NAME)
def test_nor_do_two(name: str, codec: str, tallied: Told) -> None:
    for tally in held(name, codec, *Order):
        assert tallied(tally).violations == []


def test_every_scenario_is_another() -> None:
    how, seen = CODECS["planes"], set()
    for scenario in SCENARIOS:
        files = scenario.begin(how).files
        seen.add((tuple(sorted(files.items())), tuple(scenario.run(SimFiles(files), how))))
    assert len(seen) == len(SCENARIOS)
