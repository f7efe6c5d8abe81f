"""Every swap, stash, pin and park against a cold prefill, on every kind of model.

Method: conversations through the real turn with forced answers; the verifier compares everything
after each prefill. A resume at a grid anchor that was parked must be a cold prefill's bits; one at
an end or a checkpoint is held to the greedy gate (bit for bit below its taint line). The canaries
plant one fault each, and a gate must turn red. Covers cache.park, cache.parked, cache.guest and
cache.visit.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support import CANARIES, GRID, MODELS, box, engine, forced, joined, serve, tokens, verifier

from cache import guest, park, visit
from cache.anchors import Anchor
from cache.journal import TurnRow
from cache.parked import Parked
from cache.types import Gate, Ids
from engine.turn import Box, Prompt, Tokens, turn
from replay.verify import Verdict, Verifier

HEAD = tokens(2 * GRID + 10, 50)
"""What all conversations begin with."""


class Street:
    """Several conversations at one engine, each with its own text."""

    def __init__(self, model: str, **room: int) -> None:
        self.model = model
        self.of = engine(model)
        self.on: Box = box(self.of, **room)
        self.check: Verifier = verifier(self.of)
        self.texts: dict[str, Ids] = {}
        self.count = 0

    def says(self, who: str, more: int = 90, answer: int = 20, **how: object) -> TurnRow:
        """The next turn of a conversation; its gate must hold."""
        self.count += 1
        before = self.texts.get(who, HEAD)
        ids = joined(before, tokens(more, 100 * self.count))
        written = tokens(answer, 100 * self.count + 1)
        self.texts[who] = joined(ids, written)
        return self.sends(ids, written, who, **how)

    def sends(self, ids: Ids, written: Ids, who: str, **how: object) -> TurnRow:
        row, verdict = serve(self.on, ids, written, check=self.check, session=who, **how)  # type: ignore[arg-type]
        self.verdict = verdict
        assert verdict is not None
        assert verdict.ok, verdict
        return row


PLENTY = {"park_rows": 8_000, "checkpoint_tokens": 16}


@pytest.mark.parametrize("model", MODELS)
def test_a_b_a_comes_back_at_its_end(model: str) -> None:
    street = Street(model, **PLENTY)
    for who in ("a", "b", "a", "b", "a"):
        street.says(who, more=5 * GRID)
        end = street.on.stack.end
        if who == "a":
            a_end = end
        else:
            b_end = end
    row = street.says("b")
    assert (row.source, row.cached) == ("park.end", b_end)
    row = street.says("a")
    assert (row.source, row.cached) == ("park.end", a_end)


@pytest.mark.parametrize("model", MODELS)
def test_a_b_c_a(model: str) -> None:
    street = Street(model, **PLENTY)
    street.says("a", more=6 * GRID)
    end = street.on.stack.end
    for who in ("b", "c", "d"):
        street.says(who, more=4 * GRID)
    row = street.says("a")
    assert (row.source, row.cached) == ("park.end", end)
    for who in ("b", "c", "d", "a"):
        assert street.says(who).source == "park.end"


@pytest.mark.parametrize("model", MODELS)
def test_a_parked_grid_anchor_is_a_cold_prefills_bits(model: str) -> None:
    """A copy that parts inside the parked prompt."""
    street = Street(model, **PLENTY)
    street.says("a", more=6 * GRID)
    text = street.texts["a"]
    street.says("b", more=6 * GRID)
    ids = joined(text[: 5 * GRID + 7], tokens(150, 9))
    row = street.sends(ids, tokens(9, 8), "a")
    assert (row.source, row.cached, row.gate) == ("park.grid", 5 * GRID, "bits")
    assert street.verdict is not None and street.verdict.gate is Gate.BITS and street.verdict.ok


@pytest.mark.parametrize("model", MODELS)
def test_conversations_that_share_nothing_are_parked_whole(model: str) -> None:
    street = Street(model, **PLENTY)
    for who in ("a", "b", "c"):
        street.texts[who] = tokens(4 * GRID + 3, ord(who))
        street.says(who)
    for who in ("a", "b", "c", "a"):
        assert street.says(who).source == "park.end"


@pytest.mark.parametrize("model", MODELS)
def test_a_compaction_pins_the_head(model: str) -> None:
    """The summary's turn starts with the tools and system text of every turn before."""
    street = Street(model, pin_rows=3_000)
    street.says("a", more=8 * GRID)
    compaction = tokens(7 * GRID, 77)
    row = street.sends(compaction, tokens(30, 78), "a", kind="compaction")
    assert row.source == "cold"
    row = street.sends(joined(HEAD, tokens(200, 79)), tokens(9, 80), "a")
    assert (row.source, row.cached, row.gate) == ("park.grid", 2 * GRID, "bits")


