"""Runs give back their sequences exactly, and the first is the longest prefix any earlier one has.

Method: sequences made of pieces of earlier ones, over alphabets small enough to repeat by chance,
are turned into runs and materialised again, and held to brute force; the prefix tree and the gram
index are held to naive twins; the shapes clients make (a dropped thought, a stripped answer, an
edit, a compaction) must come out as the copies they are, and repeated history is not indexed twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.types import Ids, common_prefix
from replay.grams import GramIndex, gram_hashes
from replay.prefix_tree import PrefixTree
from replay.runs import GRAM, NEAR_GRAM, RunFinder
from replay.trace import FRESH, SPECIAL, TEXT, WHITESPACE, Run

VOCAB = 5000
CLASSES = np.full(VOCAB, TEXT, np.uint8)
CLASSES[0] = WHITESPACE
CLASSES[1] = SPECIAL


def ids_of(values: Sequence[int]) -> Ids:
    return np.array(values, np.int32)


def draw_ids(count: int, seed: int) -> Ids:
    return np.random.default_rng(seed).integers(2, VOCAB, count).astype(np.int32)


HEAD, THOUGHT, ANSWER = draw_ids(200, 1), draw_ids(30, 2), draw_ids(40, 3)
QUESTION, NONE = draw_ids(25, 4), draw_ids(0, 5)


def cat(*parts: Ids) -> Ids:
    return np.concatenate(parts)


def materialised(runs: Sequence[Run], sequences: Sequence[Ids], own: Ids) -> Ids:
    """What runs stand for, with the fresh tokens taken from the original."""
    parts, at = [np.empty(0, np.int32)], 0
    for run in runs:
        if run.src == FRESH:
            part = own[at : at + run.length]
            assert (CLASSES[part] == run.offset).all()
        else:
            part = sequences[run.src][run.offset : run.offset + run.length]
        assert len(part) == run.length > 0
        parts.append(part)
        at += run.length
    return np.concatenate(parts)


class Checked:
    """A finder whose every answer is held to the rules."""

    def __init__(self, gram: int = GRAM) -> None:
        self.finder = RunFinder(CLASSES, gram)
        self.sequences: list[Ids] = []

    def add(
        self, prompt: Ids, output: Ids, session: str | None = None, leads: bool = True
    ) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        runs = self.finder.add(prompt, output, session, leads=leads)
        for part, own in zip(runs, (prompt, output), strict=True):
            assert all(run.src < len(self.sequences) for run in part)
            assert np.array_equal(materialised(part, self.sequences, own), own)
        longest = max((common_prefix(old, prompt) for old in self.sequences), default=0)
        first = runs[0][0] if runs[0] else Run(FRESH, 0, 0)
        # A first run that copies from the middle of a sequence shares no prefix.
        assert (first.length if first.src != FRESH and first.offset == 0 else 0) == longest
        self.sequences.append(np.concatenate([prompt, output]))
        return runs


@st.composite
def nights(draw: st.DrawFn) -> list[tuple[list[int], list[int], str | None]]:
    """Requests whose prompts are cut from earlier sequences, with something fresh between."""
    letters = draw(st.sampled_from([2, 4, 4000]))
    fresh = st.lists(st.integers(0, letters - 1), max_size=12)
    night: list[tuple[list[int], list[int], str | None]] = []
    for _ in range(draw(st.integers(1, 9))):
        prompt = [] if draw(st.booleans()) else draw(fresh)
        for _ in range(draw(st.integers(0, 3)) if night else 0):
            old, out, _ = night[draw(st.integers(0, len(night) - 1))]
            both = old + out
            start = draw(st.sampled_from([0, 0, len(old), len(both) // 3]))
            prompt += both[start : start + draw(st.integers(0, 40))] + draw(fresh)
        night.append((prompt or [0], draw(fresh), draw(st.sampled_from([None, "a", "b"]))))
    return night


@given(nights(), st.sampled_from([2, 4, 16]), st.booleans())
@settings(deadline=None, max_examples=120)
def test_runs_are_exact_and_begin_with_the_longest_prefix(
    night: list[tuple[list[int], list[int], str | None]], gram: int, leads: bool
) -> None:
    checked = Checked(gram)
    for prompt, output, session in night:
        checked.add(ids_of(prompt), ids_of(output), session, leads)


def test_a_hash_is_only_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hashes of two bits nearly every lookup names a place that holds something else."""
    monkeypatch.setattr("replay.runs.gram_hashes", lambda ids, width: gram_hashes(ids, width) & 3)
    checked = Checked(gram=4)
    for number in range(12):
        parts = [draw_ids(30, 50 + number), *(old[5:25] for old in checked.sequences[-3:])]
        checked.add(cat(HEAD[:40], *parts), draw_ids(9, 90 + number), "s")


