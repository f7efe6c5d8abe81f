"""Every conversation that comes back from the drive is what it was, bit for bit, on every model.

Method: turns through the real engine and caches with files in memory that keep direct I/O's rules;
every prompt is held to its gate. State is compared as bytes: all rows, every anchor, the end. A
restart is a new engine of the same weights over the same files. The canaries plant one fault each.
Also covers cache.spill.buffers, cache.spill.config, cache.spill.entry, cache.spill.manifest,
cache.spill.names, cache.spill.offers, cache.spill.pipeline, cache.spill.reader, cache.spill.saver,
cache.spill.shapes, cache.spill.shelf, cache.spill.spilled, cache.spill.writer, cache.source,
cache.planned and cache.loading.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from homes import Home
from support import CANARIES, GRID, MODELS, joined, plain, tokens

from cache import park as park_module
from cache.account import Account
from cache.align import Alignment
from cache.anchors import AnchorConfig
from cache.exchange import Exchange
from cache.source import Source, in_place, parked
from cache.spill import reader as reader_module
from cache.spill.codec import CodecConfig
from cache.spill.entry import Entry
from cache.spill.offers import Offers
from cache.spill.reader import Reader
from cache.spill.saver import Saver
from cache.spill.sums import sums_of
from cache.types import Ask
from engine.adapter import Engine
from replay.pieces import TracePieces

ALIGNED = {"meeting": Alignment(TracePieces())}
RAW, PACKED = CodecConfig(mode="raw"), CodecConfig(frame_bytes=4_096, plane_min=1)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same bytes."""
    return a.shape == b.shape and bool((a.view(torch.uint8) == b.view(torch.uint8)).all())


def holds(home: Home, before: dict[str, torch.Tensor]) -> list[str]:
    """What of a state in place is not what it was; every row and every copy is compared."""
    after = home.state()
    return [name for name in after if name not in before or not same(before[name], after[name])]


# a planned stop and a new process


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("codec", [RAW, PACKED], ids=["raw", "packed"])
def test_a_planned_stop_and_a_new_process_keep_every_bit(model: str, codec: CodecConfig) -> None:
    home, twin = Home(model, codec=codec), Home(model, codec=codec)
    for one in (home, twin):
        one.turn("a", more=300)
        one.turn("a")
    before = home.state()
    line = home.restarts()
    assert line == home.on.stack.resident.account.valid
    assert holds(home, before) == []
    # The end, and the newest four of the grid's.
    kept = sorted({int(n.split(".")[1]) for n in home.state() if n.startswith("anchor")})
    grid = {int(n.split(".")[1]) for n in before if n.startswith("anchor")}
    assert kept == sorted(line for line in grid if line % GRID == 0)[-4:]
    assert any(name.startswith("end") for name in home.state())
    row, other = home.turn("a"), twin.turn("a")
    assert (row.source, row.cached, row.gate) == (other.source, other.cached, other.gate)
    assert row.source == "end"
    left, right = home.state(), twin.state()
    assert all(same(left[name], right[name]) for name in left if name in right)


@pytest.mark.parametrize("model", MODELS)
def test_parked_conversations_go_to_the_drive_at_a_planned_stop_as_well(model: str) -> None:
    home = Home(model, rooms={"park_rows": 4_000})
    for _ in range(2):
        for session in "abc":
            home.turn(session, more=200)
    assert home.stops() == 3
    home.starts()
    assert home.comes_back() == home.on.stack.end
    sources = [home.turn(session).source for session in "cba"]
    assert sources == ["end", "spill.end", "spill.end"]


def test_a_second_stop_writes_nothing_and_the_third_start_still_resumes_at_the_end() -> None:
    home = Home("witness")
    home.turn("a", more=300)
    home.turn("a")
    home.restarts()
    names = set(home.files.list())
    home.restarts()
    assert set(home.files.list()) == names
    told = [event.why.split()[1:3] for event in home.of_kind("write")]
    assert told[1] == ["written=0", f"kept={told[0][0].removeprefix('written=')}"]
    assert home.turn("a").source == "end"