@pytest.mark.parametrize("model", MODELS)
def test_a_compaction_drops_its_sessions_parked_rows(model: str) -> None:
    street = Street(model, **PLENTY, pin_rows=3_000)
    street.says("a", more=8 * GRID)
    street.says("b", more=4 * GRID)
    assert [entry.account.session for entry in street.on.stack.park.entries] == ["a"]
    street.sends(tokens(7 * GRID, 77), tokens(30, 78), "a", kind="compaction")
    kept = {(entry.kind, entry.account.session) for entry in street.on.stack.park.entries}
    # Of a nothing but what is summed up now; b is another conversation, and is parked whole.
    assert kept == {("park", "b")}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("answer", [3, 40, 150])
def test_a_guest_leaves_no_trace(model: str, answer: int) -> None:
    """A title request between two turns; its answer may be longer than what was copied first."""
    street = Street(model, guest_tokens=200, stash_rows=900, park_rows=2_000)
    street.says("a", more=14 * GRID)
    end = street.on.stack.end
    row = street.sends(tokens(70, 5), tokens(answer, 6), "a", kind="title")
    assert row.guest and row.source == "cold"
    row = street.says("a")
    assert (row.source, row.cached) == ("end", end)


@pytest.mark.parametrize("model", MODELS)
def test_a_guest_that_shares_the_head_resumes_there(model: str) -> None:
    street = Street(model, guest_tokens=250, stash_rows=900)
    street.says("a", more=16 * GRID)
    row = street.sends(joined(HEAD, tokens(60, 5)), tokens(9, 6), "b")
    assert row.guest and (row.cached, row.gate) == (2 * GRID, "bits")
    assert street.says("a").source == "end"


@pytest.mark.parametrize("model", MODELS)
def test_a_guest_that_goes_on_comes_back_at_its_end(model: str) -> None:
    """A short conversation beside a long one: it visits turn by turn, and neither reads again."""
    street = Street(model, guest_tokens=400, stash_rows=1_500, park_rows=3_000)
    street.texts["long"] = tokens(9 * GRID, 1)
    street.says("long", more=9 * GRID)
    ends = {"long": street.on.stack.end}
    street.texts["short"] = tokens(30, 2)
    for who in ("short", "short", "long", "short", "long", "long", "short"):
        row = street.says(who, more=40)
        assert row.guest == (who == "short")
        if who in ends:
            assert row.source == ("end" if who == "long" else "park.end")
            assert row.cached == ends[who]
        ends[who] = street.on.stack.end


@pytest.mark.parametrize("model", MODELS)
def test_two_short_conversations_share_a_head_and_not_a_thought(model: str) -> None:
    """The second starts from the first's rows, and the first is still whole after it."""
    street = Street(model, guest_tokens=400, stash_rows=1_500, park_rows=3_000)
    street.texts["long"] = tokens(12 * GRID, 1)
    street.says("long", more=12 * GRID)
    head = tokens(2 * GRID + 5, 3)
    for who in ("x", "y"):
        street.texts[who] = head
    street.says("x", more=30)
    end = street.on.stack.end
    row = street.says("y", more=30)
    assert row.guest and (row.source, row.cached, row.gate) == ("park.grid", 2 * GRID, "bits")
    row = street.says("x", more=30)
    assert row.guest and (row.source, row.cached) == ("park.end", end)
    assert street.says("y", more=30).source == "park.end"


