"""Goal: a trace's images are read as they are meant, or refused in one line.

Method: a line for every way in which `images` can be wrong, each beside the good line that it
breaks; arbitrary mutations of good files, of which whatever is read must draw tokens and pictures.
Covers replay.imagelines through replay.tracefile.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_images import digest, sequences, trace_of
from traces import mutated

from engine.bad import BadInput
from engine.pictures.places import places
from replay.tokens import Tokens
from replay.trace import Image, Trace
from replay.tracefile import parse_trace, trace_lines

HEADER = {"format": "moorage.trace", "version": 1}
A, B = digest("a"), digest("b")
FIRST: dict[str, Any] = {
    "id": "a",
    "t": 1,
    "prompt": [[-1, 0, 40]],
    "output": [[-1, 0, 4]],
    "images": [[2, 9, A], [12, 20, B]],
    "parts": {"history": 11, "images": 29},
}
SECOND: dict[str, Any] = {
    "id": "b",
    "t": 2,
    "prompt": [[0, 0, 38], [-1, 0, 30]],
    "output": [],
    "images": [[2, 9, A], [12, 20, B], [50, 9, A]],
}


def parse(*lines: Any) -> Trace:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return parse_trace("f", "f.jsonl", iter(list(enumerate(texts, 1))))


def test_images_are_read() -> None:
    first, second = parse(HEADER, FIRST, SECOND).requests
    assert first.images == (Image(2, 9, A), Image(12, 20, B))
    assert second.images == (*first.images, Image(50, 9, A))


BAD = {
    "no list": (SECOND | {"images": 7}, "'images' is not a list"),
    "no entry": (SECOND | {"images": [7]}, "is not [offset, rows, digest]: 7"),
    "no digest": (SECOND | {"images": [[2, 9]]}, "is not [offset, rows, digest]: [2, 9]"),
    "digest text": (SECOND | {"images": [[2, 9, "x"]]}, "is not 64 hex digits: 'x'"),
    "digest cut": (SECOND | {"images": [[2, 9, A[:63]]]}, "is not 64 hex digits"),
    "digest upper": (SECOND | {"images": [[2, 9, A.upper()]]}, "is not 64 hex digits"),
    "digest null": (SECOND | {"images": [[2, 9, None]]}, "is not 64 hex digits: None"),
    "below": (SECOND | {"images": [[-1, 9, A]]}, "a start in 'images'"),
    "past": (SECOND | {"images": [[60, 9, A]]}, "a length in 'images' is not in 1..8"),
    "in the answer": (FIRST | {"t": 2, "images": [[32, 9, A]]}, "a length in 'images'"),
    "overlap": (SECOND | {"images": [[2, 9, A], [10, 20, B]]}, "past the span before it"),
    "touching": (SECOND | {"images": [[2, 9, A], [11, 20, B]]}, "no token stands between"),
    "few rows": (SECOND | {"images": [[2, 8, digest("c")]]}, "an image of 8 rows; one has at le"),
    "other rows": (SECOND | {"images": [[2, 10, A]]}, "an image of 10 rows had 9 before"),
    "other rows at once": (
        FIRST | {"t": 2, "images": [[0, 9, digest("c")], [12, 10, digest("c")]]},
        "an image of 10 rows had 9 before",
    ),
    "parts": (FIRST | {"t": 2, "images": [[2, 9, A]]}, "the images have 9 rows, their part 29"),
    "lost": (SECOND | {"images": [[2, 9, A]]}, "copies the image at 12 of request 0, but 'images'"),
    "another": (
        SECOND | {"images": [[2, 9, A], [12, 20, digest("c")]]},
        "copies the image at 12 of request 0, but 'images' has none at 12",
    ),
    "cut": (
        {"id": "b", "t": 2, "prompt": [[0, 0, 5]], "output": []},
        "copies the image at 2 of request 0, but 'images' has none at 2",
    ),
    "answered": (SECOND | {"output": [[0, 5, 2]]}, "copies the image at 2 of request 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_refused_with_its_line(name: str) -> None:
    line, words = BAD[name]
    with pytest.raises(BadInput) as caught:
        parse(HEADER, FIRST, line)
    message = str(caught.value)
    assert message.startswith("f.jsonl:3: ") and words in message, message
    assert "\n" not in message and len(message) < 200


@given(sequences(), st.integers(0, 2**32))
@settings(deadline=None, max_examples=100)
def test_a_mutated_file_is_refused_or_has_its_pictures(made: Any, seed: int) -> None:
    rng = random.Random(seed)
    lines = list(trace_lines(trace_of(made)))
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(1, len(lines))
        lines[at] = mutated(lines[at], rng)
    try:
        read = parse(*lines)
    except BadInput as refused:
        assert "\n" not in str(refused)
        return
    tokens = Tokens(read)
    for request in read.requests:
        found = places(tokens.prompt(request.number), tokens.pictures(request.number))
        assert [(p.start, p.stop - p.start) for p in found] == [i[:2] for i in request.images]