@pytest.mark.parametrize("model", MODELS)
def test_without_a_planned_stop_nothing_comes_back_by_itself(model: str) -> None:
    home = Home(model)
    home.turn("a", more=300)
    home.turn("b", more=300)
    home.crashes()
    home.starts()
    assert home.comes_back() is None
    assert home.turn("a").source == "spill.end"
    assert home.turn("b").source == "cold"


# evictions


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("codec", [RAW, PACKED], ids=["raw", "packed"])
def test_evicted_read_back_and_evicted_again_it_keeps_its_end(
    model: str, codec: CodecConfig
) -> None:
    home = Home(model, codec=codec)
    home.turn("a", more=300)
    for _ in range(3):
        assert home.turn("b", more=100).source in ("cold", "spill.end")
        row = home.turn("a")
        assert (row.source, row.gate) == ("spill.end", "greedy")
        assert row.prompt - row.cached <= 71
    assert not home.of_kind("fail") and not home.of_kind("damage")


def test_a_conversation_shorter_than_the_least_is_not_written() -> None:
    home = Home("witness", tokens_min=400)
    home.turn("a", more=300)
    home.turn("b", more=500)
    home.turn("a", more=200)
    assert [event.session for event in home.of_kind("write")] == ["b"]


def test_what_the_pool_can_hold_is_not_written_and_what_it_gives_up_is() -> None:
    home = Home("witness", rooms={"park_rows": 700}, tokens_min=10_000, park_tokens_min=100)
    home.turn("a", more=400)
    home.turn("b", more=400)
    assert home.turn("a").source == "park.end" and not home.of_kind("write")
    home.turn("c", more=700)
    given = [event for event in home.of_kind("write") if event.why.startswith("park")]
    assert [event.session for event in given] == ["b"]
    assert home.turn("b").source == "spill.end"


@pytest.mark.parametrize("model", MODELS)
def test_a_parked_one_that_stands_on_rows_in_place_is_written_whole(model: str) -> None:
    """They share a head: the parked one's first rows are the other's, in place."""
    head = tokens(4 * GRID, 7)
    home = Home(model, rooms={"park_rows": 700}, tokens_min=10_000)
    for session in "abcab":
        before = home.said.get(session, head)
        home.said[session] = before
        row = home.turn(session, more=250)
    assert home.of_kind("write") and row.source in ("park.end", "spill.end")
    assert not home.of_kind("fail")


@pytest.mark.parametrize("model", MODELS)
def test_a_guest_comes_from_the_drive_and_leaves_the_rows_in_place_as_they_were(model: str) -> None:
    home = Home(model, rooms={"guest_tokens": 400, "stash_rows": 1_000})
    home.turn("short", more=100)
    home.turn("long", more=1_200)
    row = home.turn("short")
    assert (row.source, row.guest) == ("spill.end", True)
    row = home.turn("long")
    assert (row.source, row.guest) == ("end", False)


@pytest.mark.parametrize("chunks", [5, 6])
def test_a_chunk_less_to_forward_is_not_worth_moving_a_conversation(chunks: int) -> None:
    home = Home("witness")
    home.turn("a", more=6 * GRID + 1)
    # Four chunks of it stay in place.
    home.said["b"] = joined(home.said["a"][: 4 * GRID], tokens(200, 3))
    home.turn("b", more=10)
    row = home.sends(joined(home.said["a"][: chunks * GRID + 1], tokens(60, 9)), session="c")
    if chunks == 5:
        assert (row.source, row.cached) == ("grid", 4 * GRID)
    else:
        assert (row.source, row.cached) == ("spill.grid", 6 * GRID)


# incremental by content


def test_only_what_changed_is_written_a_second_time() -> None:
    home = Home("witness", anchors_kept=0)
    home.turn("a", more=20 * GRID)
    home.turn("b", more=100)
    assert home.turn("a", more=20).source == "spill.end"
    home.turn("b")
    first, again = (e for e in home.of_kind("write") if e.session == "a")
    counts = [dict(part.split("=") for part in e.why.split()[1:3]) for e in (first, again)]
    # A block that grew and the end.
    assert int(counts[1]["written"]) <= 3 and int(counts[1]["kept"]) == 20
    assert int(counts[0]["kept"]) == 0 and again.nbytes < first.nbytes / 4
    assert home.turn("a").source == "spill.end"


