"""Which lines of a prompt get an anchor on the drive: what repeats, where prompts part, heads.

Method: direct cases from the rules' own words, then random traffic on a small alphabet of chunks
against a twin that counts whole prefixes in the list of everything that was ever read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.disk import admission
from cache.disk.admission import Candidate, admitted
from cache.disk.config import DiskConfig
from cache.disk.counts import Counts

GRID = 64


def candidate(
    counts: Sequence[int],
    *,
    above: int = 0,
    first: bool = False,
    user: int = 0,
    answer: int = 0,
) -> Candidate:
    """A prompt that forwards lines above `above` chunks, with these counts."""
    lines = [(above + n) * GRID for n in range(1, len(counts) + 1)]
    return Candidate(lines, counts, (above + len(counts)) * GRID + 5, first, user, answer)


def chunks_of(prompt: Candidate, **settings: int) -> list[int]:
    """Admitted lines, in chunks."""
    return [line // GRID for line in admitted(prompt, DiskConfig(**settings))]


def test_a_line_read_once_gets_nothing_and_the_longest_read_twice_does() -> None:
    assert chunks_of(candidate([1, 1, 1])) == []
    assert chunks_of(candidate([2, 2, 2])) == [3]
    assert chunks_of(candidate([2, 2, 1])) == [2]
    assert chunks_of(candidate([2, 2, 2], above=4)) == [7]
    assert chunks_of(candidate([2, 2, 1]), admit_after=3) == []
    assert chunks_of(candidate([1, 1, 1]), admit_after=1) == [3]
    assert chunks_of(candidate([])) == [] == chunks_of(candidate([], first=True))


def test_lines_where_prompts_parted_get_one_the_longest_of_them() -> None:
    assert chunks_of(candidate([5, 5, 3, 2, 2, 1])) == [2, 3, 5]
    assert chunks_of(candidate([9, 8, 7, 6, 5, 4, 1])) == [3, 4, 5, 6]
    assert chunks_of(candidate([9, 8, 7, 6, 5, 4, 1]), branches=2) == [5, 6]
    assert chunks_of(candidate([9, 8, 7, 6, 5, 4, 1]), branches=0) == [6]
    # What one prompt alone read there is no fork of prompts that come again.
    assert chunks_of(candidate([3, 3, 1, 1, 1])) == [2]


def test_the_end_of_the_prompt_is_no_fork_and_takes_no_forks_place() -> None:
    assert chunks_of(candidate([6, 5, 4, 3, 2])) == [1, 2, 3, 4, 5]
    assert chunks_of(candidate([3, 2]), branches=1) == [1, 2]


def test_a_fork_past_the_first_answer_is_the_conversations_own() -> None:
    counts = [4, 4, 3, 3, 2, 1]
    assert chunks_of(candidate(counts)) == [2, 4, 5]
    assert chunks_of(candidate(counts, answer=4 * GRID)) == [2, 4, 5]  # 5 is what repeats.
    assert chunks_of(candidate(counts, answer=4 * GRID - 1)) == [2, 5]
    assert chunks_of(candidate(counts, answer=2 * GRID)) == [2, 5]


def test_a_sessions_first_long_request_anchors_the_lines_below_its_user_message() -> None:
    ones = [1] * 8
    assert chunks_of(candidate(ones, first=True, user=7 * GRID)) == [4, 5, 6, 7]
    assert chunks_of(candidate(ones, first=True, user=7 * GRID - 1)) == [3, 4, 5, 6]
    assert chunks_of(candidate(ones, first=True, user=7 * GRID), head_anchors=1) == [7]
    assert chunks_of(candidate(ones, first=True, user=7 * GRID), head_anchors=0) == []
    assert chunks_of(candidate(ones, first=True, user=GRID - 1)) == []
    assert chunks_of(candidate(ones, first=True)) == [5, 6, 7, 8]  # Nobody knows where it starts.
    assert chunks_of(candidate(ones, user=7 * GRID)) == []
    # What serves the prompt already is forwarded by nobody, and has no state to copy.
    assert chunks_of(candidate([1, 1], above=5, first=True, user=7 * GRID)) == [6, 7]
    assert chunks_of(candidate([1, 1], above=7, first=True, user=7 * GRID)) == []


Read = tuple[str, int]
"""A prompt, a letter a chunk, and how many of its chunks were in place already."""


def times(reads: Sequence[Read], prefix: str) -> int:
    """How often a prefix's last line was forwarded cold, counted one by one."""
    return sum(
        len(prefix) > start and prompt[: len(prefix)] == prefix and len(prompt) >= len(prefix)
        for prompt, start in reads
    )