def below_a_base(model: str) -> tuple[Street, Ids]:
    """B stands on more of A's rows than a guest shares; only A, in the pool, has a line so low."""
    street = Street(model, anchors=4, guest_tokens=400, stash_rows=1_500, park_rows=6_000)
    text = tokens(3 * GRID + 10, 3)
    street.texts["a"] = street.texts["b"] = text
    street.says("a", more=30)
    street.says("b", more=14 * GRID)
    (entry,) = street.on.stack.park.entries
    assert entry.base == 3 * GRID and 2 * GRID in entry.account.anchors.lines
    assert min(street.on.stack.resident.account.anchors.lines) > 3 * GRID
    return street, joined(text[: 2 * GRID + 7], tokens(60, 9))


@pytest.mark.parametrize("model", MODELS)
def test_a_guest_from_a_line_below_the_base_borrows_from_that_line(model: str) -> None:
    """The rows from there to the base are the resident's too, and the guest writes over them."""
    street, short = below_a_base(model)
    end = street.on.stack.end
    row = street.sends(short, tokens(9, 6), "t")
    assert row.guest and (row.source, row.cached, row.gate) == ("park.grid", 2 * GRID, "bits")
    row = street.says("b")
    assert (row.source, row.cached) == ("end", end)


@pytest.mark.parametrize("model", MODELS)
def test_a_guest_that_outgrows_the_house_moves_in(model: str) -> None:
    street = Street(model, guest_tokens=400, stash_rows=1_500, park_rows=6_000)
    street.texts["long"] = tokens(10 * GRID, 1)
    street.says("long", more=10 * GRID)
    long_end = street.on.stack.end
    street.texts["short"] = tokens(30, 2)
    assert street.says("short", more=100).guest
    end = street.on.stack.end
    row = street.says("short", more=8 * GRID)
    assert not row.guest and (row.source, row.cached) == ("park.end", end)
    row = street.says("long")
    assert (row.source, row.cached) == ("park.end", long_end)


@pytest.mark.parametrize("model", MODELS)
def test_a_guest_whose_end_was_absorbed_or_who_failed_leaves_the_rows_alone(model: str) -> None:
    street = Street(model, guest_tokens=400, stash_rows=1_500, park_rows=3_000)
    street.says("a", more=14 * GRID)
    end = street.on.stack.end
    events = turn(street.on, Prompt(tokens(90, 5), "b"), forced(tokens(30, 6)), limit=30)
    for event in events:
        if isinstance(event, Tokens):
            with pytest.raises(RuntimeError):
                events.throw(RuntimeError("the device fell over"))
            break
    assert street.on.journal.rows[-1].finish == "failed"
    assert not street.on.stack.park.entries
    row = street.says("a")
    assert (row.source, row.cached) == ("end", end)


@pytest.mark.parametrize("model", MODELS)
def test_a_guest_that_outgrows_the_stash_cuts_honestly(model: str) -> None:
    street = Street(model, guest_tokens=200, stash_rows=2 * GRID)
    street.says("a", more=14 * GRID)
    row = street.sends(tokens(70, 5), tokens(150, 6), "a", kind="title")
    assert row.guest
    cut = street.on.stack.resident.account.valid
    assert cut == 2 * GRID
    row = street.says("a")
    assert (row.source, row.cached) == ("grid", 2 * GRID)