def test_a_save_that_finds_all_unchanged_keeps_the_end_which_memory_lost() -> None:
    home = Home("witness")
    home.turn("a", more=300)
    home.turn("b", more=100)
    assert home.turn("a", more=70).source == "spill.end"
    home.stops()
    home.starts()
    home.comes_back()
    account = home.on.stack.resident.account
    end, account.end = account.end, None
    assert end is not None
    home.turn("b", more=300)
    assert home.turn("a").cached == end.tokens


def test_rows_that_changed_take_the_end_with_them() -> None:
    """The end of other rows is no end of these, however many they are."""
    home = Home("witness")
    home.turn("a", more=300)
    home.turn("b", more=100)
    old = home.said["a"]
    home.said["a"] = joined(old[:250], tokens(len(old) - 250, 99))
    home.sends(home.said["a"], session="a")
    home.on.stack.resident.account.end = None
    home.turn("b")
    entry = next(e for e in home.spill.shelf.whole() if e.session == "a")
    assert [copy.kind for copy in entry.copies if copy.kind == "end"] == []


@pytest.mark.parametrize("model", MODELS)
def test_two_conversations_of_one_session_do_not_write_each_other_anew(model: str) -> None:
    """An agent and its helper under one name, in turn: only the head is common."""
    home = Home(model, anchors_kept=0)
    head = tokens(2 * GRID, 7)
    talks = {"agent": head, "helper": head}
    for number in range(6):
        who = ("agent", "helper")[number % 2]
        row = home.sends(joined(talks[who], tokens(5 * GRID, 50 + number)), session="one")
        talks[who] = home.answered
        assert row.source == ("cold", "grid", "spill.end")[min(number, 2)]
        # Whom its session leaves is not written for want of room, in a pause each is.
        assert home.rests() == 1
        home.looks()
    kept = [int(e.why.split()[2].removeprefix("kept=")) for e in home.of_kind("write")]
    assert kept[:2] == [0, 0] and all(count >= 7 for count in kept[2:])


@pytest.mark.parametrize("model", MODELS)
def test_rows_that_are_in_place_are_not_read(model: str) -> None:
    head = tokens(6 * GRID, 7)
    home = Home(model)
    home.said = {"a": head, "b": head}
    home.turn("a", more=3 * GRID)
    home.turn("b", more=3 * GRID)
    home.turn("a")
    (hit,) = home.of_kind("hit")
    told = dict(part.split("=") for part in hit.why.split())
    assert int(told["blocks_read"]) <= 4
    read = home.spill.stats()["read_bytes"]
    home.turn("b")
    assert home.turn("b").source == "end"
    assert home.spill.stats()["read_bytes"] > read


def test_what_was_brought_back_is_not_brought_back_again() -> None:
    """A chat whose client leaves thoughts out: what memory offers is counted as the drive's is."""
    home = Home("witness", rooms=ALIGNED)
    home.says("a", more=3 * GRID)
    home.says("b", more=3 * GRID)
    assert home.says("a").source == "spill.end"
    for _ in range(3):
        assert home.says("a").source == "end"
    assert len(home.of_kind("hit")) == 1


# copies that differ from the rows


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("hidden", [0, 7])
@pytest.mark.parametrize("drops", [True, False])
def test_a_copy_without_what_it_never_saw_continues_an_entry(
    model: str, hidden: int, drops: bool
) -> None:
    home, process = Home(model, rooms=ALIGNED), model == "witness" or hidden > 0
    for _ in range(2):
        home.says("a", hidden=hidden, drops=drops)
    end = home.on.stack.end
    home.says("b", more=3 * GRID)
    if process:
        home.restarts()
    row = home.says("a", hidden=hidden, drops=drops)
    assert (row.source, row.cached) == ("spill.end", end)
    assert row.prompt - row.asked == 2 * (hidden + (30 if drops else 0))


