"""Prompts with pictures: every resume is a cold prefill's, and no picture answers for another.

Goal: wherever a line lies (before, inside or after a picture), in place, pooled, beside guests and
in side slots, a prompt with pictures resumes to a cold prefill's bits; equal pixels meet under any
name, other pixels part where the picture begins; an answer after a picture and what follows it come
out as a cold run writes them. Method: the real turn with forced and with greedy answers on the
witness and on the hybrid with its tower; after each prefill a verifier with a tower of its own
compares everything. Canaries plant what the seed's caches would get wrong: placeholders as keys,
too short a digest, a position that does not come back, a row of the tower out of place. The witness
knows ids alone, so faults in what ids stand for are seen on the hybrid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictured import MODELS, Part, Wall, ids_of, picture, prompt_of
from PIL import Image
from support import GRID, box, joined, tokens

from cache import types
from cache.account import Answer
from cache.align import Alignment
from cache.keys import KEY_ROWS, key_ids
from cache.types import Gate, Ids, common_prefix
from engine.hybrid import Hybrid
from engine.layers.sight import Sight
from engine.pictures import picture as picture_module
from engine.pictures.decode import Limits
from engine.pictures.encoded import Encoded
from engine.pictures.patches import PatchConfig, read
from engine.pictures.picture import Picture
from engine.sampling import Greedy
from engine.slots import Slots
from engine.turn import turn
from replay.pieces import TracePieces

PAIR = MODELS[:2]
"""The witness and the hybrid in float32; bfloat16 is only asked where dtypes could matter."""
CAT, DOG, OWL = picture(12, 16, 1), picture(16, 14, 2), picture(12, 16, 3)
"""48, 56 and 48 rows: CAT and OWL have one grid."""

SCENE: tuple[Part, ...] = (tokens(50, 1), CAT, tokens(70, 2), DOG, tokens(90, 3))
"""CAT is rows [50, 98) over line 64, DOG rows [168, 224) over line 192; 314 rows in all."""


def cut(parts: tuple[Part, ...], at: int) -> list[Part]:
    """The parts up to row `at`, which lies in text."""
    kept: list[Part] = []
    for part in parts:
        rows = part.rows if isinstance(part, Picture) else len(part)
        if at == 0:
            break
        if at < rows:
            assert not isinstance(part, Picture)
            return [*kept, part[:at]]
        kept.append(part)
        at -= rows
    return kept


# lines before, inside and after pictures


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("at", [30, 50, 100, 168, 230, 256, 300])
def test_a_prompt_that_parts_in_text_resumes_at_the_line_below(model: str, at: int) -> None:
    """Line 64 is inside CAT, 128 in text, 192 inside DOG, 256 after both."""
    wall = Wall(model)
    wall.shows(*SCENE)
    shown = wall.shows(*cut(SCENE, at), tokens(150, 8))
    assert shown.row.cached == at // GRID * GRID
    assert shown.verdict.gate is Gate.BITS and shown.verdict.ok


@pytest.mark.parametrize("model", PAIR)
@pytest.mark.parametrize("at", [50, 100, 230])
def test_a_new_picture_after_a_resume(model: str, at: int) -> None:
    """The offset of pictures below the line and that of one above it add up."""
    wall = Wall(model)
    wall.shows(*SCENE)
    shown = wall.shows(*cut(SCENE, at), tokens(3, 7), OWL, tokens(120, 8), DOG, tokens(5, 9))
    assert shown.row.cached == at // GRID * GRID and shown.verdict.ok


@pytest.mark.parametrize("model", PAIR)
@pytest.mark.parametrize("start", [GRID - 10, GRID - 9, GRID - 8, GRID - 1, GRID])
def test_a_line_in_the_first_rows_of_a_picture(model: str, start: int) -> None:
    """Once all of the picture is shared the line serves; its rows are the right picture's."""
    wall = Wall(model)
    head = tokens(start, 1)
    wall.shows(head, CAT, tokens(60, 2))
    shown = wall.shows(head, CAT, tokens(70, 3))
    assert shown.row.cached == (start + 48) // GRID * GRID
    missed = wall.shows(head, OWL, tokens(70, 3))
    assert missed.row.cached == start // GRID * GRID


