"""The index of the tier's files: who reads which chunk, what goes with whom, what each is worth.

Method: a hypothesis state machine adds, uses, drops, damages, reserves, settles and clears prefixes
of a few prompts; beside it a model of plain sets says which files are there, and works out every
figure from them anew.
"""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache.disk.config import DAY_S
from cache.disk.index import Chunk, Entry, Index, anchor_name, chunk_name

GRID = 64
YEAR_S = 365 * DAY_S
PREFIX = st.sampled_from(("a", "aa", "ab", "aab", "b"))
"""A letter a chunk; prompts that share letters share files."""


def hash_of(prefix: str) -> int:
    """Any number that names it."""
    return int.from_bytes(prefix.encode().rjust(8, b"\x81"), "big")


def below(prefix: str) -> list[str]:
    """All prefixes that end at a line of it."""
    return [prefix[:n] for n in range(1, len(prefix) + 1)]


def chunk_of(prefix: str) -> Chunk:
    """Its last chunk; odd sizes, so that a sum can't be right by chance."""
    return Chunk(hash_of(prefix), len(prefix) * GRID, 1_000 + hash_of(prefix) % 97)


def entry_of(prefix: str) -> Entry:
    """Its anchor."""
    chunks = tuple(map(hash_of, below(prefix)))
    return Entry(hash_of(prefix), len(prefix) * GRID, chunks, 300 + hash_of(prefix) % 89)


