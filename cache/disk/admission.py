"""Admission: which lines of a prompt get an anchor on the drive, before its prefill runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cache.disk.config import DiskConfig


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prompt about to be read, as admission sees it."""

    lines: Sequence[int]
    """Grid lines that its prefill forwards cold, ascending, without a gap."""
    counts: Sequence[int]
    """How often each was read cold, this time among them."""
    size: int
    first: bool
    """It is its session's first long request."""
    last_user: int
    """Row where its last user message starts; 0 when nobody knows."""
    first_answer: int
    """Row where its conversation's first answer starts; 0 while there is none."""


def admitted(prompt: Candidate, config: DiskConfig) -> tuple[int, ...]:
    """Lines that get an anchor, ascending.

    The longest line read cold `admit_after` times: what comes again is worth keeping. Lines where
    an earlier prompt read this far and went on differently: another one will part there. And of a
    session's first long request the last ones below its user message: the next session of the same
    client parts from it there.
    """
    counted = [
        line
        for line, count in zip(prompt.lines, prompt.counts, strict=True)
        if count >= config.admit_after
    ]
    return tuple(sorted({*counted[-1:], *_branches(prompt, config), *_head(prompt, config)}))


def _branches(prompt: Candidate, config: DiskConfig) -> list[int]:
    """The longest lines whose count falls at the next, in the head that sessions can share."""
    stop = prompt.first_answer or prompt.size
    # The last line is no fork: where this prompt ends, nobody went on differently from it.
    falls = [
        line
        for line, (count, after) in zip(prompt.lines, pairwise(prompt.counts), strict=False)
        if count >= config.admit_after and count > after and line <= stop
    ]
    return falls[-config.branches :] if config.branches else []


def _head(prompt: Candidate, config: DiskConfig) -> list[int]:
    """The last lines at or below the start of the user message."""
    if not prompt.first or not config.head_anchors:
        return []
    stop = prompt.last_user or prompt.size
    return [line for line in prompt.lines if line <= stop][-config.head_anchors :]