@given(st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=12))
def test_the_prefix_tree_is_as_good_as_looking_at_every_sequence(lists: list[list[int]]) -> None:
    sequences: list[Ids] = []
    tree = PrefixTree(sequences)
    for values in lists:
        ids = ids_of(values)
        src, length = tree.longest(ids)
        assert length == max((common_prefix(old, ids) for old in sequences), default=0)
        assert (src == -1) == (length == 0)
        assert length == 0 or np.array_equal(sequences[src][:length], ids[:length])
        sequences.append(ids)
        tree.add(len(sequences) - 1)


@given(st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=8))
@settings(deadline=None)
def test_the_gram_index_finds_every_gram(lists: list[list[int]]) -> None:
    index, width = GramIndex(), 4
    held: dict[tuple[int, ...], set[int]] = {}
    for number, values in enumerate(lists):
        hashes = gram_hashes(ids_of(values), width)
        assert len(hashes) == max(0, len(values) - width + 1)
        index.add(hashes, (number << 32) + np.arange(len(hashes)))
        for at in range(len(hashes)):
            held.setdefault(tuple(values[at : at + width]), set()).add((number << 32) + at)
        assert len(index.find(hashes)) <= 8
    for gram, places in held.items():
        found = index.find(gram_hashes(ids_of(gram), width))[:, 0]
        assert found.max() >= 0 and set(found[found >= 0].tolist()) <= places
    missing = index.find(gram_hashes(ids_of([9, 9, 9, 9]), width))
    assert (missing < 0).all()


def test_a_continued_conversation_is_one_copy_and_fresh_text() -> None:
    checked = Checked()
    checked.add(HEAD, ANSWER, "s")
    runs, _ = checked.add(cat(HEAD, ANSWER, QUESTION), NONE, "s")
    assert runs == (Run(0, 0, 240), Run(FRESH, TEXT, 25))


def test_fresh_tokens_are_cut_by_class() -> None:
    runs, _ = Checked().add(ids_of([1, 7, 8, 0, 0, 9]), NONE)
    expected = [(SPECIAL, 1), (TEXT, 2), (WHITESPACE, 2), (TEXT, 1)]
    assert runs == tuple(Run(FRESH, kind, length) for kind, length in expected)


def test_an_answer_comes_back_without_its_thought() -> None:
    checked = Checked()
    checked.add(HEAD, cat(THOUGHT, ANSWER), "s")
    empty = ids_of([3, 1, 3])
    runs, _ = checked.add(cat(HEAD, empty, ANSWER, QUESTION), NONE, "s")
    assert runs[0] == Run(0, 0, 200)
    assert Run(0, 230, 40) in runs


@pytest.mark.parametrize("length", [NEAR_GRAM, GRAM - 1])
def test_a_short_answer_that_comes_back_is_found_in_its_own_session(length: int) -> None:
    for session, found in (("s", True), (None, False)):
        checked = Checked()
        checked.add(HEAD, cat(THOUGHT, ANSWER[:length]), session)
        runs, _ = checked.add(cat(HEAD, ids_of([3]), ANSWER[:length], QUESTION), NONE, session)
        assert (Run(0, 230, length) in runs) == found


