"""Where the rows are of a conversation that is to be written: in place, or in the pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from cache.account import Account
from cache.parked import Parked
from cache.ports import Model
from cache.types import CacheState

Rows = Callable[[int, int], list[torch.Tensor]]
"""Rows [start, stop) of every view, in the state's order; nobody writes to them meanwhile."""


@dataclass(frozen=True, slots=True)
class Source:
    """A conversation in memory."""

    account: Account
    rows: Rows = field(repr=False)


def in_place(account: Account, model: Model) -> Source:
    """The one whose rows are in the engine's buffers."""
    state = model.cache_state()
    return Source(account, lambda start, stop: _live(state, start, stop))


def parked(entry: Parked, model: Model) -> Source:
    """One of the pool: below its base and above its blocks, its rows are those in place."""
    state = model.cache_state()
    return Source(entry.account, lambda start, stop: _gathered(entry, state, start, stop))


def _live(state: CacheState, start: int, stop: int) -> list[torch.Tensor]:
    return [view.rows(start, stop) for view in state.views]


def _gathered(entry: Parked, state: CacheState, start: int, stop: int) -> list[torch.Tensor]:
    """Rows from wherever they lie; copied together only where they lie apart."""
    pieces: list[list[torch.Tensor]] = []
    at = start
    edges = [*(block.start for block in entry.blocks[1:]), entry.high]
    for block, edge in zip(entry.blocks, edges, strict=False):
        if block.stop <= at or block.start >= min(stop, entry.high):
            continue
        if at < block.start:
            pieces.append(_live(state, at, block.start))
            at = block.start
        upto = min(block.stop, stop, edge, entry.high)
        pieces.append(
            [
                tensor.narrow(view.axis, at - block.start, upto - at)
                for view, tensor in zip(state.views, block.tensors, strict=True)
            ]
        )
        at = upto
    if at < stop:
        pieces.append(_live(state, at, stop))
    if len(pieces) == 1:
        return pieces[0]
    return [
        torch.cat([piece[n] for piece in pieces], dim=view.axis)
        for n, view in enumerate(state.views)
    ]
