"""Goal: a conversation that was brought back ahead of its request is resumed at its end, as if it
had never left, and a request that comes meanwhile waits for one file at most.

Method: cache.prewarm over a Home's spill on every model; what is in place afterwards is compared
with what was there before the conversation left, and the next turn is held to its gate. Endings
after every possible number of looks; cache.clear empties memory. The canary brings back rows and
no copies.
"""

from __future__ import annotations

import pytest
import torch
from homes import Home
from support import GRID, MODELS, joined, tokens

from cache.clear import clear_memory
from cache.exchange import Exchange
from cache.prewarm import READ_S_MAX, Prewarmed, prewarm
from cache.spill.names import YIELDED
from cache.types import Ask

LONG = 5 * GRID + 20
ROOMS = {"park_rows": 0}


def home(model: str = "witness", **settings: int) -> Home:
    """A machine whose pool holds nobody, so that whoever is replaced goes to the drive."""
    return Home(model, rooms=ROOMS, tokens_min=2 * GRID, **settings)


def ask(of: Home, session: str) -> Ask:
    """What the session's next turn will be, as far as anybody can tell now."""
    return Ask(joined(of.said[session], tokens(5, 9)), session, answer_max=9)


def left(of: Home) -> dict[str, torch.Tensor]:
    """Conversation a is on the drive, b in place; what a was before it left."""
    of.turn("a", LONG)
    was = of.state()
    of.turn("b", LONG - 60)
    assert of.on.stack.resident.account.session == "b"
    return was


def warm(
    of: Home, session: str = "a", rested_s: float = 1e3, after: int | None = None
) -> Prewarmed:
    """Prewarm; somebody comes after so many looks."""
    looks = 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        return after is not None and looks > after

    return prewarm(of.on.stack, of.of, ask(of, session), rested_s, stop)


@pytest.mark.parametrize("model", MODELS)
def test_what_comes_back_is_what_left(model: str) -> None:
    of = home(model)
    was = left(of)
    done = warm(of)
    of.looks()
    assert done.why == "" and done.line.kind == "end"
    now = of.state()
    assert set(now) <= set(was), "older grid anchors stay behind"
    assert {name for name in set(was) - set(now) if not name.startswith("anchor.64.")} == set()
    assert all(torch.equal(was[name], now[name]) for name in now)
    row = of.turn("a")
    assert row.source == "end" and row.cached == done.line.tokens
    # b went to the drive for it, and is served from there.
    assert of.turn("b").source == "spill.end"


def test_why_not() -> None:
    of = home()
    of.turn("a", LONG)
    assert warm(of).why == "not_on_nvme"
    left(of)
    assert warm(of, rested_s=60.0).why == "resident_in_use"
    assert of.on.stack.resident.account.session == "b"
    slow = home()
    left(slow)
    slow.spill._rate.saw(10, 10 * READ_S_MAX)
    for _ in range(50):
        slow.spill._rate.saw(10, 10 * READ_S_MAX)
    assert warm(slow).why in ("too_long", "not_on_nvme")
    alone = Home("witness", rooms=ROOMS, mode="off")
    alone.turn("a", LONG)
    alone.turn("b", LONG)
    assert warm(alone).why == "not_on_nvme"


@pytest.mark.parametrize("after", range(0, 24))
def test_somebody_comes_meanwhile(after: int) -> None:
    of = home()
    left(of)
    done = warm(of, after=after)
    of.looks()
    assert done.why in ("", "yielded")
    assert after or done.why == "yielded"
    if done.why:
        assert of.spill.shelf.whole(), "the entry stays on the drive"
    # Whatever was overwritten, both are served from where they were read, and hold their gates.
    a, b = of.turn("a"), of.turn("b")
    assert a.source in ("end", "spill.end") and a.cached >= LONG
    assert b.source in ("end", "spill.end", "spill.grid", "grid") and b.cached >= 2 * GRID


def test_a_reading_that_yields_is_no_failure() -> None:
    of = home()
    left(of)
    of.turn("b")
    assert any(warm(of, after=n).why == YIELDED for n in range(3, 9))
    of.looks()
    assert not of.of_kind("fail") and not of.of_kind("damage")
    assert of.turn("a").source in ("end", "spill.end")


def test_clearing_memory_leaves_the_drive() -> None:
    of = Home("witness", rooms={"park_rows": 2_000}, tokens_min=2 * GRID)
    left(of)
    of.rests()
    assert of.on.stack.held_bytes()["park"]
    clear_memory(of.on.stack, of.of)
    of.looks()
    held = of.on.stack.held_bytes()
    assert not any(held[name] for name in ("rows", "anchors", "end", "park", "stash", "store")), (
        held
    )
    assert of.turn("b").source == "spill.end"
    assert of.sends(tokens(LONG, 77)).source == "cold"


def test_canary_rows_without_their_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    of = home("hybrid-float32")
    left(of)
    takes = Exchange._takes
    monkeypatch.setattr(Exchange, "_takes", lambda self, account, base: None)
    monkeypatch.setattr("cache.resident.Resident.restore", lambda self, line, model: None)
    warm(of)
    monkeypatch.setattr(Exchange, "_takes", takes)
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        of.looks()
        assert of.turn("a").source == "end"
