"""The exchange: whichever tier serves, the right rows come, and what they replace is put aside.

Method: real turns on the witness with every tier on. What a conversation is known to hold after
rows came from files is compared with the same turns without a drive; files that are spoiled or
can't be read leave the highest line that is still right, which the witness's formula checks. Covers
cache.disk.chain.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import GRID, box, engine, joined, serve, tier, tokens, verifier

from cache.account import Account
from cache.disk import reader as reader_module
from cache.disk.index import anchor_name, chunk_name
from cache.disk.tier import DiskTier, lines_of
from cache.exchange import COMPACTION, Exchange
from cache.journal import TurnRow
from cache.ports import PAGE
from cache.types import Ids
from engine.turn import Box
from sim.files import SimFiles

A = joined(tokens(2 * GRID + 10, 1))
SAID = tokens(20, 2)
LONG = joined(A, SAID, tokens(3 * GRID, 3))
"""A prompt, its answer, and what came then: five lines, of which two lie below the answer."""
OTHER = tokens(4 * GRID + 9, 4)


class Watched(SimFiles):
    """Files that remember what was opened, and may refuse to."""

    def __init__(self, state: dict[str, bytes] | None = None) -> None:
        super().__init__(state)
        self.opened = list[str]()
        self.refuses: dict[str, int] = {}

    def open(self, name: str) -> int:
        """A handle, or the error that was asked for."""
        self.opened.append(name)
        if (code := self.refuses.get(name)) is not None:
            raise OSError(code, "planted", name)
        return super().open(name)


def kept(*prompts: Ids) -> Watched:
    """A directory that holds an anchor at the last line of each, read cold by a process before."""
    files = SimFiles()
    for ids in prompts:
        of = engine("witness")
        found = tier(files, of, admit_after=1, head_anchors=0, branches=0)
        serve(box(of, disk=found), ids, tokens(2, 9))
        settle(found)
        found.close()
    return Watched(files.snapshot())


def settle(found: DiskTier) -> None:
    """All that is to be done is done and taken in."""
    for _ in range(3):
        found.keeper.jobs.drain()
        found.keeper.absorb()


class Seat:
    """An engine with every tier, over a directory, whose every prefill is checked."""

    def __init__(self, files: Watched | None, **rooms: Any) -> None:
        self.of, self.files = engine("witness"), files
        disk = None if files is None else tier(files, self.of, mode="read")
        self.on: Box = box(self.of, disk=disk, **rooms)
        self.check = verifier(self.of)
        if files is not None:
            files.opened.clear()

    @property
    def exchange(self) -> Exchange:
        """What is tested."""
        return self.on.stack.exchange

    @property
    def account(self) -> Account:
        """Of the rows in place."""
        return self.on.stack.resident.account

    @property
    def parked(self) -> list[tuple[str, str | None, int]]:
        """(kind, session, rows) of what was put aside."""
        entries = self.on.stack.park.entries
        return [(entry.kind, entry.account.session, entry.top) for entry in entries]

    def ask(
        self, ids: Ids, answer: Ids = SAID, session: str | None = "a", kind: str = "turn"
    ) -> TurnRow:
        """A turn, with its rows checked."""
        row, verdict = serve(self.on, ids, answer, check=self.check, session=session, kind=kind)
        assert verdict is not None and verdict.ok, verdict
        return row

    def read(self) -> list[str]:
        """Files that were read since the last look, by what they are: a chunk's end, or anchor."""
        assert self.files is not None
        names = [chunk_name(name) for name in HASHES]
        read = [str(names.index(n) + 1) if n in names else n[-6:] for n in self.files.opened]
        self.files.opened.clear()
        return [name for name in read if name not in ("counts", "s.tmp")]


def spoil(files: Watched, *names: str) -> Watched:
    """The same files with a byte of each of these changed."""
    state = files.snapshot()
    for name in names:
        data = bytearray(state[name])
        data[PAGE + 1] ^= 1
        state[name] = bytes(data)
    return Watched(state)


HASHES = lines_of(LONG, GRID)
CHUNKS = [chunk_name(name) for name in HASHES]


# which tier serves


def test_where_the_rows_of_each_request_came_from() -> None:
    rooms = {"park_rows": 4_000, "store_bytes": 1_000_000, "session_trim": True}
    seat = Seat(kept(LONG), **rooms)
    assert (seat.ask(OTHER, session="b").source, seat.exchange.tier) == ("cold", "resident")
    assert (seat.ask(OTHER, session="b").source, seat.exchange.tier) == ("grid", "resident")
    assert (seat.ask(LONG).source, seat.exchange.tier) == ("disk.grid", "disk")
    longer = joined(OTHER, SAID, tokens(9, 5))
    assert (seat.ask(longer, session="b").source, seat.exchange.tier) == ("park.end", "park")
    seat.on.stack.park.entries.clear()
    longer = joined(LONG, SAID, tokens(9, 5))
    assert (seat.ask(longer).source, seat.exchange.tier) == ("store.end", "store")


