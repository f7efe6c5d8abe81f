"""The memory budget: a ceiling between requests, a peak during a prefill, who gives way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from cache.ports import Memory
from cache.types import Cost, Limits
from cache.workspace import Workspace

LEVELS = ("encoded", "store", "anchors", "end", "stash", "park", "pin")
"""What gives memory back, the cheapest to lose first. The order is the seed's."""
DRIVE = "disk"
"""What a drive takes: buffers that are made once, and the copy of the sections that is about to
serve. Every cache gives for it."""
RETRY_AFTER_S = 30
"""What refuses a prompt is held by no cache: another sequence's work, which ends in tens of
seconds, or the limits themselves, which somebody has to change."""


Grow = Callable[[str, int], bool]
"""Whether the cache of that name may hold so many bytes more; others may have to give theirs."""


def freely(name: str, nbytes: int) -> bool:
    """Nobody counts."""
    return True


class Level(Protocol):
    """A cache as the budget sees it."""

    @property
    def name(self) -> str:
        """One of LEVELS."""

    def held_bytes(self) -> int:
        """Bytes that `release` could give back now: what nothing is using. Changes nothing."""

    def release(self, nbytes: int) -> int:
        """Give back at least `nbytes`, or all it can; its cheapest first. Returns what it gave."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a prompt can't be read now; no cache has given anything for it."""

    why: str
    retry_after_s: int
    need_bytes: int
    """Workspace that the prefill is expected to take."""
    have_bytes: int
    """What the peak would leave it if every cache were given back; 0 when it is passed already."""


