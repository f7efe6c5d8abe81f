"""The suffix store: what is added is found, between rebuilds too, once, and never twice held.

Method: small stores over a directory with seeded jobs, against a naive search over all that was
added; settings, counts and memory by hand. Covers cache.suffix_overlap.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffix_files import SHA, Faulty, PowerFiles

from cache import suffix_array
from cache.host import OsFiles, SystemClock, ThreadJobs
from cache.suffix_array import SuffixArray
from cache.suffix_log import NAME
from cache.suffix_overlap import Overlap, overlap
from cache.suffix_store import SuffixConfig, SuffixStore
from cache.types import Ids, Refusal
from sim.clock import VirtualClock
from sim.jobs import SeededJobs


def store_of(files: Any, seed: int = 0, **settings: Any) -> SuffixStore:
    config = SuffixConfig(**{"rebuild_tokens": 50, "match_min": 2, **settings})
    store = SuffixStore.open(files, SHA, config, VirtualClock(), SeededJobs(seed))
    assert isinstance(store, SuffixStore), store
    return store


def drain(store: SuffixStore) -> None:
    store.drain()


def ids(start: int, count: int) -> Ids:
    return np.arange(start, start + count).astype(np.int32)


def naive(pieces: list[list[int]], context: list[int], least: int, most: int) -> int:
    """Length of the longest end of the context that stands in a piece with something after it."""
    best = 0
    for length in range(least, min(most, len(context)) + 1):
        end = context[-length:]
        for piece in pieces:
            places = range(len(piece) - length)
            if any(piece[at : at + length] == end for at in places):
                best = length
    return best


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=40), min_size=1, max_size=8),
    st.lists(st.integers(0, 5), min_size=1, max_size=10),
    st.integers(0, 3),
)
def test_what_was_added_is_found_whatever_was_built(
    requests: list[list[int]], context: list[int], seed: int
) -> None:
    """Every request is found by its own tokens, in the array or young, after every addition."""
    store = store_of(PowerFiles(), seed, remembered=0, match_max=8)
    for at, request in enumerate(requests):
        store.add(np.array(request, np.int32), [])
        if at % 2:
            drain(store)
    drain(store)
    found = store.lookup(context, 3)
    expected = naive(requests, context, 2, 8)
    assert (found.length if found and found.tokens else 0) <= expected or not found
    if found is not None and found.tokens:
        end = context[-found.length :] + found.tokens
        assert any(
            r[at : at + len(end)] == end for r in requests for at in range(len(r) - len(end) + 1)
        )
    store.settle()
    found = store.lookup(context, 3)
    # The array finds ends of documents as well, which nothing follows.
    assert (found.length if found else 0) >= expected


def test_a_growing_conversation_is_stored_once_and_found_after_a_restart(tmp_path: Path) -> None:
    store = store_of(OsFiles(tmp_path))
    prompt = ids(0, 100)
    for turn in range(5):
        answer = ids(1_000 * (turn + 1), 20).tolist()
        store.add(prompt, answer)
        drain(store)
        prompt = np.concatenate([prompt, np.array(answer, np.int32), ids(500 + 10 * turn, 10)])
    stats = store.stats
    assert stats.added_tokens == 100 + 5 * 20 + 4 * (10 + 8)
    assert stats.sent_tokens == sum(120 + 30 * turn for turn in range(5))
    assert stats.requests == 5 == stats.added_documents and stats.rebuilds >= 1
    store.close()
    again = store_of(OsFiles(tmp_path))
    drain(again)
    assert again.tokens == stats.added_tokens and again.documents == 5
    for turn in range(5):
        found = again.lookup(ids(1_000 * (turn + 1), 10).tolist(), 4)
        assert found is not None and found.length == 10
        assert found.tokens == ids(1_000 * (turn + 1) + 10, 4).tolist()
    assert again.stats.rebuilds == 1 and again.stats.requests == 0
    again.close()


def test_pictures_and_hidden_tokens_never_reach_it(tmp_path: Path) -> None:
    store = store_of(OsFiles(tmp_path))
    prompt = np.concatenate([ids(0, 20), np.full(9, -77, np.int32), ids(50, 20)]).astype(np.int32)
    store.add(prompt, ids(900, 12).tolist(), [(49 + 4, 3)])
    store.settle()
    words = np.frombuffer(store._index.array.text, ">i4").tolist()
    assert not {-77, 904, 905, 906} & set(words)
    assert store.lookup([18, 19], 4) is not None
    across = store.lookup([18, 19], 4)
    assert across is not None and across.tokens == [], "no n-gram across the picture"
    hidden = store.lookup([902, 903], 4)
    assert hidden is not None and hidden.tokens == []
    store.close()


def test_outputs_alone(tmp_path: Path) -> None:
    store = store_of(OsFiles(tmp_path), scope="outputs")
    store.add(ids(0, 100), ids(500, 30).tolist())
    store.settle()
    assert store.tokens == 30 and store.lookup([3, 4], 2) is None
    found = store.lookup([500, 501], 2)
    assert found is not None and found.tokens == [502, 503]
    store.close()


def test_reading_only_adds_nothing_and_writes_nothing(tmp_path: Path) -> None:
    writer = store_of(OsFiles(tmp_path))
    writer.add(ids(0, 60), [7, 8])
    drain(writer)
    writer.close()
    before = (tmp_path / NAME).read_bytes()
    reader = store_of(OsFiles(tmp_path, readonly=True), readonly=True)
    reader.add(ids(500, 60), [])
    reader.settle()
    assert reader.stats.requests == 0 and reader.lookup([500, 501], 2) is None
    assert reader.lookup([10, 11], 2) is not None
    reader.close()
    assert (tmp_path / NAME).read_bytes() == before


def test_the_array_is_built_when_it_is_worth_it() -> None:
    store = store_of(PowerFiles(), rebuild_tokens=100, rebuild_share=0.5)
    built = []
    for number in range(40):
        store.add(ids(1_000 * number, 49), [])
        drain(store)
        built.append(store.stats.rebuilds)
    sizes = [50 * (at + 1) for at in range(40) if built[at] > (built[at - 1] if at else 0)]
    # 50 tokens a document: at 100 first, then whenever half as much again is young.
    assert sizes == [100, 200, 300, 450, 700, 1_050, 1_600]
    assert store.stats.rebuilt_tokens == sum(sizes) < 3 * 2_000


def test_a_whole_array_stays_when_there_is_no_room_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = store_of(PowerFiles())
    store.add(ids(0, 60), [])
    drain(store)

    def fails(text: bytes) -> None:
        raise Exception("libdivsufsort error", -2)

    monkeypatch.setattr(suffix_array, "divsufsort", fails)
    store.add(ids(1_000, 60), [])
    drain(store)
    assert store.stats.failed_rebuilds == 1 and store.stats.rebuilds == 1
    for start in (10, 1_010):
        found = store.lookup(ids(start, 5).tolist(), 2)
        assert found is not None and found.length == 5
    monkeypatch.undo()
    store.settle()
    assert store.stats.rebuilds == 2


def test_what_is_forgotten_is_no_longer_found_nor_held() -> None:
    store = store_of(PowerFiles(), cap_bytes=4_096, remembered=0)
    for number in range(60):
        store.add(ids(1_000 * number, 100), [])
        drain(store)
        assert store.file_bytes <= 4_096
        newest = store.lookup(ids(1_000 * number, 50).tolist(), 2)
        assert newest is not None and newest.length == 32
        # The text, its order, and the chains' table and places; never the whole past.
        assert store.held_bytes() < 8 * 1_200 + 4 * (2**16 + 3_000)
    store.settle()
    assert store.stats.forgotten_documents + store.documents == 60
    kept = range(60 - store.documents, 60)
    for number in range(60):
        found = store.lookup(ids(1_000 * number, 50).tolist(), 2)
        assert (found is not None) == (number in kept)
    assert store._index.array.tokens == 101 * store.documents


def test_a_prompt_longer_than_half_the_cap_keeps_its_end() -> None:
    store = store_of(PowerFiles(), cap_bytes=4_096)
    store.add(ids(0, 3_000), [])
    store.settle()
    assert store.documents == 1 and store.tokens == (2_048 - 56 - 16) // 4
    assert store.lookup([2_998, 2_999], 1) is not None


@pytest.mark.parametrize("seed", range(6))
def test_additions_keep_their_order_whatever_the_jobs_order(seed: int) -> None:
    store = store_of(PowerFiles(), seed)
    prompt = ids(0, 100)
    for turn in range(6):
        store.add(prompt, [])
        prompt = np.concatenate([prompt, ids(1_000 * (turn + 1), 10)])
    drain(store)
    assert store.stats.added_tokens == 100 + 5 * 18
    store.settle()
    assert len(store._index.young) == 0


def test_a_full_drive_is_counted_and_fails_nobody(tmp_path: Path) -> None:
    files = Faulty(OsFiles(tmp_path), 10**9, 28, for_ever=True)
    store = store_of(files)
    store.add(ids(0, 60), [])
    drain(store)
    files._at = files.calls
    store.add(ids(500, 60), [])
    drain(store)
    assert store.errors == 1 and store.stats.refused_tokens == 60 and store.tokens == 60
    files._at = 10**9
    store.add(ids(500, 70), [])
    store.settle()
    assert store.tokens == 60 + 70, "what was refused comes with the next"
    assert store.lookup([500, 501], 1) is not None
    store.close()


def test_on_a_thread_lookups_go_on_while_it_builds(tmp_path: Path) -> None:
    jobs = ThreadJobs()
    config = SuffixConfig(rebuild_tokens=2_000, match_min=3)
    store = SuffixStore.open(OsFiles(tmp_path), SHA, config, SystemClock(), jobs)
    assert not isinstance(store, Refusal)
    random = np.random.default_rng(0)
    for number in range(60):
        request = random.integers(0, 50, 400).astype(np.int32)
        store.add(request, [])
        for at in range(10, 40):
            store.lookup(request[:at].tolist(), 4)
        if number % 10 == 9:
            jobs.drain()
    store.settle()
    assert store.stats.rebuilds > 3 and store.stats.rebuild_s_total > 0
    found = store.lookup(request[:30].tolist(), 4)
    assert found is not None and found.length == 30 and found.tokens == request[30:34].tolist()
    store.close()
    jobs.close()


def test_a_store_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"hello")
    config = SuffixConfig()
    refused = SuffixStore.open(OsFiles(tmp_path), SHA, config, VirtualClock(), SeededJobs(0))
    assert isinstance(refused, Refusal) and refused.name == NAME


# what a benchmark asks

NONE = np.empty(0, np.int32)


def pairs(*prompts: Ids) -> list[tuple[Ids, Ids]]:
    return [(prompt, NONE) for prompt in prompts]


def array_of(stored: Ids) -> SuffixArray:
    return SuffixArray.build(stored.astype(">i4").tobytes())


def test_a_store_that_saw_a_prompt_says_so_and_a_clean_one_does_not() -> None:
    """The head is shared with every other prompt, and stored once, in another document."""
    store = store_of(PowerFiles())
    head = ids(0, 300)
    prompts = [np.concatenate([head, ids(10_000 * n, 200)]) for n in range(1, 6)]
    assert store.saw(pairs(*prompts)) is None
    for prompt in prompts[2:4]:
        store.add(prompt, [])
    assert store.saw(pairs(*prompts)) == Overlap(0, 0, 128), "a shared head was seen too"
    own = store.saw(pairs(ids(10_000 * 1, 200), ids(10_000 * 3, 200)))
    assert own == Overlap(1, 0, 128)
    assert store.saw(pairs(ids(10_000 * 1, 200), ids(10_000 * 5, 200))) is None


def test_short_questions_under_a_head_are_seen_and_answers_alone_too() -> None:
    head, questions = ids(0, 100), [ids(10_000 * n, 40) for n in range(1, 5)]
    asked = [np.concatenate([head, question]) for question in questions]
    store = store_of(PowerFiles())
    for prompt in asked:
        store.add(prompt, [5, 6, 7])
    other = [(np.concatenate([ids(700, 100), q]), NONE) for q in questions]
    assert store.saw(other) is not None, "the question without its head"
    assert store.saw(pairs(np.concatenate([head, ids(90_000, 40)]))) is None, "the head is short"
    outputs = store_of(PowerFiles(), scope="outputs")
    outputs.add(asked[0], ids(500, 40).tolist())
    assert outputs.saw(pairs(*asked)) is None
    assert outputs.saw([(ids(800, 90), ids(500, 40))]) == Overlap(0, 90, 40)


@given(st.integers(0, 300), st.integers(60, 70), st.integers(0, 100))
def test_a_stretch_of_so_many_tokens_is_seen_wherever_it_lies(
    at: int, size: int, before: int
) -> None:
    stored = ids(0, 400)
    asked = np.concatenate([ids(9_000, before), stored[at : at + size], ids(8_000, 50)])
    found = overlap(array_of(stored), pairs(asked), 64, 1_000)
    whole = min(size, 400 - at)
    assert (found is not None) == (whole >= 64)
    if found is not None:
        assert before <= found.at <= before + whole - 64


def test_a_prompt_that_repeats_an_earlier_one_hides_nothing() -> None:
    """Only what the benchmark's own last prompts had is passed over, and was looked up then."""
    stored = ids(0, 400)
    array = array_of(stored)
    base = ids(5_000, 500)
    grown = np.concatenate([base, stored[100:180]])
    assert overlap(array, pairs(base, base, grown, grown), 64, 1_000) == Overlap(2, 500, 64)
    # A stretch that begins in what the prompt before had as well.
    parts = [np.concatenate([base, stored[:n]]) for n in (0, 40, 63, 64)]
    assert overlap(array, pairs(*parts[:3]), 64, 1_000) is None
    assert overlap(array, pairs(*parts), 64, 1_000) == Overlap(3, 500, 64)


def test_a_picture_parts_a_stretch() -> None:
    stored = ids(0, 400)
    picture = np.concatenate([stored[:40], np.array([-5, -5], np.int32), stored[40:80]])
    assert overlap(array_of(stored), pairs(picture), 64, 1_000) is None
