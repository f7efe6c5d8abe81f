"""Goal: a trace's images have the same rows wherever they stand, and part where others stand.

Method: conversations of text and images, of which later ones copy, cut and reorder stretches, are
turned into runs and images as the scrubber does, written, read, and drawn as tokens. Any two must
share as many tokens as the originals do (hypothesis), and an engine must find every picture at its
rows. The runs with images cut out are held to a naive twin, token by token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.keys import KEY_ROWS, key_ids
from cache.types import Ids, common_prefix
from engine.pictures.places import places
from replay import tokens as tokens_module
from replay.images import Images, picture_of
from replay.runs import RunFinder
from replay.tokens import Tokens
from replay.trace import FRESH, SPECIAL, TEXT, Header, Image, Request, Run, Trace
from replay.tracefile import parse_trace, trace_lines
from replay.writers.blocks import prompts_in_blocks

VOCAB = 1_000
CLASSES = np.full(VOCAB, TEXT, np.uint8)
CLASSES[:64] = SPECIAL
MARKS = 1, 2
"""What stands around an image."""

Element = int | str
"""A token, or the name of an image."""


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def image(name: str, offset: int = 0) -> Image:
    return Image(offset, KEY_ROWS + len(name), digest(name))


def ids_of(elements: Sequence[Element]) -> tuple[Ids, tuple[Image, ...]]:
    """The ids of a sequence, and its images."""
    ids: list[int] = []
    images = []
    for element in elements:
        if isinstance(element, str):
            images.append(image(element, len(ids) + 1))
            rows = key_ids(bytes.fromhex(digest(element)), images[-1].rows)
            ids += [MARKS[0], *rows.tolist(), MARKS[1]]
        else:
            ids.append(element)
    return np.array(ids, np.int32), tuple(images)


def text(count: int, seed: int) -> list[Element]:
    return list(np.random.default_rng(seed).integers(64, VOCAB, count).tolist())


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[list[Element], list[Element]]]:
    """Prompts and outputs; later ones are made of stretches of earlier ones, text and images."""
    made: list[tuple[list[Element], list[Element]]] = []
    for number in range(draw(st.integers(1, 5))):
        prompt: list[Element] = []
        for piece in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(["copy", "text", "image"]))
            if kind == "copy" and made:
                source = draw(st.sampled_from(made))
                whole = [*source[0], *source[1]]
                start = draw(st.just(0) | st.integers(0, len(whole)))
                prompt += whole[start : draw(st.integers(start, len(whole)))]
            elif kind == "image":
                prompt.append(draw(st.sampled_from(["a", "bb", "a" * 30])))
            else:
                prompt += text(draw(st.integers(1, 40)), 100 * number + piece)
        made.append((prompt or [5], text(draw(st.integers(0, 9)), 100 * number + 99)))
    return made


def trace_of(made: Sequence[tuple[list[Element], list[Element]]]) -> Trace:
    """The trace of sequences, as the scrubber makes one."""
    finder, requests = RunFinder(CLASSES), []
    for number, (prompt, output) in enumerate(made):
        ids, images = ids_of(prompt)
        runs = finder.add(ids, ids_of(output)[0], "s")
        request = Request(number, f"r{number}", float(number), *runs, images=images)
        requests.append(request)
    return Trace("t", Header(), tuple(requests))


def again(trace: Trace) -> Trace:
    """The trace written and read."""
    return parse_trace("t", "t.jsonl", iter(list(enumerate(trace_lines(trace), 1))))


@given(sequences(), st.sampled_from([1, 1 << 20]))
@settings(deadline=None, max_examples=150)
def test_prompts_share_what_the_originals_share(
    made: list[tuple[list[Element], list[Element]]], keep: int
) -> None:
    trace = trace_of(made)
    assert again(trace) == trace
    tokens = Tokens(trace, VOCAB, keep_tokens=keep)
    real = [ids_of([*prompt, *output])[0] for prompt, output in made]
    for number, request in enumerate(trace.requests):
        prompt = tokens.prompt(number)
        theirs = real[number][: request.prompt_tokens]
        assert np.array_equal(prompt[theirs < 0], theirs[theirs < 0])
        assert (prompt[theirs >= 0] >= 0).all()
        assert len(places(prompt, tokens.pictures(number))) == len(request.images)
        for earlier in range(number):
            ours = common_prefix(tokens.sequence(earlier), prompt)
            assert ours == common_prefix(real[earlier], theirs)


@given(sequences())
@settings(deadline=None, max_examples=60)
def test_runs_with_images_cut_out_are_the_runs_but_for_the_images(
    made: list[tuple[list[Element], list[Element]]],
) -> None:
    images = Images()
    for request in trace_of(made).requests:
        naive: list[tuple[int, int] | int] = []
        for run in (*request.prompt, *request.output):
            fresh = run.src == FRESH
            naive += [(run.src, run.offset + (0 if fresh else i)) for i in range(run.length)]
        for held in request.images:
            rows = key_ids(bytes.fromhex(held.digest), held.rows).tolist()
            naive[held.offset : held.offset + held.rows] = rows
        ours: list[tuple[int, int] | int] = []
        for run in images.runs(request):
            if run.src < FRESH:
                ours += images.ids(run.src)[run.offset : run.offset + run.length].tolist()
                continue
            fresh = run.src == FRESH
            ours += [(run.src, run.offset + (0 if fresh else i)) for i in range(run.length)]
        assert ours == naive


def test_what_follows_an_image_parts_where_the_trace_says_fresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two prompts alike up to the end of an image: the next token would be the same by chance."""
    monkeypatch.setattr(tokens_module.Tokens, "_drawn", lambda self, number, place, kind: 300)
    held = image("a", 3)
    first = (Run(FRESH, TEXT, 3 + held.rows), Run(FRESH, TEXT, 4))
    second = (Run(0, 0, 3 + held.rows), Run(FRESH, TEXT, 4))
    requests = (
        Request(0, "a", 0.0, first, (), images=(held,)),
        Request(1, "b", 1.0, second, (), images=(held,)),
    )
    tokens = Tokens(Trace("t", Header(), requests), VOCAB)
    assert common_prefix(tokens.prompt(0), tokens.prompt(1)) == 3 + held.rows