class Indexed(RuleBasedStateMachine):
    """An index beside sets of prefixes."""

    def __init__(self) -> None:
        super().__init__()
        self.index = Index()
        self.chunks = set[str]()
        self.entries = dict[str, Entry]()
        self.writes = list[str]()
        """Prefixes that a write under way counts on."""
        self.now_s = 1e9

    # the model's figures

    def readers(self, prefix: str) -> int:
        return sum(prefix in below(name) for name in self.entries)

    def value(self, name: str) -> float:
        entry = self.entries[name]
        alone = entry.nbytes + sum(chunk_of(p).nbytes / self.readers(p) for p in below(name))
        idle_days = max(self.now_s - entry.used_s, 0) / DAY_S
        return (entry.hits + 1) * len(name) * GRID / alone * 0.5**idle_days

    def held(self) -> int:
        anchors = sum(entry.nbytes for entry in self.entries.values())
        return anchors + sum(chunk_of(prefix).nbytes for prefix in self.chunks)

    def useless(self) -> set[str]:
        wanted = {p for name in [*self.entries, *self.writes] for p in below(name)}
        return self.chunks - wanted

    def gone(self, told: list[str], chunks: set[str], entries: set[str]) -> None:
        """These have gone, and whoever removes the files was told of each once."""
        self.chunks -= chunks
        for name in entries:
            del self.entries[name]
        files = {chunk_name(hash_of(p)) for p in chunks} | {
            anchor_name(hash_of(p)) for p in entries
        }
        assert Counter(told) == Counter(files)

    # what happens

    @rule(prefix=PREFIX)
    def write(self, prefix: str) -> None:
        """A write from its beginning to its end."""
        self.begin_write(prefix)
        self.land(prefix)
        self.end_write(self.writes.index(prefix))

    @rule(prefix=PREFIX)
    def begin_write(self, prefix: str) -> None:
        self.index.reserve(list(map(hash_of, below(prefix))))
        self.writes.append(prefix)

    @rule(prefix=PREFIX)
    def add_alone(self, prefix: str) -> None:
        """An anchor comes in without its chunks, or once more: only a new whole one is taken."""
        whole = set(below(prefix)) <= self.chunks
        entry = entry_of(prefix)
        entry.used_s = self.now_s
        taken = self.index.add(entry)
        assert taken == (whole and prefix not in self.entries)
        if taken:
            self.entries[prefix] = entry

    @precondition(lambda self: self.writes)
    @rule(number=st.integers(0, 9), chunks=st.integers(0, 4))
    def land_some(self, number: int, chunks: int) -> None:
        """The first chunks of a write are on the drive."""
        prefix = self.writes[number % len(self.writes)]
        for part in below(prefix)[:chunks]:
            self.index.add_chunk(chunk_of(part))
            self.chunks.add(part)

    def land(self, prefix: str) -> None:
        for part in below(prefix):
            self.index.add_chunk(chunk_of(part))
            self.chunks.add(part)
        self.add_alone(prefix)

    @precondition(lambda self: self.writes)
    @rule(number=st.integers(0, 9))
    def end_write(self, number: int) -> None:
        prefix = self.writes.pop(number % len(self.writes))
        names = list(map(hash_of, below(prefix)))
        self.index.settle(names)
        self.gone(self.index.orphans(names), self.useless(), set())

    @precondition(lambda self: self.entries)
    @rule(number=st.integers(0, 9))
    def drop(self, number: int) -> None:
        prefix = sorted(self.entries)[number % len(self.entries)]
        entry = self.entries[prefix]
        stay = {n: e for n, e in self.entries.items() if n != prefix}
        wanted = {p for name in [*stay, *self.writes] for p in below(name)}
        self.gone(self.index.drop(entry), self.chunks - wanted, {prefix})
        assert self.index.drop(entry) == [], "it can go only once"

    @rule(prefix=PREFIX)
    def damage(self, prefix: str) -> None:
        """A chunk is no good: every longer one that stands on it goes, and it goes too."""
        dead = {name for name in self.entries if prefix in below(name)}
        stay = set(self.entries) - dead
        wanted = {p for name in [*stay, *self.writes] for p in below(name)}
        chunks = {p for name in dead for p in below(name)} - wanted
        chunks |= {prefix} & self.chunks
        self.gone(self.index.damaged(hash_of(prefix)), chunks & self.chunks, dead)

    @rule()
    def clear(self) -> None:
        self.gone(self.index.clear(), set(self.chunks), set(self.entries))

    @precondition(lambda self: self.entries)
    @rule(number=st.integers(0, 9), hits=st.integers(1, 5))
    def use(self, number: int, hits: int) -> None:
        entry = self.entries[sorted(self.entries)[number % len(self.entries)]]
        entry.hits, entry.used_s = entry.hits + hits, self.now_s

    @rule(days=st.sampled_from((0.01, 1.0, 30.0, 365.0, -365.0)))
    def wait(self, days: float) -> None:
        """Time passes, or the clock is put right by a year, or wrong."""
        self.now_s += days * DAY_S

    # what always holds

    @invariant()
    def whole(self) -> None:
        self.index.check()
        assert set(self.index.entries) == {hash_of(name) for name in self.entries}
        assert set(self.index.chunks) == {hash_of(prefix) for prefix in self.chunks}
        assert self.index.held_bytes() == self.held()
        assert self.held() >= 0 and not self.useless()

    @invariant()
    def worth(self) -> None:
        values = {name: self.value(name) for name in self.entries}
        for name, entry in self.entries.items():
            found = self.index.value(entry, self.now_s)
            assert found == pytest.approx(values[name]) and found >= 0
        least = self.index.least(self.now_s)
        assert (least is None) == (not values)
        if least is not None:
            assert self.index.value(least, self.now_s) <= min(values.values()) * (1 + 1e-9) + 1e-99

    @invariant()
    def kept(self) -> None:
        values = {name: self.index.value(e, self.now_s) for name, e in self.entries.items()}
        for worth in {0.0, *values.values()}:
            dear = [name for name, value in values.items() if value > worth]
            chunks = {p for name in [*dear, *self.writes] for p in below(name)} & self.chunks
            anchors = sum(self.entries[name].nbytes for name in dear)
            expected = anchors + sum(chunk_of(p).nbytes for p in chunks)
            assert self.index.kept_bytes(worth, self.now_s) == expected

    @invariant()
    def old(self) -> None:
        for ttl_s in (DAY_S, 7 * DAY_S):
            old = {n for n, e in self.entries.items() if self.now_s > e.used_s + ttl_s}
            found = {entry.hash for entry in self.index.expired(self.now_s, ttl_s)}
            assert found == {hash_of(name) for name in old}


TestIndexed = Indexed.TestCase
TestIndexed.settings = settings(max_examples=50, stateful_step_count=35)


def full(*prefixes: str) -> tuple[Index, dict[str, Entry]]:
    """An index with these entries and the chunks below them."""
    index, entries = Index(), {prefix: entry_of(prefix) for prefix in prefixes}
    for prefix, entry in entries.items():
        for part in below(prefix):
            index.add_chunk(chunk_of(part))
        assert index.add(entry)
    index.check()
    return index, entries