# rows from files


def test_only_what_lies_above_the_rows_in_place_is_read() -> None:
    seat = Seat(kept(LONG))
    assert seat.ask(LONG).source == "disk.grid"
    assert seat.read() == ["anchor", "1", "2", "3", "4", "5"]
    seat = Seat(kept(LONG))
    seat.ask(A)
    row = seat.ask(LONG)
    assert (row.source, row.cached, row.taint) == ("disk.grid", 5 * GRID, len(LONG))
    assert seat.read() == ["anchor", "3", "4", "5"], "the answer's rows are no cold prefill's"
    assert seat.account.anchors.lines == [GRID, 2 * GRID, 5 * GRID], "and lower ones stay"
    row = seat.ask(joined(LONG[: 2 * GRID + 3], tokens(GRID, 6)), session="a")
    assert (row.source, row.cached) == ("grid", 2 * GRID)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_answers_that_files_bring_back_are_still_known(place: int) -> None:
    """What the rows are said to hold does not depend on where they came from."""
    head = (A, LONG[: len(A) + 3], LONG[: len(A) + len(SAID) + 2])[place]
    known = list[Any]()
    for files in (None, kept(LONG)):
        seat = Seat(files, keeps_end=False)
        seat.ask(A)
        if place:
            seat.ask(head, tokens(2, 8))  # Only the head's rows are in place now.
        row = seat.ask(LONG, tokens(4, 7))
        assert row.source == ("grid" if files is None else "disk.grid")
        known.append((seat.account.generations, row.taint))
    assert known[0][0] == known[1][0], "the same answers"
    if place != 1:
        assert len(A) in [answer.start for answer in known[1][0]]


def test_an_answer_that_files_bring_in_part_is_known_when_all_of_it_is_read() -> None:
    """The entry ends inside the answer, whose rest is forwarded."""
    said = tokens(3 * GRID, 2)
    prompt = joined(A, said, tokens(20, 3))
    known = list[Any]()
    for files in (None, kept(prompt[: 4 * GRID + 1])):
        seat = Seat(files, keeps_end=False)
        seat.ask(A, said)
        row = seat.ask(prompt, tokens(4, 7))
        assert row.cached == (2 * GRID if files is None else 4 * GRID)
        known.append(seat.account.generations)
    assert known[0] == known[1] and len(known[1]) == 2


def test_what_the_files_replace_is_put_aside_and_remembered() -> None:
    seat = Seat(kept(LONG), park_rows=4_000)
    seat.ask(OTHER, session="b")
    assert seat.ask(LONG).source == "disk.grid"
    assert seat.parked == [("park", "b", len(OTHER) + len(SAID))]
    assert seat.exchange.ghosts.shared(OTHER) == len(OTHER)
    row = seat.ask(joined(OTHER, SAID, tokens(5, 6)), session="b")
    assert row.source == "park.end" and row.cached == len(OTHER) + len(SAID)


# files that are no good


@pytest.mark.parametrize("bad", range(6))
@pytest.mark.parametrize("warm", [False, True])
def test_a_spoiled_file_leaves_the_highest_line_that_is_right(bad: int, warm: bool) -> None:
    """`bad` is the chunk, 0 the anchor; a shorter entry at line 3 stands below the one at 5."""
    name = CHUNKS[bad - 1] if bad else anchor_name(HASHES[-1])
    seat = Seat(spoil(kept(LONG[: 3 * GRID + 1], LONG), name))
    if warm:
        seat.ask(A)
    row = seat.ask(LONG)
    lower = 3 * GRID if bad in (0, 4, 5) or (warm and bad < 3 and bad) else 0
    if warm and bad in (1, 2):
        expected, source = 5 * GRID, "disk.grid"  # Nobody reads what is in place.
    elif lower:
        expected, source = lower, "disk.grid"
    else:
        # Checked rows that came have no state at their end, so the head's own anchor serves.
        expected, source = (2 * GRID, "grid") if warm else (0, "cold")
    assert (row.cached, row.source) == (expected, source)
    assert (seat.exchange.tier == "disk") == (source == "disk.grid")
    again = seat.ask(LONG)
    assert again.cached == 5 * GRID and again.source == "grid"
    assert seat.account.taint == len(LONG)


def test_a_line_where_the_prompt_ends_leaves_nothing_to_forward() -> None:
    seat = Seat(kept(LONG[: 3 * GRID + 1], LONG))
    row = seat.ask(LONG[: 5 * GRID])
    assert (row.source, row.cached) == ("disk.grid", 3 * GRID)


