"""Weights that any number of engines share, by the kind of model they are"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cache.types import Cost
from engine.adapter import Engine
from engine.flash.decoder import FlashDecoder
from engine.flash.engine import Flash
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.pictures.encoded import Encoded

GRID = 1_024
"""Of the hybrid's prefill, as the seed's."""
FLASH_GRID = 4_096
"""Of the flash model's: coarser, since more of a chunk's work is its own."""


class Loaded(Protocol):
    """A model without a sequence."""

    @property
    def vocab(self) -> int:
        """Token ids it knows: [0, vocab)."""

    @property
    def grid(self) -> int:
        """What its prefill is cut into where nobody says otherwise."""

    @property
    def window_max(self) -> int | None:
        """Positions it was made for; None where nobody says."""

    @property
    def said(self) -> str:
        """What went otherwise than asked when it was opened, in one line; empty for nothing."""

    def engine(
        self,
        *,
        grid: int,
        window: int,
        cost: Cost | None = None,
        block_logits: bool = True,
        encoded: Encoded | None = None,
    ) -> Engine:
        """An empty engine; what each of these is, the engines' constructors say."""


@dataclass(frozen=True, slots=True)
class LoadedHybrid:
    """Gated delta nets and full attention."""

    decoder: Decoder
    window_max: int | None = None
    graphs: bool = True
    grid: int = GRID
    said: str = ""

    @property
    def vocab(self) -> int:
        """Token ids it knows."""
        return self.decoder.config.vocab

    def engine(
        self,
        *,
        grid: int,
        window: int,
        cost: Cost | None = None,
        block_logits: bool = True,
        encoded: Encoded | None = None,
    ) -> Engine:
        """An empty engine; one on a device replays its blocks, unless `graphs` is off."""
        return Hybrid(
            self.decoder,
            grid=grid,
            window=window,
            cost=cost,
            block_logits=block_logits,
            encoded=encoded,
            graphs=self.graphs,
        )


@dataclass(frozen=True, slots=True)
class LoadedFlash:
    """Gated delta nets and sparse attention; it reads no pictures."""

    decoder: FlashDecoder
    window_max: int | None = None
    grid: int = FLASH_GRID

    @property
    def vocab(self) -> int:
        """Token ids it knows."""
        return self.decoder.config.vocab

    @property
    def said(self) -> str:
        """How its table is read, where that is another way than the one asked for."""
        return self.decoder.table.said

    def engine(
        self,
        *,
        grid: int,
        window: int,
        cost: Cost | None = None,
        block_logits: bool = True,
        encoded: Encoded | None = None,
    ) -> Engine:
        """An empty engine."""
        return Flash(self.decoder, grid=grid, window=window, cost=cost, block_logits=block_logits)


@dataclass(frozen=True, slots=True)
class LoadedThird:
    """The made-up architecture, whose arithmetic means nothing."""

    vocab: int
    seed: int
    window_max: int | None = None
    grid: int = GRID
    said: str = ""

    def engine(
        self,
        *,
        grid: int,
        window: int,
        cost: Cost | None = None,
        block_logits: bool = True,
        encoded: Encoded | None = None,
    ) -> Engine:
        """An empty engine."""
        from engine.third import Third  # JAX takes a second to import; nobody else here needs it

        how = {"seed": self.seed, "vocab": self.vocab}
        return Third(grid, window, cost=cost, block_logits=block_logits, **how)