@pytest.mark.parametrize("model", MODELS)
def test_a_copy_that_parts_inside_an_answer_resumes_below_it(model: str) -> None:
    home = Home(model, rooms=ALIGNED)
    home.says("a", more=3 * GRID)
    home.says("a")
    home.says("b", more=3 * GRID)
    home.said["a"] = joined(home.said["a"][: 5 * GRID + 20], tokens(40, 4))
    row = home.says("a")
    assert row.source == "spill.grid" and row.cached % GRID == 0 and row.gate == "bits"


# files that are no good


def pieces(home: Home, kind: str) -> list[str]:
    return sorted(name for name in home.files.list() if name.endswith(kind))


def spoiled(home: Home, name: str, at: int, flip: int = 1) -> None:
    """One byte of a file is another."""
    handle = home.files.open(name)
    page = at // 4_096 * 4_096
    into = home.files.buffer(4_096)
    home.files.start_read(handle, page, into).wait()
    into[at - page] ^= flip
    home.files.start_write(handle, page, into).wait()
    home.files.close(handle)


DAMAGE = [(RAW, 100), (RAW, 4_096 + 70), (PACKED, 100), (PACKED, 4_096 + 70)]
"""Codec, and the byte that is another: of the header, and of what follows."""
CASES = [
    (model, *how) for model in MODELS for how in (DAMAGE if model == "witness" else DAMAGE[1:3])
]


@pytest.mark.parametrize("kind", [".block", ".anchor"])
@pytest.mark.parametrize(("model", "codec", "at"), CASES)
def test_a_bad_file_costs_the_entry_and_no_answer(
    model: str, codec: CodecConfig, at: int, kind: str
) -> None:
    home = Home(model, codec=codec)
    home.turn("a", more=300)
    home.turn("b", more=100)
    names = pieces(home, kind)
    spoiled(home, names[-1] if kind == ".anchor" else names[2], at)
    row = home.turn("a")
    assert row.source == "cold" and len(home.of_kind("damage")) == 1
    assert {name[:16] for name in home.files.list() if name.endswith(kind)} == {f"{2:016x}"}
    home.turn("b")
    assert home.turn("a").source == "spill.end"


@pytest.mark.parametrize("model", MODELS)
def test_what_a_failed_restore_overwrote_is_nobodys(model: str) -> None:
    """Rows in place that shared no more than a head with the entry: that head stays."""
    head = tokens(3 * GRID, 7)
    home = Home(model, codec=RAW)
    home.said = {"a": head, "b": head}
    home.turn("a", more=4 * GRID)
    home.turn("b", more=4 * GRID)
    spoiled(home, pieces(home, ".block")[-1], 5_000)
    row = home.turn("a")
    assert (row.source, row.cached) == ("grid", 3 * GRID)


@pytest.mark.parametrize("what", ["fingerprint", "layout", "block_rows", "manifest"])
def test_entries_of_something_else_are_gone_at_the_next_start(what: str) -> None:
    home = Home("witness")
    home.turn("a", more=300)
    home.stops()
    if what == "manifest":
        spoiled(home, pieces(home, ".manifest")[0], 4_096 + 40)
        home.starts()
    elif what == "block_rows":
        home.starts(block_rows=2 * GRID)
    elif what == "layout":
        home.model = "third"
        home.starts()
    else:
        home.ports = {"identity": plain("e" * 64)}
        home.starts()
    assert home.comes_back() is None
    assert home.spill.shelf.whole() == []
    assert not any(name.endswith((".block", ".anchor", ".manifest")) for name in home.files.list())
    assert home.turn("a").source == "cold"


@pytest.mark.parametrize("model", MODELS[1:])
def test_a_process_reads_what_another_codec_wrote_and_goes_on_in_its_own(model: str) -> None:
    home = Home(model, codec=RAW)
    home.turn("a", more=6 * GRID)
    home.restarts(codec=PACKED)
    assert home.turn("a").source == "end"
    home.turn("b", more=100)
    entry = next(e for e in home.spill.shelf.whole() if e.session == "a")
    sizes = {block.piece.nbytes for block in entry.blocks}
    assert len(sizes) > 1, "one is packed, the others as they were"
    assert home.turn("a").source == "spill.end"
    home.restarts(codec=RAW)
    assert home.turn("a").source == "end"


# stopped between two blocks