def test_what_is_no_higher_than_what_has_come_is_not_read() -> None:
    """Of two entries the longer is spoiled, the shorter ends where the rows in place do."""
    seat = Seat(spoil(kept(LONG[: 2 * GRID + 1], LONG), CHUNKS[2]))
    seat.ask(A)
    assert seat.files is not None
    seat.files.opened.clear()
    row = seat.ask(LONG)
    assert (row.cached, row.source) == (2 * GRID, "grid")
    assert seat.read().count("anchor") == 1
    # Lines that came are lines of the rows in place.
    seat = Seat(kept(LONG))
    seat.ask(A), seat.ask(LONG)
    resident = seat.on.stack.resident
    assert resident.anchored_below(5 * GRID) == 5 * GRID
    assert resident.anchored_below(5 * GRID - 1) == 2 * GRID


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_a_file_that_cannot_be_opened_costs_a_colder_start(code: int) -> None:
    seat = Seat(kept(LONG))
    assert seat.files is not None
    seat.ask(A)
    seat.files.refuses = {CHUNKS[3]: code}
    row = seat.ask(LONG)
    assert (row.source, row.cached, seat.exchange.tier) == ("grid", 2 * GRID, "resident")
    seat.files.refuses = {}
    seat.on.stack.resident.start_cold(seat.of)
    # What says nothing of the file leaves the entry; what does takes it.
    expected = "disk.grid" if code == errno.EMFILE else "cold"
    assert seat.ask(LONG).source == expected


def test_memory_that_is_refused_costs_a_colder_start() -> None:
    seat = Seat(kept(LONG))
    disk = seat.on.stack.disk
    assert disk is not None
    disk.grow = lambda what, nbytes: False
    assert seat.ask(LONG).source == "cold" and seat.read() == []
    disk.grow = lambda what, nbytes: True
    seat.on.stack.resident.start_cold(seat.of)
    assert seat.ask(LONG).source == "disk.grid"


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_copy_without_memory_costs_a_colder_start(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the sections, of the first chunk above the rows in place, or of the last."""
    seat = Seat(kept(LONG))
    seat.ask(A)
    put, calls = reader_module.put_chunk, list[int]()

    def fails(*arguments: Any) -> Any:
        calls.append(len(calls))
        if not at or len(calls) == at:
            raise torch.OutOfMemoryError("out of memory")
        return put(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(reader_module, "put_chunk" if at else "_copies", fails)
        row = seat.ask(LONG)
    assert (row.source, row.cached, seat.exchange.tier) == ("grid", 2 * GRID, "resident")
    assert seat.files is not None and len(seat.files.handles) == 1, "the lock's alone"
    seat.on.stack.resident.start_cold(seat.of)
    assert seat.ask(LONG).source == "disk.grid", "nothing is wrong with the files"


# what is kept of the rows that go


def two_answers() -> Ids:
    """A conversation of two turns."""
    return joined(A, SAID, tokens(GRID, 5))


CASES: dict[str, tuple[Callable[[Seat], object], list[tuple[str, str | None, int]]]] = {
    "another conversation": (
        lambda seat: seat.ask(OTHER, session="b"),
        [("park", "a", len(A) + len(SAID))],
    ),
    "an edit of the last message": (
        lambda seat: seat.ask(joined(A[:-5], tokens(9, 6))),
        [],
    ),
    "another start in the same session": (
        lambda seat: seat.ask(joined(A[:20], OTHER)),
        [("park", "a", len(A) + len(SAID))],
    ),
    "more than half in common, of another session": (
        lambda seat: seat.ask(joined(A[:-5], tokens(9, 6)), session="b"),
        [("park", "a", len(A) + len(SAID))],
    ),
    "it goes on": (lambda seat: seat.ask(two_answers()), []),
    "a compaction": (
        lambda seat: seat.ask(joined(A[:GRID], tokens(40, 6)), kind=COMPACTION),
        [("pin", "a", 2 * GRID)],
    ),
}


@pytest.mark.parametrize("what", sorted(CASES))
def test_what_is_put_aside(what: str) -> None:
    act, expected = CASES[what]
    seat = Seat(None, park_rows=4_000, pin_rows=4_000)
    seat.ask(A)
    act(seat)
    assert seat.parked == expected


def test_a_titles_rows_are_put_aside_for_nobody() -> None:
    seat = Seat(None, park_rows=4_000)
    seat.ask(A, kind="title")
    seat.ask(OTHER, session="b")
    assert seat.parked == []


# canaries


def test_canary_rows_that_were_overwritten_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cut, rows that a failed read has overwritten would still be believed."""
    seat = Seat(spoil(kept(LONG), CHUNKS[4]))
    seat.ask(joined(LONG[: 2 * GRID + 5], tokens(3 * GRID, 6)))
    monkeypatch.setattr(type(seat.on.stack.resident), "cut", lambda self, length: None)
    with pytest.raises(AssertionError):
        seat.ask(LONG)
