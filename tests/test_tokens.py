"""A trace's tokens are equal where it says copied, and part exactly where it says fresh.

Method: the naive form names every token by where it was drawn, straight from the runs. The ids must
be a function of that name, in its class's range; and what follows a copy must differ from what
followed it before, checked over arbitrary traces with many partings at one place. Arrays must not
depend on what was asked for before, nor on how much is kept.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import naive_sequences, small, traces

from cache.types import Ids, common_prefix
from replay import tokens as tokens_module
from replay.tokens import SPECIALS_END, WHITESPACE_END, Tokens
from replay.trace import FRESH, NAMED, SPECIAL, TEXT, WHITESPACE, Header, Request, Run, Trace

VOCAB = 1_000
RANGES = {
    SPECIAL: range(SPECIALS_END),
    WHITESPACE: range(SPECIALS_END, WHITESPACE_END),
    TEXT: range(WHITESPACE_END, VOCAB),
}


def trace_of(*requests: Request) -> Trace:
    return Trace("t", Header(), requests)


def all_ids(tokens: Tokens, trace: Trace) -> dict[int, Ids]:
    return {r.number: tokens.sequence(r.number) for r in trace.requests}


@given(traces(most=8), st.integers(0, 2**64), st.sampled_from([1, 500, 1 << 20]))
@settings(deadline=None, max_examples=60)
def test_ids_are_a_function_of_where_they_were_drawn(trace: Trace, seed: int, keep: int) -> None:
    ids = all_ids(Tokens(trace, VOCAB, seed, keep), trace)
    by_name: dict[tuple[int, int, int], int] = {}
    for number, names in naive_sequences(trace).items():
        assert len(ids[number]) == len(names)
        for name, token in zip(names, ids[number].tolist(), strict=True):
            assert by_name.setdefault(name, token) == token
            assert token in RANGES[name[2]]


@given(traces(most=8), st.integers(0, 2**64))
@settings(deadline=None, max_examples=60)
def test_a_fresh_run_differs_from_what_followed_the_copy(trace: Trace, seed: int) -> None:
    ids = all_ids(Tokens(trace, VOCAB, seed), trace)
    for request in trace.requests:
        at = 0
        for run, after in pairwise(request.prompt + request.output):
            at += run.length
            source = ids.get(run.src)
            follows = run.offset + run.length
            if after.src == FRESH and source is not None and follows < len(source):
                assert ids[request.number][at] != source[follows]


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_equal_prefixes_are_exactly_those_drawn_at_the_same_places(data: st.DataObject) -> None:
    # Prompts that copy a prefix and go on fresh, as conversations do, in the smallest class.
    requests = [small(0, [(-1, SPECIAL, 5)], [])]
    for number in range(1, data.draw(st.integers(2, 12))):
        src = data.draw(st.integers(0, number - 1))
        tokens = requests[src].prompt_tokens
        copy = data.draw(st.integers(0, tokens))
        prompt = [(src, 0, copy)] if copy else []
        requests.append(small(number, [*prompt, (-1, SPECIAL, data.draw(st.integers(1, 3)))], []))
    trace = trace_of(*requests)
    ids, names = all_ids(Tokens(trace, VOCAB), trace), naive_sequences(trace)
    for a in ids:
        for b in range(a):
            pairs = zip(names[a], names[b], strict=False)
            drawn = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
            if drawn is None:
                drawn = min(len(names[a]), len(names[b]))
            assert common_prefix(ids[a], ids[b]) == drawn


def test_when_a_class_is_used_up_the_copy_is_still_parted_from() -> None:
    head = small(0, [(-1, TEXT, 3)], [(-1, SPECIAL, 1)])
    rest = [small(n, [(n - 1, 0, 3)], [(-1, SPECIAL, 1)]) for n in range(1, 200)]
    trace = trace_of(head, *rest)
    ids = all_ids(Tokens(trace, VOCAB), trace)
    after = [ids[n][3] for n in range(200)]
    assert len(set(after[:SPECIALS_END])) == SPECIALS_END
    assert all(one != other for one, other in pairwise(after))


def test_a_parting_is_moved_even_when_the_draw_collides(monkeypatch: pytest.MonkeyPatch) -> None:
    # With a hash that gives one id for everything, only the redraw can tell the answers apart.
    monkeypatch.setattr(tokens_module, "_mix", lambda z: 0)
    zeros = np.zeros(1 << 14, dtype=np.uint64)
    monkeypatch.setattr(tokens_module, "_hashes", lambda start, count: zeros[:count].copy())
    trace = trace_of(
        small(0, [(-1, TEXT, 4)], [(-1, TEXT, 2)]),
        small(1, [(0, 0, 4), (-1, TEXT, 2)], []),
        small(2, [(1, 0, 4), (-1, TEXT, 1)], []),
        small(3, [(2, 2, 2), (-1, TEXT, 1)], []),
        small(4, [(1, 5, 1), (1, 3, 2)], []),
    )
    # Nothing but the last is kept, so that the copies are drawn again.
    ids = all_ids(Tokens(trace, VOCAB, keep_tokens=1), trace)
    first = WHITESPACE_END
    assert ids[0].tolist() == [first] * 6
    assert ids[1].tolist() == [first] * 4 + [first + 1, first]
    assert ids[2].tolist() == [first] * 4 + [first + 2]
    assert ids[3].tolist() == [first, first, first + 3]
    assert ids[4].tolist() == [first, first, first + 1]


@given(traces(most=6), st.integers(1, 40), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_the_order_of_asking_and_what_is_kept_change_nothing(
    trace: Trace, piece: int, random: object
) -> None:
    expected = all_ids(Tokens(trace, VOCAB, 3), trace)
    numbers = [r.number for r in trace.requests] * 2
    random.shuffle(numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens_module, "_PIECE", piece)
        tokens = Tokens(trace, VOCAB, 3, keep_tokens=200)
        for number in numbers:
            assert np.array_equal(tokens.sequence(number), expected[number])


def test_prompt_and_output_are_read_only_parts_of_the_sequence() -> None:
    tokens = Tokens(trace_of(small(0, [(-1, 0, 5)], [(-1, 1, 2)])))
    assert tokens.prompt(0).tolist() + tokens.output(0).tolist() == tokens.sequence(0).tolist()
    assert tokens.sequence(0).dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        tokens.prompt(0)[0] = 1


def test_two_seeds_give_two_texts() -> None:
    trace = trace_of(small(0, [(-1, TEXT, 5_000)], []))
    one, other = (Tokens(trace, seed=seed).prompt(0) for seed in (0, 1))
    assert (one == other).mean() < 0.002
    assert len(np.unique(one)) > 4_900
    assert common_prefix(one, other) == 0


def test_ids_spread_evenly_over_their_range() -> None:
    trace = trace_of(small(0, [(-1, SPECIAL, 64_000)], []))
    counts = np.bincount(Tokens(trace).prompt(0), minlength=SPECIALS_END)
    assert len(counts) == SPECIALS_END
    assert counts.min() > 850 and counts.max() < 1_150


def test_a_conversation_of_many_turns_stays_one_stretch() -> None:
    requests = [small(0, [(-1, TEXT, 50)], [(-1, TEXT, 5)])]
    for number in range(1, 300):
        held = requests[-1].prompt_tokens + requests[-1].output_tokens
        requests.append(small(number, [(number - 1, 0, held), (-1, TEXT, 20)], [(-1, TEXT, 5)]))
    tokens = Tokens(trace_of(*requests))
    assert len(tokens._stretches[299]) == 300
    assert sum(array.nbytes for array in tokens._stretches.values()) < 300 * 301 * 12
    assert tokens.sequence(299).tolist()[:55] == tokens.sequence(0).tolist()


def test_what_is_kept_stays_within_its_bound() -> None:
    trace = trace_of(*(small(n, [(-1, TEXT, 100)], []) for n in range(20)))
    tokens = Tokens(trace, keep_tokens=350)
    for number in range(20):
        tokens.sequence(number)
        assert tokens._kept_tokens == sum(map(len, tokens._kept.values())) <= 350
    assert list(tokens._kept) == [17, 18, 19]
    big = Tokens(trace_of(small(0, [(-1, TEXT, 1_000)], [])), keep_tokens=1)
    assert len(big.sequence(0)) == 1_000 and big.sequence(0) is big.sequence(0)


def test_the_runs_are_the_module_s_own() -> None:
    # The tests above build runs from plain tuples; this is what they become.
    assert small(0, [(-1, 0, 5)], []).prompt == (Run(FRESH, TEXT, 5),)


def test_a_named_token_is_the_same_one_wherever_it_stands() -> None:
    first = Request(0, "a", 0.0, (Run(FRESH, NAMED + 4, 1), Run(FRESH, TEXT, 9)), ())
    second = Request(
        1, "b", 0.0, (Run(FRESH, TEXT, 5), Run(FRESH, NAMED + 4, 1), Run(FRESH, NAMED + 70, 3)), ()
    )
    third = Request(2, "c", 0.0, (Run(1, 4, 4), Run(FRESH, NAMED + 4, 1)), ())
    tokens = Tokens(Trace("t", Header(), (first, second, third)))
    assert tokens.prompt(0)[0] == 4
    assert tokens.prompt(1)[5:].tolist() == [4, 70, 70, 70]
    assert tokens.prompt(2)[1:].tolist() == [4, 70, 70, 4]