def test_an_older_answer_like_this_one_does_not_break_it() -> None:
    """The first 30 tokens stood in an older copy, behind the same marks of an empty thought."""
    marks = ids_of([3, 1, 3])
    first, second = cat(ANSWER[:30], draw_ids(6, 6)), cat(ANSWER[:30], draw_ids(10, 7))
    checked = Checked()
    checked.add(cat(HEAD, marks, first, QUESTION), cat(THOUGHT, second), "s")
    prompt = checked.sequences[0][: len(HEAD) + 3 + len(first) + len(QUESTION)]
    runs, _ = checked.add(cat(prompt, marks, second, QUESTION[:5]), NONE, "s")
    copied = Run(0, len(prompt) + len(THOUGHT), len(second))
    assert copied in runs, runs


def test_a_stripped_answer_is_copied_between_its_blanks() -> None:
    checked = Checked()
    blank = ids_of([0])
    checked.add(HEAD, cat(THOUGHT, blank, ANSWER, blank, ids_of([1])), "s")
    runs, _ = checked.add(cat(HEAD, ids_of([3]), ANSWER, ids_of([1, 0]), QUESTION), NONE, "s")
    assert Run(0, 231, 40) in runs


def test_what_comes_back_in_a_compaction_is_copied() -> None:
    checked = Checked()
    turns = [cat(draw_ids(50, 10 + i)) for i in range(6)]
    for i in range(1, 7):
        checked.add(cat(HEAD, *turns[:i]), NONE, "s")
    quoted = [cat(ids_of([5, 6, 7]), turn) for turn in turns]
    runs, _ = checked.add(cat(draw_ids(20, 99), *quoted), NONE, "s", leads=False)
    copied = sum(run.length for run in runs if run.src != FRESH)
    assert copied >= 6 * 50
    # The kept tail after it is one copy from the session's latest turn, not one a turn.
    runs, _ = checked.add(cat(HEAD, draw_ids(30, 98), *turns[2:], QUESTION), NONE, "s")
    assert Run(5, 200 + 100, 200) in runs


def test_a_side_request_does_not_become_the_sessions_latest() -> None:
    for leads, src in ((False, 1), (True, 2)):
        checked = Checked()
        checked.add(cat(HEAD, QUESTION), NONE, "s")
        checked.add(cat(HEAD, ANSWER), NONE, "s")
        checked.add(HEAD, NONE, "s", leads=leads)
        runs, _ = checked.add(cat(HEAD, THOUGHT), NONE, "s")
        assert runs[0] == Run(src, 0, 200)


def test_an_output_that_repeats_earlier_text_is_copied_too() -> None:
    checked = Checked()
    checked.add(HEAD, ANSWER)
    _, output = checked.add(QUESTION, cat(THOUGHT, HEAD[50:150]))
    assert output == (Run(FRESH, TEXT, 30), Run(0, 50, 100))


def test_history_is_not_indexed_again() -> None:
    """A night of 150 turns with 3 million prompt tokens leaves an index of its fresh ones."""
    finder = RunFinder(CLASSES)
    history = HEAD
    fresh = len(HEAD)
    for turn in range(150):
        question, output = draw_ids(200, 1000 + turn), draw_ids(60, 5000 + turn)
        history = cat(history, question)
        finder.add(history, output, "s")
        history = cat(history, output)
        fresh += 260
    indexed = sum(len(hashes) for hashes, _ in finder._index._levels)
    assert fresh - GRAM <= indexed <= fresh + 150 * 3 * GRAM


def test_one_token_repeated_ten_thousand_times_is_no_trap() -> None:
    checked = Checked()
    same = np.full(10_000, 7, np.int32)
    checked.add(same, NONE)
    runs, _ = checked.add(cat(QUESTION, same, QUESTION, same), same)
    assert len(runs) < 10