@pytest.mark.parametrize("model", PAIR)
def test_a_picture_larger_than_chunks_resumes_at_any_of_its_lines(model: str) -> None:
    wide = picture(24, 32, 4)
    assert wide.rows == 192
    for line in range(GRID, 193, GRID):
        wall = Wall(model)
        wall.shows(tokens(20, 1), wide, tokens(9, 2))
        anchors = wall.on.stack.resident.account.anchors
        anchors.cut(line)
        wall.on.stack.resident.account.end = None
        shown = wall.shows(tokens(20, 1), wide, tokens(30, 3))
        assert shown.row.cached == line and shown.verdict.ok


# names and pixels


def as_sent(pixels: np.ndarray, form: str, **options: object) -> Picture:
    """A picture as a client sends it."""
    out = BytesIO()
    Image.fromarray(pixels).save(out, form, **options)
    got = read(out.getvalue(), Limits(), PatchConfig(min_pixels=9_216))
    assert isinstance(got, Picture)
    return got


PIXELS = np.random.default_rng(5).integers(0, 256, (200, 250, 3), np.uint8)


@pytest.mark.parametrize("model", PAIR)
def test_one_picture_under_two_names_is_one(model: str) -> None:
    wall = Wall(model)
    one, other = as_sent(PIXELS, "PNG"), as_sent(PIXELS, "WEBP", lossless=True)
    wall.shows(tokens(50, 1), one, tokens(120, 2))
    shown = wall.shows(tokens(50, 1), other, tokens(120, 2), tokens(30, 3))
    assert shown.row.cached == (50 + one.rows + 120) // GRID * GRID
    if wall.of.encoded is not None:
        assert (wall.of.encoded.misses, len(wall.of.encoded)) == (1, 1)


@pytest.mark.parametrize("model", PAIR)
def test_other_pixels_under_one_name_part_where_the_picture_begins(model: str) -> None:
    wall = Wall(model)
    touched = PIXELS.copy()
    touched[100, 100] ^= 64
    wall.shows(tokens(150, 1), as_sent(PIXELS, "PNG"), tokens(120, 2))
    shown = wall.shows(tokens(150, 1), as_sent(touched, "PNG"), tokens(120, 2))
    assert (shown.row.cached, shown.row.parted_at) == (2 * GRID, 150)


@pytest.mark.parametrize("model", PAIR)
@pytest.mark.parametrize("other", [OWL, DOG], ids=["the same grid", "another grid"])
def test_the_same_words_about_another_picture(model: str, other: Picture) -> None:
    wall = Wall(model)
    wall.shows(tokens(100, 1), CAT, tokens(120, 2))
    shown = wall.shows(tokens(100, 1), other, tokens(120, 2))
    assert (shown.row.cached, shown.row.parted_at) == (GRID, 100)


def alike(agree: int) -> tuple[Picture, Picture]:
    """Two pictures of different pixels whose key ids agree in their first `agree` rows."""
    number = int.from_bytes(CAT.digest) ^ (1 << (255 - 31 * agree))
    return CAT, Picture(number.to_bytes(32), OWL.grid, OWL.patches)


@pytest.mark.parametrize("model", PAIR)
@pytest.mark.parametrize("agree", range(1, KEY_ROWS))
def test_digests_that_agree_in_a_few_rows_part_where_the_picture_begins(
    model: str, agree: int
) -> None:
    """Line 64 lies so many rows inside the picture: it must not serve the other one."""
    one, other = alike(agree)
    assert (one.ids == other.ids).tolist()[: agree + 1] == [True] * agree + [False]
    start = GRID - agree
    wall = Wall(model)
    wall.shows(tokens(start, 1), one, tokens(30, 2))
    shown = wall.shows(tokens(start, 1), other, tokens(30, 2))
    assert (shown.row.cached, shown.row.parted_at) == (0, start)


# answers after pictures


