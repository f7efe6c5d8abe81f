"""The suffix array and the chains find the longest match of a context's end, and what followed.

Method: both against a naive search over random documents of few different tokens, where matches are
long and many; chains filled at once, one by one, and in any mixture, are the same. Covers
cache.suffix_chains.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache import suffix_array
from cache.suffix_array import SuffixArray
from cache.suffix_chains import BREAK, Chains
from cache.suffix_format import SEPARATOR

Lists = list[list[int]]
documents = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=6)
contexts = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def text_of(of: Lists) -> bytes:
    return b"".join(np.array(d, ">u4").tobytes() + SEPARATOR for d in of)


def bytes_of(ids: list[int]) -> bytes:
    return np.array(ids, ">u4").tobytes()


def places(of: Lists, end: list[int]) -> list[tuple[int, int]]:
    """(document, place after) of every place where `end` stands."""
    found = []
    for number, d in enumerate(of):
        found += [
            (number, at + len(end))
            for at in range(len(d) - len(end) + 1)
            if d[at : at + len(end)] == end
        ]
    return found


def naive(of: Lists, context: list[int], shortest: int) -> list[int]:
    """The longest end of the context that stands in a document; empty when none does."""
    for start in range(len(context) - shortest + 1):
        if places(of, context[start:]):
            return context[start:]
    return []


@given(documents, contexts, st.integers(1, 4))
def test_the_longest_match_is_the_naive_one(of: Lists, context: list[int], least: int) -> None:
    array, expected = SuffixArray.build(text_of(of)), naive(of, context, least)
    found = array.longest(bytes_of(context), least)
    assert (found.length if found else 0) == len(expected)
    if found is not None:
        assert found.high - found.low == len(places(of, expected))


@given(documents, contexts, st.integers(1, 5))
def test_the_newest_follows_what_stands_last(of: Lists, context: list[int], count: int) -> None:
    array, expected = SuffixArray.build(text_of(of)), naive(of, context, 1)
    found = array.longest(bytes_of(context), 1)
    if found is not None:
        number, after = places(of, expected)[-1]
        assert array.newest(found, count) == of[number][after : after + count]


@given(documents, contexts, st.integers(1, 5))
def test_the_most_frequent_is_voted_for_token_by_token(
    of: Lists, context: list[int], count: int
) -> None:
    array, end = SuffixArray.build(text_of(of)), naive(of, context, 1)
    found = array.longest(bytes_of(context), 1)
    if found is None:
        return
    out = array.most_frequent(found, count)
    for at, token in enumerate(out):
        followed = [of[n][p] if p < len(of[n]) else -1 for n, p in places(of, end + out[:at])]
        assert followed.count(token) == max(map(followed.count, followed))
    assert len(out) <= count


def test_an_empty_text_and_a_long_context() -> None:
    array = SuffixArray.build(b"")
    assert array.tokens == 0 and array.longest(bytes_of([1, 2]), 1) is None
    array = SuffixArray.build(text_of([[1, 2, 3]]))
    assert array.longest(bytes_of([1]), 2) is None
    found = array.longest(bytes_of([9] * 50 + [1, 2]), 1)
    assert found is not None and found.length == 2


def test_tokens_of_any_size_keep_their_order() -> None:
    ids = [0, 255, 256, 65_535, 65_536, 2**31 - 1, 65_535]
    array = SuffixArray.build(text_of([ids]))
    for at in range(1, len(ids)):
        found = array.longest(bytes_of(ids[:at]), at)
        assert found is not None and array.newest(found, 9) == ids[at:]


def test_a_document_that_ends_in_the_separators_bytes() -> None:
    ids = [7, 0x00FFFFFF, 0x7FFFFFFF]
    array = SuffixArray.build(text_of([ids, ids]))
    found = array.longest(bytes_of([7]), 1)
    assert found is not None
    assert array.newest(found, 5) == ids[1:] == array.most_frequent(found, 5)


def test_no_room_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(text: bytes) -> np.ndarray:
        raise Exception("libdivsufsort error", -2)

    monkeypatch.setattr(suffix_array, "divsufsort", fails)
    with pytest.raises(MemoryError):
        SuffixArray.build(text_of([[1]]))


# chains


def chains_of(of: Lists, gram: int, *, bits: int = 4, walk: int = 1_000) -> Chains:
    chains = Chains(gram, bits=bits, walk=walk)
    for d in of:
        chains.extend(np.array([*d, BREAK], np.int32))
    return chains


@given(documents, contexts, st.integers(1, 4), st.integers(1, 5))
def test_chains_find_the_newest_of_the_longest(
    of: Lists, context: list[int], gram: int, count: int
) -> None:
    # What nothing follows is no use to the chains.
    inner = [d[:-1] for d in of if len(d) > 1]
    expected = naive(inner, context, gram)
    found = chains_of(of, gram).longest(context, 100, count)
    assert (found.length if found else 0) == len(expected)
    if found is not None:
        number, after = [p for p in places(of, expected) if p[1] < len(of[p[0]])][-1]
        assert found.tokens == of[number][after : after + count]


@given(documents, st.lists(st.booleans(), min_size=8), st.integers(1, 4))
def test_one_by_one_or_at_once_is_the_same(of: Lists, at_once: list[bool], gram: int) -> None:
    whole, mixed = chains_of(of, gram), Chains(gram, bits=4, walk=1_000)
    for number, d in enumerate(of):
        ids = [*d, BREAK]
        if at_once[number % len(at_once)]:
            mixed.extend(np.array(ids, np.int32))
        else:
            for token in ids:
                mixed.append(token)
    assert mixed.tokens().tolist() == whole.tokens().tolist()
    for d in of:
        for at in range(1, len(d) + 1):
            assert mixed.longest(d[:at], 50, 4) == whole.longest(d[:at], 50, 4)


def test_a_short_walk_finds_something_true() -> None:
    ids = np.random.default_rng(0).integers(0, 3, 3_000).astype(np.int32)
    chains = Chains(2, walk=3)
    chains.extend(ids)
    text = ids.tolist()
    for at in range(100, 200):
        found = chains.longest(text[:at], 20, 4)
        assert found is not None
        end = text[at - found.length : at]
        after = [p for _, p in places([text], end)]
        assert any(text[p : p + 4] == found.tokens for p in after)


def test_a_match_is_no_longer_than_asked_and_none_for_a_short_context() -> None:
    chains = chains_of([[1, 2, 3, 4, 5, 6]], 2)
    found = chains.longest([1, 2, 3, 4], 3, 9)
    assert found is not None and found.length == 3 and found.tokens == [5, 6]
    assert chains.longest([4], 3, 9) is None and chains.longest([3, 9], 3, 9) is None
    assert chains.held_bytes() == 4 * (7 + 7 + 16) and len(chains) == 7
