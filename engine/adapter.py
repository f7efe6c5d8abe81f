"""Base of every engine: the Model port, and the forward calls that keep a commit pending."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from cache.types import CacheState, Cost, Ids, Manifest
from engine.capture import CAPTURE
from engine.pictures.encoded import Encoded
from engine.pictures.picture import Picture
from engine.pictures.places import Place, places


class Engine(ABC):
    """One sequence with its own buffers over weights that engines may share.

    Rows [0, length) belong to committed tokens; the sections have absorbed the first
    `length - pending`. A verify block writes rows [length, length + block) and changes no section;
    `accept` says how many of its tokens are committed, and they stay pending until the next verify
    folds them in, or `settle` lands them. Rows past `length` are junk the next call overwrites.
    """

    vocab: int
    choice_rows: int | None = None
    """Past so many, attention leaves rows out by a choice that a near tie may turn; None: never."""

    def __init__(self, grid: int, window: int) -> None:
        assert grid > 0 and window > 0
        self.grid = grid
        self.window = window
        self._settled = 0
        self._pending = 0
        self._block = 0
        self.pictures: tuple[Picture, ...] = ()
        """Of the prompt that is being read, in the order of their rows."""
        self.encoded: Encoded | None = None
        """What a tower made of pictures, shared by all engines over its weights; None without."""
        self.device_lock: AbstractContextManager[object] = CAPTURE
        """What `device_calls` gives. A simulation puts one here that takes its own time."""

    # the Model port

    @property
    def length(self) -> int:
        """Committed tokens, pending ones included."""
        return self._settled + self._pending

    @property
    def pending(self) -> int:
        """Committed tokens that the sections have not absorbed yet."""
        return self._pending

    def settle(self) -> None:
        """Land a pending commit."""
        if self._pending:
            self._land(self._pending)
            self._settled += self._pending
        self._pending = self._block = 0

    def trim_pending(self, length: int) -> bool:
        """Cut a pending commit back to `length`; False when the sections are past it already."""
        assert length <= self.length, f"cannot trim {self.length} tokens to {length}"
        if length < self._settled:
            return False
        self._pending = length - self._settled
        return True

    def resume_at(self, length: int) -> None:
        """Continue at `length` after a copy came back; 0 empties the sections itself."""
        assert 0 <= length <= self.window
        self._pending = self._block = 0
        self._settled = length
        self.pictures = ()
        if length == 0:
            self._clear()
        self._rebuild(length)

    def device_calls(self) -> AbstractContextManager[object]:
        """Held around calls to the device off the engine's thread; re-entrant."""
        return self.device_lock

    @abstractmethod
    def cache_state(self) -> CacheState:
        """The live sections and views, in a fixed order."""

    @abstractmethod
    def cost(self) -> Cost:
        """Bytes a row, bytes an anchor, workspace."""

    @abstractmethod
    def manifest(self) -> Manifest:
        """What computes stored rows."""

    def resident_files(self) -> int:
        """Bytes of page cache that the engine keeps on purpose; twins keep the same ones.

        The kernel counts them as free, so whoever counts memory takes them for used.
        """
        return 0

    # forward

    def look(self, ids: Ids, pictures: Sequence[Picture], line: int) -> None:
        """The prompt `ids`, whose rows from `line` on are prefilled next, has these pictures.

        Call it after `resume_at`, before the first prefill of a prompt with pictures; those below
        `line` need no patches. Each run of negative ids must be the next picture's key ids.
        """
        assert line == self.length
        self._look(places(ids, pictures), line)
        self.pictures = tuple(pictures)

    def prefill(self, ids: Ids) -> torch.Tensor:
        """Forward one piece of a grid chunk; returns the last position's logits, shape (vocab,).

        `ids` must not reach over a grid line: which rows go through one product decides their bits.
        """
        self.settle()
        start, stop = self._settled, self._settled + len(ids)
        assert start < stop <= self.window, f"{stop} rows in a window of {self.window}"
        assert start // self.grid == (stop - 1) // self.grid, "a prefill call crosses a grid line"
        logits = self._chunk(ids)
        self._settled = stop
        return logits

    def verify(self, ids: Ids) -> torch.Tensor:
        """Forward a block after the committed tokens; returns its logits, shape (len(ids), vocab).

        Folds a pending commit in first. Commits nothing: call `accept` next.
        """
        assert len(ids) > 0 and self.length + len(ids) <= self.window
        folded = self._pending
        logits = self._verify(ids, folded)
        self._settled += folded
        self._pending = 0
        self._block = len(ids)
        return logits

    def accept(self, count: int) -> None:
        """Commit the first `count` tokens of the block just verified; they stay pending."""
        assert 0 <= count <= self._block, f"{count} of a block of {self._block}"
        self._pending = count

    def draft(self, token: int, count: int) -> list[int]:
        """Up to `count` guesses of what follows `token`, the next token; [] without a drafter."""
        return []

    @abstractmethod
    def twin(self, window: int) -> Engine:
        """An empty engine over the same weights with buffers of its own."""

    # what a model fills in

    def _look(self, places: tuple[Place, ...], line: int) -> None:  # noqa: B027
        """Make ready to read these pictures. Without a tower their rows are ids like any others."""

    @abstractmethod
    def _chunk(self, ids: Ids) -> torch.Tensor:
        """Prefill from `length`: write rows, advance the sections."""

    @abstractmethod
    def _verify(self, ids: Ids, folded: int) -> torch.Tensor:
        """Absorb the last block's first `folded` tokens, then run the block from there."""

    @abstractmethod
    def _land(self, count: int) -> None:
        """Let the sections absorb the last block's first `count` tokens."""

    @abstractmethod
    def _clear(self) -> None:
        """Put the sections back to an empty sequence's."""

    @abstractmethod
    def _rebuild(self, length: int) -> None:
        """Rebuild what is derived from rows and sections after they were written back."""