def follows(wall: Wall, *parts: Part, **how: object) -> tuple[list[int], list[int]]:
    """What two turns with greedy answers write, the second resuming at the first one's end."""
    first = wall.shows(*parts, rule=Greedy(), limit=25, **how)  # type: ignore[arg-type]
    answer = np.array(first.written, np.int32)
    then = wall.shows(*parts, answer, tokens(40, 6), rule=Greedy(), limit=25, **how)  # type: ignore[arg-type]
    assert then.row.source == "end" and then.row.cached >= len(ids_of(*parts)) + 24
    return first.written, then.written


@pytest.mark.parametrize("parts", [SCENE, (*SCENE, CAT, tokens(2, 4))], ids=["far", "near"])
def test_an_answer_after_pictures_and_its_follow_up_are_a_cold_runs(
    parts: tuple[Part, ...],
) -> None:
    first, then = follows(Wall("hybrid-float32"), *parts)
    cold = Wall("hybrid-float32").shows(*parts, rule=Greedy(drafts=0), limit=25)
    assert cold.written == first
    whole = (*parts, np.array(first, np.int32), tokens(40, 6))
    again = Wall("hybrid-float32").shows(*whole, rule=Greedy(drafts=0), limit=25)
    assert again.row.cached == 0 and again.written == then
    assert len(set(first)) > 4


@pytest.mark.parametrize("model", MODELS)
def test_an_end_after_pictures_with_forced_answers(model: str) -> None:
    """On every model; then a new picture, an edit inside the answer, and one before the picture."""
    wall = Wall(model, checkpoint_tokens=8)
    written = tokens(40, 5)
    wall.shows(*SCENE, answer=written)
    end = wall.on.stack.end
    shown = wall.shows(*SCENE, written, tokens(9, 6), OWL, tokens(99, 7), answer=tokens(20, 8))
    assert (shown.row.source, shown.row.cached, shown.row.gate) == ("end", end, "greedy")
    edited = wall.shows(*SCENE, written[:25], tokens(60, 9))
    assert edited.row.source == "checkpoint" and edited.row.cached >= 314 + 8
    clean = wall.shows(*cut(SCENE, 240), tokens(60, 10))
    assert (clean.row.cached, clean.verdict.gate) == (3 * GRID, Gate.BITS)


def test_an_end_needs_no_pixels_of_what_lies_below_it() -> None:
    """A scrubbed copy of the conversation so far: positions come back with the end's sections."""
    with_pixels, without = Wall("hybrid-float32"), Wall("hybrid-float32")
    bare = [Picture(p.digest, p.grid) if isinstance(p, Picture) else p for p in SCENE]
    written, wanted = follows(with_pixels, *SCENE)
    without.shows(*SCENE, rule=Greedy(), limit=25)
    prompt = prompt_of(*bare, np.array(written, np.int32), tokens(40, 6))
    got: list[int] = []
    for event in turn(without.on, prompt, Greedy(), limit=25):
        got += getattr(event, "ids", []) if type(event).__name__ == "Tokens" else []
    assert without.on.journal.rows[-1].source == "end" and got == wanted


OPEN, CLOSE, END = (np.array([id], np.int32) for id in (3, 4, 2))
"""Structure: a thought begins, a thought ends, a message ends."""


@pytest.mark.parametrize("model", MODELS)
def test_a_copy_without_its_thoughts_between_pictures(model: str) -> None:
    """What is served is longer than what was sent, and its pictures stand further on."""
    wall = Wall(model, Alignment(TracePieces()), checkpoint_tokens=16)

    def text(count: int, seed: int) -> Ids:
        return (300 + tokens(count, seed) % 190).astype(np.int32)

    copy: list[Part] = [text(50, 1), CAT, text(20, 2)]
    for count in range(4):
        asked = [*copy, text(9, 10 + count), (DOG, OWL)[count % 2], text(30, 20 + count), OPEN]
        thought, answer = text(70, 30 + count), text(25, 40 + count)
        written, end = joined(thought, CLOSE, answer, END), wall.on.stack.end
        shown = wall.shows(*asked, answer=written, read=lambda ids: Answer(71))
        assert shown.row.prompt - shown.row.asked == 70 * count
        assert not count or (shown.row.source, shown.row.cached) == ("end", end)
        copy = [*asked, CLOSE, answer, END]
    line = (len(ids_of(*copy)) + 4 * 70) // GRID * GRID
    other = wall.shows(*copy, text(9, 60), CAT, text(9, 61), OPEN, answer=written)
    assert other.row.cached >= line
    # A picture where the copy has another one parts there, whatever is aligned before it.
    at = next(place for place, part in enumerate(asked) if part is DOG)
    changed = wall.shows(*asked[:at], OWL, *asked[at + 1 :])
    assert changed.row.parted_at == len(ids_of(*asked[:at]))


