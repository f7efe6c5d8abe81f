"""The hot-row cache: never a row that is not the key's, never a byte over its size, and its policy.

Method: random takes and puts beside a twin that keeps lists and compares one slot at a time; sizes
from nothing to everything; Zipf streams beside an LRU of as many slots. Canaries: a slot that keeps
its evicted key, an eviction that is anybody's. Covers engine.flash.table_hot.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.flash.table_hot import REST, USES_MAX, WAYS, HotRows, Keys

ROW_BYTES = 24
SLOT_BYTES = ROW_BYTES + 17


def rows_of(keys: Keys) -> np.ndarray:
    """What the table has for these keys: eight bytes each, three times."""
    return np.repeat(keys[:, None], 3, 1).astype("<i8").view(np.uint8)


@dataclass(slots=True)
class Slot:
    key: int = -1
    uses: int = 0
    used: int = 0


class Naive:
    """The policy as its docstring has it, a slot at a time."""

    def __init__(self, rows: int, slots: int) -> None:
        self.all = slots >= rows
        ways = 1 if self.all else min(WAYS, slots)
        count = rows if self.all else slots // ways
        self.sets = [[Slot() for _ in range(ways)] for _ in range(count)]
        self.now, self.evictions = 1, 0

    def _set(self, key: int) -> list[Slot]:
        if self.all:
            return self.sets[key]
        mixed = key * 0x9E3779B97F4A7C15 % 2**64 >> 32
        return self.sets[mixed * len(self.sets) >> 32]

    def _slot(self, key: int) -> Slot | None:
        return next((slot for slot in self._set(key) if slot.key == key), None)

    def take(self, keys: list[int]) -> list[bool]:
        self.now += len(keys)
        found = [self._slot(key) for key in keys]
        for slot in found:
            if slot is not None:
                slot.used, slot.uses = self.now, min(slot.uses + 1, USES_MAX)
        return [slot is not None for slot in found]

    def put(self, keys: list[int]) -> None:
        by_set: dict[int, list[int]] = {}
        for key in keys:
            if self._slot(key) is None:
                by_set.setdefault(id(self._set(key)), []).append(key)
        for some in by_set.values():
            slots = self._set(some[0])
            for key in some[-len(slots) :]:
                self._put(slots, key)

    def _put(self, slots: list[Slot], key: int) -> None:
        victim = min(slots, key=lambda slot: (slot.uses, slot.used))
        self.evictions += victim.key != -1
        lost = victim.uses
        for slot in slots:
            slot.uses -= lost
            if self.now - slot.used > REST * len(slots) * len(self.sets):
                slot.uses = max(0, slot.uses - 1)
        victim.key, victim.uses, victim.used = key, 0, self.now


def compare(rows: int, budget_bytes: int, calls: list[list[int]]) -> None:
    """A cache in front of a table, and the twin: the same keys are found, and their own rows."""
    hot = HotRows(rows, ROW_BYTES, budget_bytes)
    slots = budget_bytes // SLOT_BYTES
    twin = Naive(rows, slots) if slots else None
    assert hot.held_bytes() <= budget_bytes
    for call in calls:
        keys = np.unique(np.array(call, np.int64))
        into = np.zeros((len(keys), ROW_BYTES), np.uint8)
        found = hot.take(keys, into)
        expected = twin.take(keys.tolist()) if twin else [False] * len(keys)
        assert found.tolist() == expected
        assert (into[found] == rows_of(keys[found])).all()
        assert not into[~found].any(), "wrote a row that it does not have"
        hot.put(keys[~found], rows_of(keys[~found]))
        if twin:
            twin.put(keys[~found].tolist())
            assert hot.evictions == twin.evictions


CALLS = st.lists(st.lists(st.integers(0, 199), min_size=1, max_size=40), max_size=30)


@settings(max_examples=60)
@given(st.integers(0, 220 * SLOT_BYTES), CALLS)
def test_it_does_what_the_twin_does(budget_bytes: int, calls: list[list[int]]) -> None:
    compare(200, budget_bytes, calls)


def stream(count: int, keys: int, exponent: float, seed: int) -> Keys:
    """Zipf keys in an order of their own."""
    rng = np.random.default_rng(seed)
    shares = np.cumsum(np.arange(1, keys + 1) ** -exponent)
    drawn = np.searchsorted(shares / shares[-1], rng.random(count))
    return rng.permutation(keys)[drawn].astype(np.int64)


@pytest.mark.parametrize("slots", [1, 16, 17, 100, 640, 1_999])
def test_long_streams_do_too(slots: int) -> None:
    keys = stream(20_000, 2_000, 0.9, slots)
    calls = [call.tolist() for call in np.split(keys, 100)]
    compare(2_000, slots * SLOT_BYTES + 7, calls)


def test_it_takes_what_it_was_given_and_no_more() -> None:
    for budget_bytes in (0, 1, SLOT_BYTES - 1):
        assert HotRows(1_000, ROW_BYTES, budget_bytes).held_bytes() == 0
    for budget_bytes in (SLOT_BYTES, 5_000, 10_000, 39_999):
        held = HotRows(1_000, ROW_BYTES, budget_bytes).held_bytes()
        assert budget_bytes - WAYS * SLOT_BYTES < held <= budget_bytes
    assert HotRows(1_000, ROW_BYTES, 1 << 30).held_bytes() == 1_000 * SLOT_BYTES


def test_room_for_all_never_evicts() -> None:
    hot, keys = HotRows(500, ROW_BYTES, 500 * SLOT_BYTES), np.arange(500)
    for some in np.split(np.random.default_rng(0).permutation(keys), 10):
        hot.put(np.sort(some), rows_of(np.sort(some)))
    into = np.zeros((500, ROW_BYTES), np.uint8)
    assert hot.take(keys, into).all() and (into == rows_of(keys)).all() and not hot.evictions


def test_a_row_that_came_meanwhile_is_kept_once() -> None:
    hot, keys = HotRows(500, ROW_BYTES, 32 * SLOT_BYTES), np.array([3, 9])
    hot.put(keys, rows_of(keys))
    hot.put(keys, rows_of(keys))
    assert np.count_nonzero(hot._keys >= 0) == 2 and not hot.evictions


def hits(slots: int, keys: Keys, known: int) -> np.ndarray:
    """Which lookups are served, eight a call."""
    hot = HotRows(known, 1, slots * 18)
    into, served = np.zeros((8, 1), np.uint8), np.zeros(len(keys), np.bool_)
    for at in range(0, len(keys), 8):
        some, where = np.unique(keys[at : at + 8], return_inverse=True)
        found = hot.take(some, into[: len(some)])
        served[at : at + 8] = found[where]
        hot.put(some[~found], into[: len(some)][~found])
    return served


def lru_hits(slots: int, keys: Keys) -> np.ndarray:
    held: OrderedDict[int, None] = OrderedDict()
    served = np.zeros(len(keys), np.bool_)
    for at, key in enumerate(keys.tolist()):
        if key in held:
            served[at] = True
            held.move_to_end(key)
            continue
        if len(held) == slots:
            held.popitem(last=False)
        held[key] = None
    return served


def test_on_a_zipf_stream_it_serves_more_than_lru() -> None:
    known, slots = 20_000, 208
    keys = stream(20_000, known, 0.9, 1)
    ours, lru = hits(slots, keys, known)[4_000:].mean(), lru_hits(slots, keys)[4_000:].mean()
    assert ours > 1.05 * lru, (ours, lru)


def test_what_was_hot_yesterday_goes() -> None:
    known, slots = 2_000, 160
    old = stream(8_000, known, 1.0, 1)
    keys = np.concatenate((old, old[:4_000] + known))
    served = hits(slots, keys, 2 * known)
    settled, after = served[4_000:8_000].mean(), served[-2_000:].mean()
    assert after > 0.9 * settled, (settled, after)


# canaries


def test_canary_the_row_of_an_evicted_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = HotRows._put_one_a_set

    def forgets(self: HotRows, sets: Keys, keys: Keys, rows: np.ndarray) -> None:
        was = self._keys.copy()
        whole(self, sets, keys, rows)
        evicted = (was >= 0) & (was != self._keys)
        self._keys[evicted] = was[evicted]

    monkeypatch.setattr(HotRows, "_put_one_a_set", forgets)
    with pytest.raises(AssertionError):
        test_long_streams_do_too(100)


def test_canary_an_eviction_that_is_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.flash.table_hot.np.argmin", lambda worth, axis: worth[:, 0] * 0)
    with pytest.raises(AssertionError):
        test_long_streams_do_too(100)


def test_canary_uses_that_never_fade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.flash.table_hot.REST", 10**6)
    with pytest.raises(AssertionError):
        test_what_was_hot_yesterday_goes()