def test_a_save_that_was_stopped_is_taken_up_where_it_was() -> None:
    home = Home("witness", anchors_kept=0)
    home.turn("a", more=10 * GRID)
    source = in_place(home.on.stack.resident.account, home.of)
    for most in (2, 5):
        asked = iter(range(100))
        outcome = home.spill.writer.save(
            source, "idle", lambda asked=asked, most=most: next(asked) >= most
        )
        assert outcome.why == "yielded"
        assert home.spill.offer(*_question(home)) is None
    blocks = len(pieces(home, ".block"))
    assert blocks == 7
    assert home.spill.writer.save(source, "idle").ok
    told = home.spill.notes.events()[-1].why.split()
    assert f"kept={blocks}" in told
    assert len(pieces(home, ".block")) == 11


def _question(home: Home) -> Any:
    return Ask(home.said["a"]), Account.empty(8, AnchorConfig()), home.of.cost()


def test_a_pause_writes_ahead_and_takes_nothing_away() -> None:
    home = Home("witness", rooms={"park_rows": 3_000})
    home.turn("a", more=300)
    home.turn("b", more=300)
    assert home.rests() == 2 and home.rests() == 0
    assert home.turn("a").source == "park.end"
    home.crashes()
    home.starts()
    assert home.turn("b").source == "spill.end"


def test_a_drive_at_its_floor_costs_a_request_nothing() -> None:
    home = Home("witness", min_free_bytes=1 << 60)
    home.turn("a", more=300)
    home.turn("b", more=100)
    assert [event.why for event in home.of_kind("skip")] == ["evict: floor"]
    spent = home.spill.stats()["write_s"]
    assert home.spill.held_bytes() == 0 and not any(spent.values()), "no buffer was made"


def test_a_pause_writes_only_what_has_grown_by_enough() -> None:
    home = Home("witness", idle_tokens_min=100)
    home.turn("a", more=300)
    assert home.rests() == 1
    home.turn("a", more=60)
    assert home.rests() == 0
    home.turn("a", more=60)
    assert home.rests() == 1


# canaries: each fault must turn a gate red