# guests, the pool, side slots


@pytest.mark.parametrize("model", MODELS)
def test_conversations_with_pictures_come_back_from_the_pool(model: str) -> None:
    wall = Wall(model, park_rows=4_000, checkpoint_tokens=16)
    texts: dict[str, list[Part]] = {
        "a": [tokens(70, 1), CAT, tokens(200, 2)],
        "b": [tokens(70, 1), DOG, tokens(20, 3), CAT, tokens(200, 4)],
        "c": [tokens(40, 5), OWL, tokens(250, 6)],
    }
    for count, who in enumerate("abcabcab"):
        texts[who] += [tokens(30, 20 + count), (CAT, DOG, OWL)[count % 3], tokens(25, 40 + count)]
        written = tokens(20, 60 + count)
        shown = wall.shows(*texts[who], answer=written, session=who)
        texts[who].append(written)
        if count > 2:
            assert shown.row.source == "park.end", (count, who, shown.row)
    if wall.of.encoded is not None:
        assert wall.of.encoded.misses == 3


@pytest.mark.parametrize("model", PAIR)
@pytest.mark.parametrize("start", [3, 60])
def test_a_parked_line_inside_a_picture(model: str, start: int) -> None:
    wall = Wall(model, park_rows=4_000)
    wide = picture(24, 24, 4)
    wall.shows(tokens(start, 1), wide, tokens(20, 2), session="a")
    wall.shows(tokens(9, 3), DOG, tokens(200, 4), session="b")
    other = wall.shows(tokens(start, 1), wide, tokens(30, 5), session="a")
    line = (start + wide.rows) // GRID * GRID
    assert (other.row.source, other.row.cached, other.row.gate) == ("park.grid", line, "bits")


@pytest.mark.parametrize("model", PAIR)
def test_a_guest_with_a_picture_leaves_no_trace(model: str) -> None:
    wall = Wall(model, guest_tokens=250, stash_rows=2_000, park_rows=4_000)
    long: list[Part] = [tokens(300, 1), CAT, tokens(200, 2), DOG, tokens(200, 3)]
    written = tokens(20, 4)
    wall.shows(*long, answer=written, session="a")
    end = wall.on.stack.end
    short: list[Part] = [tokens(40, 5), OWL, tokens(30, 6)]
    for count in range(2):
        shown = wall.shows(*short, answer=tokens(15, 7 + count), session="b")
        assert shown.row.guest and (shown.row.source == "park.end") == (count > 0)
        short += [tokens(15, 7 + count), tokens(9, 9 + count)]
    back = wall.shows(*long, written, tokens(40, 12), session="a")
    assert (back.row.source, back.row.cached) == ("end", end)
    edited = wall.shows(tokens(300, 1), CAT, tokens(90, 13), session="a")
    assert (edited.row.cached, edited.verdict.gate) == (5 * GRID, Gate.BITS)