class Budget:
    """Holds an engine and its caches to their limits. It decides where prefills start, no more.

    A cache asks before it copies (`grow`), a turn before it reads a prompt (`admit`). Freed blocks
    stay in the allocator's reserve, so they go back to the driver as far as the room is needed.
    """

    def __init__(
        self,
        limits: Limits,
        memory: Memory,
        cost: Callable[[], Cost],
        levels: Sequence[Level] = (),
    ) -> None:
        self.limits = limits
        self.workspace = Workspace(cost)
        self.counters: Counter[str] = Counter()
        """shed.LEVEL in bytes; declined.LEVEL and refused in times."""
        self._memory = memory
        self._levels: tuple[Level, ...] = ()
        self._prefills: dict[int, int] = {}
        """Where the prefill that is under way in a slot goes to."""
        self.over(levels)

    def over(self, levels: Sequence[Level]) -> None:
        """These are the caches, the cheapest to lose first."""
        names = [level.name for level in levels]
        assert names == [name for name in LEVELS if name in names], f"not cheapest first: {names}"
        self._levels = tuple(levels)

    def stats(self) -> dict[str, Any]:
        """Limits, what is held under them, and what was given back, in plain values."""
        kinds: dict[str, dict[str, int]] = {"shed": {}, "declined": {}}
        for name, count in self.counters.items():
            kind, _, level = name.partition(".")
            if level:
                kinds[kind][level] = count
        return {
            "limits": asdict(self.limits),
            "allocated_bytes": self._memory.allocated_bytes(),
            "reserve_bytes": self._memory.reserve_bytes(),
            "learned_bytes": self.workspace.learned_bytes,
            "spare": {level.name: level.held_bytes() for level in self._levels},
            "shed": kinds["shed"],
            "declined": kinds["declined"],
            "refused": self.counters["refused"],
        }

    @property
    def shed_bytes(self) -> int:
        """What the caches have given back so far."""
        return sum(n for name, n in self.counters.items() if name.startswith("shed."))

    def grow(self, name: str, nbytes: int) -> bool:
        """May this cache take `nbytes` more? Ask before the copy is made; False declines.

        The reserve goes back first, then the cheaper caches give theirs, as far as needed; nobody
        gives anything when that would not do.
        """
        assert name in (*LEVELS, DRIVE) and nbytes >= 0, (name, nbytes)
        rank = LEVELS.index(name) if name in LEVELS else len(LEVELS)
        cheaper = [level for level in self._levels if LEVELS.index(level.name) < rank]
        limit = self.limits.ceiling_bytes - self.limits.slack_bytes
        # What the rest of a prefill will take must stay free as well.
        limit = min(limit, self._peak_bytes)
        if self._make_room(limit, nbytes, cheaper):
            return True
        self.counters[f"declined.{name}"] += 1
        return False

    def admit(self, tokens: int, line: int = 0, slot: int = 0) -> Refused | None:
        """Make room for a slot's prefill from `line` to `tokens`, before anything of it has begun.

        As little as needed is given back: the reserve, then the caches, the cheapest first. When
        even all of them would not do, they stay as they are and the prompt is refused.
        """
        assert 0 <= line <= tokens
        need = self.workspace.bytes(tokens) if line < tokens else 0
        if self._make_room(self.limits.peak_bytes, need, self._levels):
            self._prefills[slot] = tokens if need else 0
            return None
        self.counters["refused"] += 1
        have = max(0, self.limits.peak_bytes - self._least_bytes(self._levels))
        why = f"a prefill to {tokens:,} tokens takes {need:,} bytes, {have:,} could be had"
        return Refused(why, RETRY_AFTER_S, need, have)

    def spare(self, tokens: int, nbytes: int) -> bool:
        """Whether a prefill to `tokens`, and `nbytes` beside it, fit with no cache giving anything.

        The allocator's reserve goes back for it, as far as needed.
        """
        need = self.workspace.bytes(tokens) + nbytes
        self._reserve_back(self.limits.peak_bytes, need)
        return self._over(self.limits.peak_bytes, need) <= 0

    def forwards(self) -> None:
        """A chunk of the prefill is about to be forwarded: what it takes is measured from here."""
        self._memory.mark()

    def prefilled(
        self, tokens: int, peak_allocated_bytes: int | None = None, slot: int = 0
    ) -> None:
        """The chunk has brought the slot's prefill to `tokens`: learn what it took.

        `peak_allocated_bytes` is the most that was allocated at once since `forwards`; the memory
        is asked when it is not given. Call it right after the forward, before any cache takes or
        gives memory: all that was allocated beside the workspace is then what is allocated now.
        """
        if peak_allocated_bytes is None:
            peak_allocated_bytes = self._memory.peak_bytes()
        took = peak_allocated_bytes - self._memory.allocated_bytes()
        learned = self.workspace.learn(tokens, took)
        if tokens >= self._prefills.get(slot, 0):
            self._prefills.pop(slot, None)
        elif learned:
            # It holds for the rest of this prefill as well, as far as there is room.
            self._make_room(self._peak_bytes, 0, self._levels)

    @property
    def _peak_bytes(self) -> int:
        """The peak, less what the rest of a prefill under way will take: of several, one chunk is
        forwarded at a time."""
        tokens = max(self._prefills.values(), default=0)
        return self.limits.peak_bytes - self.workspace.bytes(tokens)

    def after_request(self, slot: int = 0) -> None:
        """The slot serves nothing: what the reserve holds over the slack goes back to the driver.

        Caches that were let grow under other limits give what is over the ceiling.
        """
        self._prefills.pop(slot, None)
        limits, memory = self.limits, self._memory
        self._make_room(limits.ceiling_bytes, 0, self._levels)
        if memory.reserve_bytes() > limits.slack_bytes:
            memory.give_back(limits.slack_bytes)

    def _make_room(self, limit: int, more: int, levels: Sequence[Level]) -> bool:
        """Whether `more` bytes fit under the limit; gives back what is needed, or nothing."""
        if self._over(limit, more) <= 0:
            return True
        if self._over(limit, more) <= 0:
            return True
        if self._least_bytes(levels) + more > limit:
            return False
        self._reserve_back(limit, more)
        # A copy that two caches hold is free when both have let go of it: hence a second round.
        for level in [*levels, *levels]:
            over = self._over(limit, more)
            if over <= 0:
                break
            given = level.release(over)
            self.counters[f"shed.{level.name}"] += given
            # What it gave lies in the allocator's reserve now.
            self._reserve_back(limit, more)
        return self._over(limit, more) <= 0

    def _reserve_back(self, limit: int, more: int) -> None:
        over = self._over(limit, more)
        reserve = self._memory.reserve_bytes()
        if over > 0 and reserve:
            self._memory.give_back(max(0, reserve - over))

    def _over(self, limit: int, more: int) -> int:
        return self._memory.allocated_bytes() + self._memory.reserve_bytes() + more - limit

    def _least_bytes(self, levels: Sequence[Level]) -> int:
        """What stays allocated when these levels have given all they can."""
        held = sum(level.held_bytes() for level in levels)
        return self._memory.allocated_bytes() - held
