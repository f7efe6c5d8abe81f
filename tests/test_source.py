"""The rows of a conversation in the pool are its own, wherever they lie.

Method: hypothesis cuts a conversation's rows into blocks and leaves the others in place, with other
numbers wherever its own are not; every range is compared with what a naive row-by-row look gives.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from cache.account import Account
from cache.anchors import AnchorConfig
from cache.parked import Parked
from cache.rows import RowBlock
from cache.source import parked
from cache.types import CacheState, View

VALID = 24
FOREIGN = -1.0
AXES = (0, 1)


class Rows:
    """A model of which only the views are asked for; each row holds its own number."""

    def __init__(self, base: int, high: int) -> None:
        own = torch.arange(VALID, dtype=torch.float32)
        own[base:high] = FOREIGN
        self.views = tuple(View(f"view{axis}", _along(own, axis), axis) for axis in AXES)

    def cache_state(self) -> CacheState:
        return CacheState((), self.views)


def _along(rows: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.stack([rows, rows + 100 * (rows >= 0)], dim=1 - axis).contiguous()


def block(start: int, own: int, stop: int) -> RowBlock:
    """Rows [start, own) of the conversation, and another's up to `stop`."""
    rows = torch.arange(start, stop, dtype=torch.float32)
    rows[own - start :] = FOREIGN
    return RowBlock(start, stop, tuple(_along(rows, axis) for axis in AXES))


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[Parked, Any]:
    base = draw(st.integers(0, VALID - 1))
    high = draw(st.integers(base + 1, VALID))
    cuts = draw(st.sets(st.integers(base + 1, high), max_size=4)) - {high}
    edges = [base, *sorted(cuts), high]
    over = draw(st.lists(st.integers(0, 3), min_size=len(edges), max_size=len(edges)))
    blocks = [
        block(start, own, min(VALID, own + more))
        for start, own, more in zip(edges, edges[1:], over, strict=False)
    ]
    account = Account.empty(VALID, AnchorConfig())
    account.valid = VALID
    return Parked("park", account, base, blocks, 0, high), Rows(base, high)


@given(laid_out(), st.integers(0, VALID - 1), st.integers(1, VALID))
def test_every_row_is_its_own(found: tuple[Parked, Any], start: int, size: int) -> None:
    entry, model = found
    stop = min(VALID, start + size)
    for axis, rows in zip(AXES, parked(entry, model).rows(start, stop), strict=True):
        assert rows.equal(_along(torch.arange(start, stop, dtype=torch.float32), axis))
