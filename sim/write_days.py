"""Fourteen days of what the seed's caches wrote, as events that another budget would have seen

Known from the seed: 212, 137, 144 and 282 GB on the last four days and 203 GB a day over the time
before; 69 GB of planned stops on the last; of 186 saves in four days 81 kept blocks and 52 wrote
nothing; saves of 16,384 tokens and more, conversations of up to 182,000; heads of 30,720 tokens.
What is not known is drawn: how long conversations are and how they grow, the hours of the day.
Heads are what is left of a day's bytes once its conversations are written, so that every day comes
to its sum, with no budget and no codec, as when it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sim.budget_days import DRAIN, EVICT, SLOTS, TIER, Event, Sizes, spill_bytes
from sim.nvme import PLAIN

GB = 1e9
DAY_S = 86_400.0
MEAN_GB = 203.0
LAST_GB, LAST_DRAINS_GB = (212.0, 137.0, 144.0, 282.0), 69.0
DAYS = 14
SPREAD = 0.25
"""Of the other days' bytes, as of the last four's."""

FIRSTS, GROWN, SAME = 53 / 4, 81 / 4, 52 / 4
"""Saves on a day of MEAN_GB: whole, of new blocks alone, and of nothing new."""
FIRST_TOKENS, FIRST_SPREAD, LEAST_TOKENS, MOST_TOKENS = 45_000.0, 0.6, 16_384, 182_000
GROWN_TOKENS, GROWN_SPREAD = 3_000.0, 0.8
"""Median and logarithmic spread of a conversation's rows and of what it grows by."""
DRAINS_GB = 6.0
"""Of a planned stop's conversations on a day that is like the others."""
HEAD_TOKENS = 30_720.0
BEGIN_S, END_S = 8 * 3_600.0, 24 * 3_600.0
"""When people work."""


@dataclass(slots=True)
class _Draw:
    """What has been drawn: the conversations under way, each slot's tokens, 0 for none."""

    rng: np.random.Generator
    sizes: Sizes
    tokens: list[float] = field(default_factory=lambda: [0.0] * SLOTS)
    taken: int = 0

    def fresh(self, most: float = MOST_TOKENS) -> tuple[int, float, float]:
        """Slot, tokens, and that nothing came before: a new one takes the oldest one's slot."""
        slot, self.taken = self.taken % SLOTS, self.taken + 1
        drawn = FIRST_TOKENS * np.exp(self.rng.normal(0, FIRST_SPREAD))
        tokens = float(np.clip(round(drawn), LEAST_TOKENS, most))
        self.tokens[slot] = tokens
        return slot, tokens, 0.0

    def again(self, more: float) -> tuple[int, float, float]:
        """One under way that has grown by so much; a new one where there is none."""
        there = [slot for slot, tokens in enumerate(self.tokens) if tokens]
        if not there:
            return self.fresh()
        slot = int(self.rng.choice(there))
        came = self.tokens[slot]
        self.tokens[slot] = min(came + more, float(MOST_TOKENS))
        return slot, self.tokens[slot], came


def totals_gb(rng: np.random.Generator) -> list[float]:
    """Each day's bytes; all of them come to MEAN_GB a day."""
    others = rng.normal(1.0, SPREAD, DAYS - len(LAST_GB)).clip(0.5, 1.5)
    rest = MEAN_GB * DAYS - sum(LAST_GB)
    return [*(float(one) for one in others / others.sum() * rest), *LAST_GB]


def events(sizes: Sizes, seed: int = 0) -> list[Event]:
    """Every event of all days, in their order."""
    rng = np.random.default_rng(seed)
    draw = _Draw(rng, sizes)
    found: list[Event] = []
    for day, total_gb in enumerate(totals_gb(rng)):
        drains_gb = LAST_DRAINS_GB if day == DAYS - 1 else DRAINS_GB
        todays = sorted(_day(draw, total_gb, drains_gb), key=lambda event: event.at_s)
        at = [event.at_s + day * DAY_S for event in todays]
        todays = [event._replace(at_s=s) for event, s in zip(todays, at, strict=True)]
        found += [todays[0]._replace(new_day=True), *todays[1:]]
    return found


def _day(draw: _Draw, total_gb: float, drains_gb: float) -> Iterator[Event]:
    """A day's events: conversations, planned stops, and heads for the rest of its bytes."""
    rng, sizes, share = draw.rng, draw.sizes, total_gb / MEAN_GB
    counts = (max(1, rng.poisson(share * each)) for each in (FIRSTS, GROWN, SAME))
    kinds = [kind for kind, count in enumerate(counts) for _ in range(count)]
    times = np.sort(rng.uniform(BEGIN_S, END_S, len(kinds) + 1))
    stop, left = int(rng.integers(1, len(times))), total_gb * GB
    for number, kind in enumerate(rng.permutation(kinds)):
        at_s = float(times[number])
        grown = round(GROWN_TOKENS * np.exp(rng.normal(0, GROWN_SPREAD)))
        slot, tokens, came = draw.fresh() if kind == 0 else draw.again(grown if kind == 1 else 0)
        left -= spill_bytes(sizes, tokens - came, 1.0, PLAIN)
        yield Event(at_s, False, EVICT, slot, tokens, came)
        if number + 1 == stop:
            for event in _drains(draw, at_s + 1, drains_gb * GB):
                left -= spill_bytes(sizes, event.tokens - event.came_tokens, 1.0, PLAIN)
                yield event
    count = max(1, round(left / (HEAD_TOKENS * sizes.row_bytes + sizes.anchor_bytes)))
    tokens = max(0.0, (left / count - sizes.anchor_bytes) / sizes.row_bytes)
    for at_s in rng.uniform(BEGIN_S, END_S, count):
        yield Event(float(at_s), False, TIER, SLOTS, tokens, 0.0)


def _drains(draw: _Draw, at_s: float, nbytes: float) -> Iterator[Event]:
    """Planned stops: conversations that were in memory alone, of so many bytes in all, nearly."""
    sizes = draw.sizes
    least = spill_bytes(sizes, LEAST_TOKENS, 1.0, PLAIN)
    while nbytes >= least:
        most = (nbytes - least / 2) / sizes.row_bytes
        slot, tokens, came = draw.fresh(max(LEAST_TOKENS, min(MOST_TOKENS, most)))
        nbytes -= spill_bytes(sizes, tokens, 1.0, PLAIN)
        yield Event(at_s, False, DRAIN, slot, tokens, came)


def by_day(found: Sequence[Event], sizes: Sizes, kind: int) -> list[float]:
    """Bytes of one kind, day by day, with no budget and no codec."""
    days: list[float] = []
    for event in found:
        if event.new_day:
            days.append(0.0)
        if event.kind == kind:
            new = event.tokens - event.came_tokens
            head = event.tokens * sizes.row_bytes + sizes.anchor_bytes
            days[-1] += head if kind == TIER else spill_bytes(sizes, new, 1.0, PLAIN)
    return days