def naive(
    reads: Sequence[Read], first: bool, user: int, answer: int, config: DiskConfig
) -> set[int]:
    """The rules, as they are written: the last of the reads is about to happen."""
    prompt, start = reads[-1]
    cold = [prompt[:n] for n in range(start + 1, len(prompt) + 1)]
    often = [p for p in cold if times(reads, p) >= config.admit_after]
    wanted = {max(often, key=len)} if often else set()
    forks = {
        here
        for here, beyond in pairwise(cold)
        if here in often and times(reads, beyond) < times(reads, here)
        if not answer or len(here) * GRID <= answer
    }
    wanted |= set(sorted(forks, key=len, reverse=True)[: config.branches])
    if first:
        below = [p for p in cold if not user or len(p) * GRID <= user]
        wanted |= set(sorted(below, key=len, reverse=True)[: config.head_anchors])
    return {len(p) for p in wanted}


def compared(
    reads: Sequence[Read], first: bool, user: int, answer: int, config: DiskConfig
) -> tuple[set[int], set[int]]:
    """Chunks that get an anchor: by the counts as they grow, and by the rules."""
    counts, names, found = Counts(1_000), dict[str, int](), tuple[int, ...]()
    for prompt, start in reads:
        cold = [prompt[:n] for n in range(start + 1, len(prompt) + 1)]
        hashes = [names.setdefault(prefix, len(names)) for prefix in cold]
        lines = [len(prefix) * GRID for prefix in cold]
        seen = counts.with_one_more(hashes)
        size = len(prompt) * GRID + 7
        found = admission.admitted(Candidate(lines, seen, size, first, user, answer), config)
        for line in hashes:
            counts.add(line)
        assert [counts[line] for line in hashes] == seen
    assert found == tuple(sorted(set(found)))
    return {line // GRID for line in found}, naive(reads, first, user, answer, config)


PROMPT = st.builds(
    str.__add__, st.sampled_from(("aaaa", "aabb", "aab", "")), st.text("ab", max_size=3)
)
START = st.sampled_from((0, 0, 0, 1, 2, 5))
ROW = st.one_of(st.just(0), st.integers(1, 7).map(lambda n: n * GRID), st.integers(1, 8 * GRID))


@given(
    st.lists(st.tuples(PROMPT, START), min_size=1, max_size=10),
    st.booleans(),
    ROW,
    ROW,
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_random_traffic_gives_what_the_rules_say(
    reads: list[Read], first: bool, user: int, answer: int, after: int, branches: int, head: int
) -> None:
    config = DiskConfig(admit_after=after, branches=branches, head_anchors=head)
    found, expected = compared(reads, first, user, answer, config)
    assert found == expected


BENT = {
    "the end is a fork": ("pairwise", lambda counts: pairwise([*counts, 0])),
    "any line may be one": ("_branches", lambda p, c: [*p.lines[: c.branches]]),
    "no forks": ("_branches", lambda p, c: []),
    "no head": ("_head", lambda p, c: []),
    "a head of every request": (
        "_head",
        lambda p, c: [line for line in p.lines if line <= (p.last_user or p.size)][-1:],
    ),
}


@pytest.mark.parametrize("bent", sorted(BENT))
def test_canary_a_bent_rule_is_told_from_the_real_one(
    bent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DiskConfig(branches=1, head_anchors=1)
    traffic: list[list[Read]] = [
        [("aaab", 0)],
        [("aaab", 0), ("aaab", 0)],
        [("aaaa", 0), ("ab", 0), ("aaaa", 0)],
        [("aaab", 0), ("ab", 0), ("aaaa", 0), ("aaa", 0)],
    ]

    def differs() -> bool:
        cases = ((reads, first) for reads in traffic for first in (False, True))
        both = [compared(reads, first, 3 * GRID, 0, config) for reads, first in cases]
        return any(found != expected for found, expected in both)

    assert not differs()
    monkeypatch.setattr(admission, *BENT[bent])
    assert differs()