@pytest.mark.parametrize("keep", [1, 1 << 20])
def test_an_image_over_copied_text_is_the_image(keep: int) -> None:
    held = image("a", 5)
    requests = (
        Request(0, "a", 0.0, (Run(FRESH, TEXT, 40),), ()),
        Request(1, "b", 1.0, (Run(0, 0, 40),), (), images=(held,)),
    )
    tokens = Tokens(Trace("t", Header(), requests), VOCAB, keep_tokens=keep)
    first = tokens.prompt(0)
    places(tokens.prompt(1), tokens.pictures(1))
    assert np.array_equal(tokens.prompt(1)[5 + held.rows :], first[5 + held.rows :])


def test_equal_digests_are_one_image_wherever_they_stand() -> None:
    images, runs = Images(), (Run(FRESH, TEXT, 60),)
    named = (image("a", 3), image("b", 20), image("a", 40))
    sources = [r.src for r in images.runs(Request(0, "a", 0.0, runs, (), images=named))]
    assert sources[1] == sources[5] < FRESH and sources[3] not in (FRESH, sources[1])


@pytest.mark.parametrize("rows", [9, 10, 12, 49, 97, 256, 1_280])
def test_a_picture_has_the_rows_and_is_as_square_as_they_allow(rows: int) -> None:
    picture = picture_of(Image(0, rows, digest("x")))
    assert picture.rows == rows and picture.patches is None and picture.digest.hex() == digest("x")
    t, h, w = picture.grid
    assert t == 1 and h <= w
    better = [n for n in range(h // 2 + 1, w // 2) if rows % n == 0 and n * n <= rows]
    assert not better


def test_an_export_tells_images_apart() -> None:
    """Prompts alike but for the image's pixels share the blocks before it, and equal ones all."""
    made = [([*text(40, 1), name, *text(40, 2)], [5]) for name in ("aa", "bb", "aa")]
    one, two, three = (blocks for _, blocks in prompts_in_blocks(trace_of(made), 16))
    assert one == three and one[:2] == two[:2]
    assert not set(one[2:]) & set(two[2:])