@pytest.mark.parametrize("model", MODELS)
def test_a_checkpoint_serves_a_copy_that_parts_inside_the_answer(model: str) -> None:
    street = Street(model, checkpoint_tokens=16)
    street.says("a", answer=100)
    size = len(HEAD) + 90
    lines = [a.tokens for a in street.on.stack.resident.account.anchors if a.kind == "checkpoint"]
    assert lines[0] == size and len(lines) >= 5
    ids = joined(street.texts["a"][: size + 60], tokens(50, 9))
    row = street.sends(ids, tokens(9, 8), "a")
    assert row.source == "checkpoint" and size + 60 - 24 < row.cached <= size + 60


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fails_at", [0, 1, 3, 5])
def test_no_room_half_way_leaves_everything_whole_or_honestly_cut(
    model: str, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    street = Street(model, **PLENTY)
    for who in ("a", "b", "a"):
        street.says(who, more=5 * GRID)
    copies = 0

    def failing(*args: object) -> object:
        nonlocal copies
        copies += 1
        return None if copies == fails_at + 1 else real(*args)  # type: ignore[arg-type]

    real = park.try_copy
    monkeypatch.setattr(park, "try_copy", failing)
    street.says("b")
    monkeypatch.setattr(park, "try_copy", real)
    assert copies > fails_at
    for who in ("a", "b", "a"):
        street.says(who)


@pytest.mark.parametrize("model", MODELS)
def test_a_stash_without_room_is_no_guest(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    street = Street(model, guest_tokens=200, stash_rows=900, park_rows=4_000)
    street.says("a", more=14 * GRID)
    monkeypatch.setattr(guest, "try_copy", lambda *args: None)
    street.sends(tokens(70, 5), tokens(40, 6), "t", kind="title")
    monkeypatch.undo()
    # Its rows were parked instead.
    assert street.says("a").source == "park.end"


def long_and_short(model: str) -> tuple[Street, int]:
    """A long conversation in place, replaced by a short one; and where the long one's end was."""
    street = Street(model, **PLENTY)
    street.on.stack.park._config = replace(street.on.stack.park._config, margin_rows=16)
    street.says("a", more=20 * GRID)
    end = street.on.stack.end
    assert end is not None
    street.says("b", more=2 * GRID)
    (entry,) = street.on.stack.park.entries
    assert entry.high < 7 * GRID and entry.top == end
    return street, end


@pytest.mark.parametrize("model", MODELS)
def test_rows_that_nobody_overwrites_stay_where_they_are(model: str) -> None:
    street, end = long_and_short(model)
    held = street.on.stack.park.held_bytes()
    entry = street.on.stack.park.entries[0]
    cost = street.of.cost()
    rows = entry.high - entry.base
    assert held == rows * cost.row_bytes + entry.copies * cost.anchor_bytes
    row = street.says("a")
    assert (row.source, row.cached) == ("park.end", end)
    assert street.says("b").source == "park.end"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("more", "answer"), [(6 * GRID, 20), (10, 150), (60, 300), (25 * GRID, 9)])
def test_rows_left_in_place_are_copied_as_another_grows(model: str, more: int, answer: int) -> None:
    """By its prompt, and by its answer."""
    street, end = long_and_short(model)
    for _ in range(2):
        street.says("b", more=more // 2, answer=answer)
    row = street.says("a")
    assert (row.source, row.cached) == ("park.end", end)


@pytest.mark.parametrize("model", MODELS)
def test_two_conversations_above_a_third(model: str) -> None:
    street = Street(model, **PLENTY)
    street.on.stack.park._config = replace(street.on.stack.park._config, margin_rows=16)
    for who, more in (("a", 20), ("b", 10), ("c", 2)):
        street.says(who, more=more * GRID)
    assert [entry.high < entry.top for entry in street.on.stack.park.entries] == [True, True]
    for who in ("b", "a", "c", "a", "b"):
        assert street.says(who).source == "park.end"


@pytest.mark.parametrize("model", MODELS)
def test_a_guest_that_grows_over_rows_left_in_place(model: str) -> None:
    street = Street(model, **PLENTY, guest_tokens=250, stash_rows=900)
    street.on.stack.park._config = replace(street.on.stack.park._config, margin_rows=16)
    street.says("a", more=24 * GRID)
    end = street.on.stack.end
    street.says("b", more=5 * GRID)
    assert street.sends(tokens(70, 5), tokens(600, 6), "t", kind="title").guest
    assert street.says("b").source == "end"
    row = street.says("a")
    assert (row.source, row.cached) == ("park.end", end)


@pytest.mark.parametrize("model", MODELS)
def test_without_room_rows_left_in_place_are_given_up(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    street, end = long_and_short(model)
    monkeypatch.setattr(park, "try_copy", lambda *args: None)
    street.says("b", more=8 * GRID)
    monkeypatch.undo()
    row = street.says("a")
    assert 0 < row.cached < 7 * GRID < end


@pytest.mark.parametrize("model", MODELS)
def test_a_failed_forward_loses_the_rows_left_in_place(model: str) -> None:
    street, _ = long_and_short(model)
    (entry,) = street.on.stack.park.entries
    if entry.base:
        street.says("x", more=GRID)
    street.on.stack.forget()
    street.on.stack.check()
    assert all(e.top == e.high for e in street.on.stack.park.entries)
    street.says("a")


@pytest.mark.parametrize("model", MODELS)
def test_a_side_request_that_goes_on_from_a_conversation_leaves_it_one(model: str) -> None:
    """It is asked with the whole conversation before it, and another session comes next."""
    street = Street(model, **PLENTY)
    street.says("a", more=6 * GRID)
    street.says("a", more=30, kind="followups")
    end = street.on.stack.end
    street.says("b", more=6 * GRID)
    row = street.says("a", more=30)
    assert (row.source, row.cached) == ("park.end", end)


def test_nobody_parks_what_a_side_request_left() -> None:
    street = Street("witness", **PLENTY)
    street.sends(tokens(5 * GRID, 5), tokens(9, 6), "a", kind="title")
    street.sends(tokens(5 * GRID, 7), tokens(9, 8), "b")
    assert not street.on.stack.park.entries
    street.sends(tokens(5 * GRID, 9), tokens(9, 10), "c")
    assert [entry.account.session for entry in street.on.stack.park.entries] == ["b"]


# canaries


@pytest.mark.parametrize("model", CANARIES)
def test_canary_rows_left_in_place_overwritten(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    street, end = long_and_short(model)
    monkeypatch.setattr(park.Park, "_cover", lambda self, reach: None)
    ids = joined(street.texts["b"], tokens(6 * GRID, 7))
    serve(street.on, ids, tokens(9, 4), session="b", check_accounts=False)
    monkeypatch.undo()
    ids = joined(street.texts["a"], tokens(20, 9))
    row, verdict = serve(
        street.on, ids, tokens(3, 8), check=street.check, session="a", check_accounts=False
    )
    assert row.cached == end and verdict is not None and not verdict.ok


@pytest.mark.parametrize("model", CANARIES)
def test_canary_a_stash_short_by_one_margin(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What refused drafts and a last block write past the answer is not put back."""
    street = Street(model, guest_tokens=200, stash_rows=900)
    street.says("a", more=14 * GRID)
    cover = guest.Stash.cover

    def short(self: guest.Stash, stop: int, valid: int) -> bool:
        return cover(self, stop - 2 * self._config.margin_rows, valid)

    monkeypatch.setattr(guest.Stash, "cover", short)
    serve(street.on, tokens(GRID - 1, 5), tokens(9, 6), session="a", kind="title")
    _, verdict = parted(street, 6 * GRID)
    assert not verdict.ok


@pytest.mark.parametrize("model", CANARIES)
def test_canary_a_guest_that_borrows_from_the_entrys_base(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    street, short = below_a_base(model)
    monkeypatch.setattr(visit, "base_of", lambda best: best.entry.base)
    serve(street.on, short, tokens(9, 6), session="t")
    monkeypatch.undo()
    ids = joined(street.texts["b"], tokens(20, 9))
    row, verdict = serve(
        street.on, ids, tokens(3, 8), check=street.check, session="b", check_accounts=False
    )
    assert row.source == "end" and verdict is not None and not verdict.ok


@pytest.mark.parametrize("model", CANARIES)
def test_canary_a_guest_that_shares_its_end_with_the_pool(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next end is written into the copies that an entry still has for an older one."""
    street = Street(model, guest_tokens=400, stash_rows=1_500, park_rows=3_000)
    street.says("long", more=18 * GRID)
    street.texts["short"] = tokens(30, 2)
    street.says("short", more=40)
    first = street.texts["short"]
    park_of = street.on.stack.park
    street.on.stack.leave()
    (entry,) = park_of.entries
    street.says("short", more=40)
    street.says("long")
    park_of.entries = [entry]
    row, verdict = serve(
        street.on, joined(first, tokens(20, 9)), tokens(9, 8), check=street.check, session="short"
    )
    assert row.source == "park.end" and verdict is not None and not verdict.ok


@pytest.mark.parametrize("model", CANARIES)
def test_canary_a_park_that_forgets_its_taint_line(model: str) -> None:
    street = Street(model, **PLENTY)
    for _ in range(2):
        street.says("a", more=4 * GRID)
    text = street.texts["a"]
    street.says("b", more=4 * GRID)
    (entry,) = street.on.stack.park.entries
    tainted = [a for a in entry.account.anchors if a.gate is Gate.GREEDY and a.kind == "grid"]
    entry.account.taint = None
    entry.account.anchors._anchors = [
        Anchor(anchor.tokens, Gate.BITS, anchor.tensors) for anchor in entry.account.anchors
    ]
    _, verdict = parted(street, tainted[-1].tokens, text)
    assert verdict.gate is Gate.BITS and not verdict.ok


@pytest.mark.parametrize("model", CANARIES)
def test_canary_a_swap_of_the_wrong_block(model: str) -> None:
    street = Street(model, **PLENTY)
    street.says("a", more=8 * GRID)
    text = street.texts["a"]
    street.says("b", more=8 * GRID)
    (entry,) = street.on.stack.park.entries
    first, second = entry.blocks[1], entry.blocks[2]
    entry.blocks[1] = park.RowBlock(first.start, first.stop, second.tensors)
    _, verdict = parted(street, highest_clean(entry), text)
    assert not verdict.ok


@pytest.mark.parametrize("model", CANARIES)
def test_canary_rows_below_the_base_overwritten(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C shares less of the head than A and B do: A's share of it must be kept with A."""
    street = Street(model, **PLENTY)
    street.says("a", more=6 * GRID)
    text = street.texts["a"]
    street.says("b", more=4 * GRID)
    monkeypatch.setattr(park.Park, "_dependents", lambda self, start, source: [])
    serve(street.on, tokens(5 * GRID, 3), tokens(9, 4), session="c", check_accounts=False)
    monkeypatch.undo()
    (entry,) = [e for e in street.on.stack.park.entries if e.account.session == "a"]
    _, verdict = parted(street, highest_clean(entry), text)
    assert not verdict.ok


def highest_clean(entry: Parked) -> int:
    """The highest line of an entry that is held to the bit gate."""
    return max(a.tokens for a in entry.account.anchors if a.gate is Gate.BITS)


def parted(street: Street, at: int, text: Ids | None = None) -> tuple[TurnRow, Verdict]:
    """A turn that parts from a's text there; its verdict may be anything."""
    ids = joined((street.texts["a"] if text is None else text)[: at + 3], tokens(20, 9))
    row, verdict = serve(
        street.on,
        ids,
        tokens(3, 8),
        check=street.check,
        session="a",
        check_accounts=False,
    )
    assert verdict is not None and row.cached == at
    return row, verdict


def test_entries_hold_tensors_that_nobody_writes_to() -> None:
    """After any restore and generation, what the pool still holds is unchanged."""
    street = Street("hybrid-float32", **PLENTY)
    for who in ("a", "b", "c"):
        street.says(who, more=3 * GRID)
    for who in ("b", "a", "c", "a"):
        held = {
            id(tensor): (tensor, tensor.clone())
            for entry in street.on.stack.park.entries
            for tensor in [
                *(t for block in entry.blocks for t in block.tensors),
                *(t for anchor in entry.account.anchors for t in anchor.tensors),
            ]
        }
        street.says(who)
        for entry in street.on.stack.park.entries:
            for anchor in entry.account.anchors:
                for tensor in anchor.tensors:
                    if id(tensor) in held:
                        assert torch.equal(tensor, held[id(tensor)][1])
            for block in entry.blocks:
                for tensor in block.tensors:
                    if id(tensor) in held:
                        assert torch.equal(tensor, held[id(tensor)][1])