@pytest.mark.parametrize("model", PAIR)
def test_side_slots_share_what_the_tower_made(model: str) -> None:
    wall = Wall(model, guest_tokens=250)
    slots = Slots.beside(wall.on, 2, 1_024, lambda of: box(of).stack)
    long: list[Part] = [tokens(300, 1), CAT, tokens(700, 2)]
    wall.shows(*long, session="a")
    short: dict[str, list[Part]] = {
        "b": [tokens(20, 3), CAT, tokens(60, 4)],
        "c": [tokens(20, 5), OWL, tokens(60, 6)],
    }
    for count in range(2):
        for who, parts in short.items():
            chosen = slots.choose(prompt_of(*parts, session=who))
            assert chosen.slot > 0
            written = tokens(9, 50 + count)
            shown = wall.shows(*parts, answer=written, session=who, on=chosen)
            assert shown.row.source == ("end" if count else "cold")
            parts += [written, tokens(12, 60 + count)]
            slots.used(chosen)
    back = wall.shows(*long, tokens(30, 7), session="a")
    assert back.row.cached == (len(ids_of(*long)) // GRID) * GRID
    if wall.of.encoded is not None:
        assert wall.of.encoded.misses == 2
        assert all(slot.engine.encoded is wall.of.encoded for slot in slots)


PIECES = st.one_of(st.integers(1, 70), st.sampled_from([CAT, DOG, OWL]))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 9), st.lists(PIECES, min_size=1, max_size=4)), max_size=9))
def test_any_conversations_on_the_witness(steps: list[tuple[int, list[int | Picture]]]) -> None:
    """Each prompt goes on from a cut of an earlier one; never more is reused than they share."""
    wall = Wall("witness", park_rows=1_500, guest_tokens=120, stash_rows=600, checkpoint_tokens=8)
    told: list[list[Part]] = [[tokens(30, 1)]]
    held: list[Ids] = []
    for count, (before, pieces) in enumerate(steps):
        parts = list(told[before % len(told)])[: 2 + before]
        for place, piece in enumerate(pieces):
            # Text stands before and after every picture.
            text = tokens(piece if isinstance(piece, int) else 3, 7 * count + place)
            parts += [text] if isinstance(piece, int) else [text, piece, text[:2]]
        ids = ids_of(*parts)
        if len(ids) > 1_200:
            continue
        written = tokens(11, 500 + count)
        shown = wall.shows(*parts, answer=written, session=str(before % 3))
        assert shown.verdict.ok
        most = max((common_prefix(rows, ids) for rows in held), default=0)
        assert shown.row.cached <= most
        held.append(joined(ids, written))
        told.append([*parts, written])


# canaries


def resumes_as(one: Picture, other: Picture) -> tuple[int, bool]:
    """What is reused when a prompt about one picture follows one about another; is it right?"""
    wall = Wall("hybrid-float32")
    wall.shows(tokens(50, 1), one, tokens(120, 2))
    shown = wall.shows(tokens(50, 1), other, tokens(120, 2), tokens(30, 3), must_hold=False)
    return shown.row.cached, shown.verdict.ok


def test_canary_placeholders_as_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """One id for every image, as the template has it."""
    assert resumes_as(CAT, OWL) == (0, True)
    monkeypatch.setattr(Picture, "ids", property(lambda of: np.full(of.rows, -1, np.int32)))
    cached, right = resumes_as(CAT, OWL)
    assert cached == 3 * GRID and not right


def test_canary_a_digest_of_sixteen_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few hundred pictures two agree; whoever keys on so little takes one for the other."""
    seen: dict[bytes, Picture] = {}
    for seed in range(3_000):
        digest = hashlib.sha256(bytes([seed % 256, seed // 256])).digest()
        one = seen.setdefault(digest[:2], Picture(digest, CAT.grid, CAT.patches))
        if one.digest != digest:
            break
    other = Picture(digest, OWL.grid, OWL.patches)
    assert resumes_as(one, other) == (0, True)
    short = lambda digest, rows: key_ids(digest[:2] + bytes(30), rows)  # noqa: E731
    monkeypatch.setattr(picture_module, "key_ids", short)
    cached, right = resumes_as(one, other)
    assert cached == 3 * GRID and not right


def test_canary_ids_compared_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line five rows inside a picture serves another one whose first five rows agree."""
    monkeypatch.setattr("cache.meet.common_prefix", types.equal_ids)
    one, other = alike(5)
    wall = Wall("hybrid-float32")
    wall.shows(tokens(GRID - 5, 1), one, tokens(30, 2))
    shown = wall.shows(tokens(GRID - 5, 1), other, tokens(30, 2), must_hold=False)
    assert shown.row.cached == GRID and not shown.verdict.ok


