"""Page cache that an engine keeps counts as memory in use, and costs warm starts, never an answer.

Method: serve.host_memory with a clock and a count of its own; a box whose engine says it keeps far
more than the limits allow, driven through turns of two sessions beside one that keeps nothing.
Canaries: page cache that nobody counts, page cache that counts without end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import box, engine, joined, serve, tokens

from cache.levels import levels_of
from cache.types import Limits
from engine.box import Box
from engine.hybrid import Hybrid
from serve.host_memory import COUNT_S, HostBudget, HostMemory

MIB = 1 << 20
LOADED = 100 * MIB


class World:
    """A clock that is moved by hand, and page cache that takes a while to count."""

    def __init__(self) -> None:
        self.now_s, self.takes_s = 0.0, 0.0
        self.bytes, self.asked = 5 * MIB, 0

    def clock(self) -> float:
        return self.now_s

    def count(self) -> int:
        self.now_s += self.takes_s
        self.asked += 1
        return self.bytes


def test_page_cache_is_counted_beside_the_process() -> None:
    world = World()
    memory = HostMemory(world.count, world.clock)
    beside = memory.allocated_bytes() - memory.own_bytes()
    assert abs(beside - 5 * MIB) < MIB
    assert memory.peak_bytes() >= memory.allocated_bytes() - MIB
    memory.files_most = lambda own: 2 * MIB
    assert abs(memory.allocated_bytes() - memory.own_bytes() - 2 * MIB) < MIB
    memory.files_most = lambda own: -7 * MIB
    assert abs(memory.allocated_bytes() - memory.own_bytes()) < MIB
    assert HostMemory().files_bytes() == 0


def test_it_is_counted_now_and_then() -> None:
    world = World()
    memory = HostMemory(world.count, world.clock)
    for _ in range(3):
        memory.allocated_bytes()
    assert world.asked == 1
    world.bytes, world.now_s = 9 * MIB, COUNT_S
    assert memory.files_bytes() == 9 * MIB and world.asked == 2
    world.takes_s, world.now_s = 0.3, 2 * COUNT_S
    memory.files_bytes()
    world.now_s = 2 * COUNT_S + 15
    memory.files_bytes()
    assert world.asked == 3, "counting takes more than its share of the time"
    world.now_s += 1
    memory.files_bytes()
    assert world.asked == 4


def test_a_peak_and_what_is_in_use_then_have_the_same_files_in_them() -> None:
    """What a prefill took is their difference."""
    world = World()
    memory = HostMemory(world.count, world.clock)
    memory.allocated_bytes()
    world.now_s, world.bytes = COUNT_S - 0.01, 500 * MIB
    memory.mark()
    peak = memory.peak_bytes()
    world.now_s += 0.02
    assert abs(peak - memory.allocated_bytes()) < 100 * MIB
    world.now_s += 1
    assert memory.allocated_bytes() - peak > 300 * MIB


def on(resident_bytes: int, monkeypatch: pytest.MonkeyPatch) -> Box:
    """A box under limits that leave room for every cache, if it were not for the engine's files."""
    of = engine("hybrid-float32")
    monkeypatch.setattr(Hybrid, "resident_files", lambda self: resident_bytes)
    made = box(of, park_rows=3_000, store_bytes=2 * MIB)

    def own(self: HostMemory) -> int:
        return LOADED + sum(made.stack.held_bytes().values())

    monkeypatch.setattr(HostMemory, "own_bytes", own)
    monkeypatch.setattr(HostMemory, "peak_bytes", HostMemory.allocated_bytes)
    made.budget = HostBudget(Limits(400 * MIB, 500 * MIB, 4_096), of)
    stack = made.stack
    for part in (stack.resident, stack.park, stack.visits, stack.visits._stash, stack.store):
        part._grow = made.budget.grow  # type: ignore[attr-defined]
    made.budget.over(levels_of([(stack, of)]))
    return made


def talked(made: Box) -> list[int]:
    """Two sessions take turns; tokens that each turn did not have to read."""
    said = {name: tokens(600, seed) for seed, name in enumerate("ab")}
    for number in range(6):
        name = "ab"[number % 2]
        answer = tokens(10, number)
        serve(made, said[name], answer, session=name)
        said[name] = joined(said[name], answer, tokens(20, 50 + number))
    return [row.cached for row in made.journal.rows]


def check_colder(
    monkeypatch: pytest.MonkeyPatch, kept_bytes: int, colder: Callable[[int, int], bool]
) -> None:
    with monkeypatch.context() as patch:
        plain = talked(on(0, patch))
    made = on(kept_bytes, monkeypatch)
    cached = talked(made)
    assert all(row.source != "refused" and row.output for row in made.journal.rows)
    assert plain[2:] > [500] * 4, "nothing is warm here"
    assert colder(sum(cached), sum(plain)), (cached, plain)
    assert made.budget is not None
    shed = made.budget.shed_bytes + sum(made.budget.stats()["declined"].values())
    assert bool(shed) == (cached != plain)


@pytest.mark.parametrize("kept_bytes", [395 * MIB, 3_000 * MIB, 1 << 46])
def test_large_resident_files_make_starts_colder_and_refuse_nobody(
    monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    check_colder(monkeypatch, kept_bytes, lambda ours, plain: ours < plain / 2)


def test_small_resident_files_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check_colder(monkeypatch, 50 * MIB, lambda ours, plain: ours == plain)


@pytest.mark.parametrize("ceiling_mib, peak_mib", [(400, 500), (400, 400)])
def test_files_count_up_to_what_the_engine_and_a_prompt_leave(
    monkeypatch: pytest.MonkeyPatch, ceiling_mib: int, peak_mib: int
) -> None:
    """Caches give way to page cache, so that what they hold leaves no less room for it."""
    made, of, slack = on(0, monkeypatch), engine("hybrid-float32"), 3 * MIB
    talked(made)
    levels = levels_of([(made.stack, of)])
    held = sum(level.held_bytes() for level in levels)
    budget = HostBudget(Limits(ceiling_mib * MIB, peak_mib * MIB, slack), of)
    budget.over(levels)
    prompt = budget.workspace.bytes(of.window)
    room = min(ceiling_mib * MIB, peak_mib * MIB - prompt) - slack
    assert held > 0 < prompt
    assert budget._files_most(LOADED + held) == room - LOADED


# canaries


def test_canary_files_that_nobody_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMemory, "files_bytes", lambda self: 0)
    with pytest.raises(AssertionError):
        test_large_resident_files_make_starts_colder_and_refuse_nobody(monkeypatch, 3_000 * MIB)


def test_canary_files_that_count_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostBudget, "_files_most", lambda self, own: 1 << 60)
    with pytest.raises(AssertionError):
        test_large_resident_files_make_starts_colder_and_refuse_nobody(monkeypatch, 3_000 * MIB)