def red(check: Callable[[], object]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check()


def canary_gates(model: str) -> None:
    test_a_planned_stop_and_a_new_process_keep_every_bit(model, RAW)
    test_evicted_read_back_and_evicted_again_it_keeps_its_end(model, RAW)


@pytest.mark.parametrize("model", CANARIES)
def test_canary_gates_are_green_as_they_are(model: str) -> None:
    canary_gates(model)


@pytest.mark.parametrize("model", CANARIES)
def test_canary_a_row_off(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(account: Account, model: Engine) -> Source:
        source = in_place(account, model)
        views = model.cache_state().views

        def rows(start: int, stop: int) -> list[torch.Tensor]:
            right = source.rows(start, stop)
            return [row.roll(1, view.axis) for row, view in zip(right, views, strict=True)]

        return dataclasses.replace(source, rows=rows)

    monkeypatch.setattr("cache.park.in_place", off)
    monkeypatch.setattr("cache.planned.in_place", off)
    red(lambda: canary_gates(model))


@pytest.mark.parametrize("model", CANARIES)
def test_canary_sums_that_are_not_compared(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every file's checksum off as well, a flipped bit must come through to a gate."""
    monkeypatch.setattr(reader_module, "unsealed", lambda header, image, layout: "")
    test_a_bad_file_costs_the_entry_and_no_answer(model, RAW, 4_096 + 70, ".block")
    truth = sums_of
    seen: list[Any] = []

    def believed(rows: Any) -> Any:
        return seen.pop() if seen else truth(rows)

    def placed(self: Reader, block: Any, *rest: Any) -> str:
        seen.append(list(block.piece.sums))
        why = _placed(self, block, *rest)
        seen.clear()
        return why

    _placed = Reader._placed
    monkeypatch.setattr(reader_module, "sums_of", believed)
    monkeypatch.setattr(Reader, "_placed", placed)
    red(lambda: test_a_bad_file_costs_the_entry_and_no_answer(model, RAW, 4_096 + 70, ".block"))


def test_canary_a_skip_that_believes_the_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        home = Home("witness")
        home.turn("a", more=300)
        home.turn("b", more=100)
        home.turn("a")
        home.files.unlink(pieces(home, ".block")[1])
        home.turn("b")
        assert home.turn("a").source == "spill.end"

    lost()
    monkeypatch.setattr(Saver, "_there", lambda self, piece: True)
    red(lost)


def test_canary_a_skip_by_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of equal tokens that other steps wrote are other rows."""

    def kept(self: Saver, entry: Entry, source: Any, start: int, stop: int, sums: Any) -> Any:
        for block in entry.blocks:
            if block.start == start and block.stop == stop and entry.account is not None:
                ids = entry.account.ids[start:stop]
                if (ids == source.account.ids[start:stop]).all():
                    return block
        return None

    def rewritten() -> None:
        home = Home("witness", codec=RAW)
        home.turn("a", more=GRID, answer=3 * GRID)
        home.turn("b", more=100)
        # The same tokens, read as a prompt: a cold prefill's rows now.
        for entry in home.spill.shelf.whole():
            if entry.session == "a":
                entry.account.anchors = type(entry.account.anchors)(entry.account.anchors.config)
                entry.account.end = None
        home.sends(home.said["a"], session="a")
        home.said["a"] = home.answered
        home.turn("b")
        home.turn("a")

    rewritten()
    monkeypatch.setattr(Saver, "_kept", kept)
    red(rewritten)


def test_canary_an_entry_read_over_no_more_rows_than_its_tokens_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows in place with the entry's tokens that a verify block wrote are not the entry's rows."""
    beside = Offers.beside

    def shared(self: Offers, entry: Entry, in_place: Any, line: int) -> Any:
        found = beside(self, entry, in_place, line)
        found.base = min(found.shared, line) // GRID * GRID
        return found

    def mixed() -> None:
        home = Home("witness", codec=RAW)
        home.turn("a", more=GRID, answer=4 * GRID)
        home.turn("a", more=2 * GRID)
        home.turn("b", more=100)
        # The same tokens as a prompt: other rows in place, which the entry must not stand on.
        said, home.said["c"] = home.said["a"], home.said["a"][: 4 * GRID]
        home.on.stack.spill.writer.config = dataclasses.replace(home.spill.config, mode="off")
        home.turn("c", more=5)
        home.on.stack.spill.writer.config = dataclasses.replace(home.spill.config, mode="on")
        home.said["a"] = said
        assert home.turn("a").source == "spill.end"

    mixed()
    monkeypatch.setattr(Offers, "beside", shared)
    red(mixed)


def test_canary_a_guest_in_the_house_is_no_part_of_a_parked_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who leaves the pool while a guest's rows lie where its own should be can't be written."""

    def borrowed() -> list[str | None]:
        home = Home(
            "witness",
            rooms={"park_rows": 520, "guest_tokens": 500, "stash_rows": 2_000},
            tokens_min=10_000,
        )
        head = tokens(4 * GRID, 7)
        home.said = {"a": head, "b": head}
        home.turn("a", more=250)
        home.turn("b", more=1_200)
        assert home.on.stack.park.entries[0].base > 0
        for _ in range(4):
            home.turn("b", more=10)
        row = home.turn("guest", more=380)
        assert row.guest
        home.turn("b", more=10)
        home.turn("c", more=600)
        # Nothing in place has the head: all of it is read.
        home.turn("a")
        return [event.session for event in home.of_kind("write")]

    assert "a" not in borrowed()
    monkeypatch.setattr(
        park_module.Park,
        "_left",
        lambda self, entry: self.leaves(parked(entry, self._model), "park"),
    )
    red(borrowed)


def test_canary_rows_in_place_that_a_failed_restore_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(self: Exchange, *rest: Any) -> Any:
        cut, self._resident.cut = self._resident.cut, lambda length: None  # type: ignore[method-assign]
        try:
            return restored(self, *rest)
        finally:
            self._resident.cut = cut  # type: ignore[method-assign]

    restored = Exchange._restored
    monkeypatch.setattr(Exchange, "_restored", kept)
    red(lambda: test_what_a_failed_restore_overwrote_is_nobodys("witness"))
