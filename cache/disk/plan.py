"""A plan: what of one prompt is to be written, and how it went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cache.disk.index import Chunk, Entry
from cache.format import Saving
from cache.ports import Model
from cache.types import Ids


@dataclass(slots=True, eq=False)
class Staged:
    """An anchor's file on its way: written under a passing name, until the chunks below are."""

    line: int
    saving: Saving | None = None
    nbytes: int = 0
    why: str = ""
    """Why it was given up."""


@dataclass(slots=True, eq=False)
class Plan:
    """One prompt's anchors and the chunks below them.

    The engine's thread decides and stages; the job writes. `fence` and `stopped` are set by the
    engine's thread while it holds the device's calls, and read by the job while that does.
    """

    model: Model
    ids: Ids
    """Of the rows up to the highest line, shape (lines[-1],)."""
    hashes: tuple[int, ...]
    """Of every grid line up to the highest: the chunks."""
    lines: tuple[int, ...]
    """Where anchors are wanted, ascending."""
    session: str | None
    packages: tuple[tuple[int, str], ...]
    need_bytes: int
    fence: int
    """Rows from here on may be overwritten: they are no longer copied."""
    stopped: str = ""
    """Why nothing more of it is written."""
    closed: bool = False
    """Its prefill is over."""
    finished: bool = False
    """Nothing of it is written any more."""
    staged: list[Staged] = field(default_factory=list)

    def chunks(self, line: int) -> tuple[int, ...]:
        """Hashes of the chunks up to a line."""
        return self.hashes[: line // self.model.grid]

    def below(self, line: int) -> Iterator[tuple[int, int]]:
        """(hash, end) of the chunks up to a line."""
        grid = self.model.grid
        for number, name in enumerate(self.chunks(line), 1):
            yield name, number * grid

    def named(self, line: int) -> tuple[str, ...]:
        """Packages that lie wholly below a line."""
        return tuple(name for stop, name in self.packages if stop <= line)


@dataclass(slots=True, eq=False)
class Done:
    """What became of a plan: its result, for the engine's thread to take in."""

    plan: Plan
    chunks: list[Chunk] = field(default_factory=list)
    """Written now."""
    entries: list[Entry] = field(default_factory=list)
    """Acknowledged: on the drive with every chunk below, names and all."""
    dropped: list[tuple[int, str]] = field(default_factory=list)
    """(line, why) of anchors that are not."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A file that should have gone and could not."""

    name: str
    why: str


Result = Done | Stuck