Plant = Callable[[Wall, pytest.MonkeyPatch], None]


def offset_left_where_it_was(wall: Wall, patch: pytest.MonkeyPatch) -> None:
    """Nothing brings the shift back: the section that is written to is not the engine's own."""
    whole = Hybrid.cache_state

    def detached(of: Hybrid) -> types.CacheState:
        state = whole(of)
        if of is not wall.of:
            return state
        shift = types.Section("rope.shift", state.sections[-1].tensor.clone())
        return replace(state, sections=(*state.sections[:-1], shift))

    patch.setattr(Hybrid, "cache_state", detached)


def offset_forgotten(wall: Wall, patch: pytest.MonkeyPatch) -> None:
    """A resume begins at offset 0."""
    look = Sight.look

    def forgetful(of: Sight, places: tuple, line: int) -> None:  # type: ignore[type-arg]
        of.shift.zero_()
        look(of, places, line)

    patch.setattr(Sight, "look", forgetful)


def offset_counted_in_a_pictures_middle(wall: Wall, patch: pytest.MonkeyPatch) -> None:
    """A chunk that ends inside a picture takes it for read."""

    def hasty(of: Sight, start: int, stop: int) -> None:
        for place in of.between(start, stop):
            if place.start >= start:
                of.shift += place.shortening

    patch.setattr(Sight, "passed", hasty)


def tower_row_one_off(wall: Wall, patch: pytest.MonkeyPatch) -> None:
    """What is kept of a picture is its neighbour's row by row."""
    of, rows = wall.of.encoded, Encoded.rows
    assert of is not None

    def rolled(cache: Encoded, *args: object) -> torch.Tensor:
        made = rows(cache, *args)  # type: ignore[arg-type]
        return made.roll(1, 0) if cache is of else made

    patch.setattr(Encoded, "rows", rolled)


def another_pictures_rows(wall: Wall, patch: pytest.MonkeyPatch) -> None:
    """The cache answers with whichever picture of that grid it has."""

    def careless(cache: Encoded, of: Picture, encode: Callable[[Picture], torch.Tensor]):  # type: ignore[no-untyped-def]
        if cache is not wall.of.encoded:
            return encode(of)
        return encode(OWL if of.grid == OWL.grid else of)

    patch.setattr(Encoded, "rows", careless)


def one_bit_of_what_is_kept(wall: Wall, patch: pytest.MonkeyPatch) -> None:
    """Bad memory."""
    assert wall.of.encoded is not None
    entries = wall.of.encoded._entries
    entries[CAT.digest][1].view(-1).view(torch.uint8)[1_002] ^= 1


def test_canary_what_is_kept_is_checked_in_a_cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of an earlier prompt could show it: the cold prefill must read the picture itself."""
    wall = Wall("hybrid-float32")
    wall.shows(tokens(20, 1), CAT, tokens(9, 2))
    one_bit_of_what_is_kept(wall, monkeypatch)
    shown = wall.shows(tokens(20, 3), CAT, tokens(9, 4), must_hold=False)
    assert shown.row.cached == 0 and not shown.verdict.ok


PLANTS: tuple[Plant, ...] = (
    offset_left_where_it_was,
    offset_forgotten,
    offset_counted_in_a_pictures_middle,
    tower_row_one_off,
    another_pictures_rows,
    one_bit_of_what_is_kept,
)


def after(plant: Plant | None, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a prompt holds its gate that resumes after one picture, with two more to come."""
    wall = Wall("hybrid-float32")
    wall.shows(*SCENE)
    if plant is not None:
        plant(wall, monkeypatch)
    parts = (*cut(SCENE, 140), DOG, tokens(80, 8), CAT, tokens(30, 9))
    shown = wall.shows(*parts, must_hold=False)
    assert shown.row.cached == 2 * GRID and shown.verdict.gate is Gate.BITS
    return shown.verdict.ok


def test_without_a_plant_the_gate_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert after(None, monkeypatch)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_canary_is_seen(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not after(plant, monkeypatch)
