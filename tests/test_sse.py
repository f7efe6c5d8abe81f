"""Goal: events come out whole whatever pieces their bytes came in.

Method: a naive twin that sees the whole text at once is the oracle for random streams cut at random
places; the cases servers really send (CRLF, comments, several data lines, no last empty line) are
spelt out.
"""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.sse import Events


def whole(stream: bytes) -> list[str]:
    """The naive twin: the stream as one text, split at empty lines."""
    text = stream.decode("utf-8", "replace")
    events, data = [], []
    for line in [*re.split("\r\n|\r|\n", text), ""]:
        if not line:
            if data:
                events.append("\n".join(data))
            data = []
        elif re.match(r"data(:|$)", line):
            data.append(re.sub(r"^data:? ?", "", line))
    return events


def pieced(stream: bytes, cuts: list[int]) -> list[str]:
    events = Events()
    found = []
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        found += events.feed(stream[start:end])
    return found + events.close()


TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=6)
LINES = st.lists(
    st.tuples(
        st.sampled_from(["data: ", "data:", "data", ": ping ", "event: ", "id:", "", "data:  "]),
        st.text(
            st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=6
        ),
        st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r"]),
    ),
    max_size=12,
)


@given(LINES, st.lists(st.integers(0, 400), max_size=12))
def test_any_cut_gives_the_same_events(lines: list[tuple[str, str, str]], cuts: list[int]) -> None:
    stream = "".join(f"{field}{text}{end}" for field, text, end in lines).encode()
    assert pieced(stream, cuts) == whole(stream)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b": ping\n\n: ping\n\ndata: a\n\n", ["a"]),
        (b"event: x\nid: 4\ndata: a\n\n", ["a"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data:a\n\ndata:  a\n\n", ["a", " a"]),
        (b"data: no end", ["no end"]),
        (b"data\n\n", [""]),
        ("data: é漢🙂\n\n".encode(), ["é漢🙂"]),
        (b"data: \xff\n\n", ["�"]),
        (b"\n\n\r\n", []),
    ],
)
def test_what_servers_send(stream: bytes, expected: list[str]) -> None:
    assert pieced(stream, []) == expected
    assert pieced(stream, list(range(len(stream)))) == expected


def test_an_event_comes_out_with_its_last_byte_and_not_before() -> None:
    events = Events()
    assert events.feed(b"data: a\n") == []
    assert events.feed(b"\n") == ["a"]
    assert events.feed(b"data: b\r\n\r") == ["b"]
    assert events.feed(b"") == []
    assert events.feed(b"\ndata: c\n\n") == ["c"]