def test_worth_by_hand() -> None:
    """Two entries, one of which stands on the other's chunk; figures worked out by hand."""
    index = Index()
    for name, stop, nbytes in ((1, 64, 100), (2, 128, 300)):
        index.add_chunk(Chunk(name, stop, nbytes))
    short, long = Entry(1, 64, (1,), 14), Entry(2, 128, (1, 2), 50, hits=3)
    assert index.add(short) and index.add(long)
    assert index.value(short, 0.0) == 64 / (14 + 50)
    assert index.value(long, 0.0) == 4 * 128 / (50 + 50 + 300)
    assert index.value(long, DAY_S) == index.value(long, 0.0) / 2
    assert index.value(long, 2.5 * DAY_S) == pytest.approx(index.value(long, 0.0) / 2**2.5)
    assert index.worth_of_new(128, [1, 9], 20, 90) == 128 / (20 + 90 / 3 + 90)
    index.drop(short)
    assert index.value(long, 0.0) == 4 * 128 / (50 + 100 + 300), "it holds the chunk alone now"


def test_a_chunk_that_a_write_counts_on_stays_when_its_last_reader_goes() -> None:
    index, entries = full("ab")
    index.reserve([hash_of("a")]), index.reserve([hash_of("a")])
    assert set(index.drop(entries["ab"])) == {entries["ab"].name, chunk_of("ab").name}
    index.settle([hash_of("a")])
    assert index.orphans([hash_of("a")]) == [] and index.held_bytes() == chunk_of("a").nbytes
    assert index.kept_bytes(1e9, 0.0) == chunk_of("a").nbytes
    index.settle([hash_of("a")])
    assert index.orphans([hash_of("a"), hash_of("b")]) == [chunk_of("a").name]
    assert index.held_bytes() == 0
    index.check()


def test_of_equals_the_one_unused_longest_goes() -> None:
    """When nothing else tells them apart, as under a clock that went back."""
    index = Index()
    for name, used_s in ((1, 30.0), (2, 10.0), (3, 20.0)):
        index.add_chunk(Chunk(name, 64, 100))
        assert index.add(Entry(name, 64, (name,), 10, used_s=used_s))
    order = list[int]()
    while (least := index.least(5.0)) is not None:
        order.append(least.hash)
        index.drop(least)
    assert order == [2, 3, 1]


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S, 1e5 * YEAR_S, -1e5 * YEAR_S])
def test_a_clock_that_jumps_leaves_every_figure_sane(jump_s: float) -> None:
    index, entries = full("a", "ab", "bb")
    for entry, at_s in zip(entries.values(), count(1e9), strict=False):
        entry.used_s = at_s
    before = {name: index.value(entry, 1e9) for name, entry in entries.items()}
    for name, entry in entries.items():
        assert 0 <= index.value(entry, 1e9 + jump_s) <= before[name]
        if jump_s < 0:
            assert index.value(entry, 1e9 + jump_s) == before[name], "nothing is younger than new"
    gone = index.expired(1e9 + jump_s, 7 * DAY_S)
    assert len(gone) == (3 if jump_s > 0 else 0)


def test_names_of_files() -> None:
    assert chunk_name(0xABC) == "0000000000000abc.rows" == Chunk(0xABC, 64, 1).name
    assert anchor_name((1 << 64) - 1) == "ffffffffffffffff.anchor"
    assert Entry(5, 64, (5,), 1).name == anchor_name(5)


@pytest.mark.parametrize("broken", ["reader", "orphan", "chunk", "order", "line", "last"])
def test_canary_check_sees_a_broken_index(broken: str) -> None:
    index, entries = full("ab", "aab")
    entry = entries["aab"]
    if broken == "reader":
        index._readers[hash_of("a")] += 1
    elif broken == "orphan":
        index.add_chunk(chunk_of("bbb"))
    elif broken == "chunk":
        del index.chunks[hash_of("aa")]
    elif broken == "order":
        index.chunks[hash_of("aa")] = Chunk(hash_of("aa"), GRID, 1)
    elif broken == "line":
        entry.line += GRID
    else:
        index.entries[hash_of("aab")] = entry_of("ab")
    with pytest.raises((AssertionError, KeyError)):
        index.check()
