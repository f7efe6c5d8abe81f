"""Goal: fixed strings are found across any cut, and nothing is held back that can't become one.

Method: random texts of few letters are cut at random and searched; the whole text's first match is
the twin. What is held must always be the beginning of a needle. Bytes are fed one by one into the
detokenizer, and deltas are joined. Canary: a search that looks only inside a piece misses matches.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talks import SINGLE, TOKENIZER

from serve.chat.deltas import (
    CallArguments,
    CallBegins,
    Content,
    Reasoning,
    Whole,
    WholeCall,
    joined,
    whole,
)
from serve.chat.detokenizer import Detokenizer
from serve.chat.seeker import Seeker, partial

letters = st.text("ab", max_size=12)
needles = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def search(pieces: list[str], needles: list[str]) -> tuple[str, str | None]:
    """What comes before the first needle, and which it is."""
    seeker, before = Seeker(needles), ""
    for piece in pieces:
        text, needle, after = seeker.feed(piece)
        before += text
        if needle is not None:
            assert "".join(pieces).startswith(before + needle + after)
            return before, needle
    return before + seeker.end(), None


def twin(text: str, needles: list[str]) -> tuple[str, str | None]:
    """The shortest beginning of the text that ends in a needle."""
    for stop in range(len(text) + 1):
        found = [n for n in needles if text[:stop].endswith(n)]
        if found:
            longest = max(found, key=len)
            return text[: stop - len(longest)], longest
    return text, None


@given(st.lists(letters, max_size=6), needles)
@settings(deadline=None)
def test_every_cut_finds_the_first_match(pieces: list[str], needles: list[str]) -> None:
    assert search(pieces, needles) == twin("".join(pieces), needles)


@given(letters, needles)
@settings(deadline=None)
def test_what_is_held_is_the_longest_beginning_of_a_needle(text: str, needles: list[str]) -> None:
    size = partial(text, tuple(needles))
    sizes = [
        n for n in range(len(text) + 1) if any(s != text[-n:] and s.startswith(text[-n:])
        for s in needles) and n
    ]  # fmt: skip
    assert size == max(sizes, default=0)


def test_canary_a_search_inside_each_piece() -> None:
    pieces = ["xa", "by"]
    assert search(pieces, ["ab"]) == ("x", "ab")
    assert not any("ab" in piece for piece in pieces)


@given(st.lists(st.binary(max_size=3) | st.just("🙂".encode()), max_size=8).map(b"".join))
@settings(deadline=None)
def test_characters_come_whole_whatever_their_tokens(data: bytes) -> None:
    reader = Detokenizer(TOKENIZER)
    texts = [reader.text(SINGLE[bytes([byte])]) for byte in data]
    assert "".join(texts) + reader.end() == data.decode("utf-8", "replace")
    assert reader.end() == ""


def test_half_a_character_is_held() -> None:
    ids = TOKENIZER.encode("🙂", specials=False).tolist()
    reader = Detokenizer(TOKENIZER)
    assert len(ids) > 1
    assert [reader.text(id) for id in ids] == [""] * (len(ids) - 1) + ["🙂"]


def test_deltas_are_joined_as_clients_do() -> None:
    deltas = [
        Reasoning("a"), Reasoning("b"), Content(""), Content("c"),
        CallBegins(0, "x", "f"), CallArguments(0, "{"), CallArguments(0, "}"),
        CallBegins(1, "y", "g"), Content("d"),
    ]  # fmt: skip
    assert joined(deltas) == [
        Reasoning("ab"), Content("c"), CallBegins(0, "x", "f"), CallArguments(0, "{}"),
        CallBegins(1, "y", "g"), Content("d"),
    ]  # fmt: skip
    calls = (WholeCall("x", "f", "{}"), WholeCall("y", "g", ""))
    assert whole(deltas) == whole(joined(deltas)) == Whole("ab", "cd", calls)
    with pytest.raises(KeyError):
        whole([CallArguments(0, "{}")])
