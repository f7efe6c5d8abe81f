"""Why no entry served a prompt that shares a long part with one: a line for the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cache.spill.entry import Entry
from cache.types import Met, Offer

Why = Literal["end_no_align", "anchors_below", "slow", "short"]
"""The end was not reached, alignment refused; its saved anchors lie below what memory serves;
reading costs more than forwarding; what it would save is too short."""


@dataclass(frozen=True, slots=True)
class Unserved:
    """The entry that shares most with a prompt, and why it does not serve it."""

    entry: Entry
    tokens: int
    """Of the prompt."""
    shares: int
    """Leading tokens in common."""
    offer: int
    """The line it has for the prompt; 0 without one."""
    ram: int
    """The line that what is in memory has."""
    why: Why

    @property
    def line(self) -> str:
        """For the journal."""
        return (
            f"eid={self.entry.key:016x} owner={self.entry.session or '-'} tokens={self.tokens} "
            f"shares={self.shares} offer={self.offer} ram={self.ram} why={self.why}"
        )


def why_not(entry: Entry, met: Met, offer: Offer | None, ram: int, *, slow: bool) -> Why:
    """The reason: `offer` is the entry's own, `ram` the line that memory serves, and `slow`
    whether reading would cost more than it saves."""
    account = entry.account
    assert account is not None
    end = account.end.tokens if account.end is not None else None
    if slow:
        return "slow"
    if offer is not None and offer.line.tokens > ram:
        return "short"
    if end is not None and end > met.limit and end > ram:
        return "end_no_align"
    return "anchors_below"
