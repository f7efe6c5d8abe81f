"""The n-gram table of per-layer embeddings: what a model asks of it, and which one it gets"""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from engine.flash.table_cold import ColdTable
from engine.flash.table_file import Header, check, random_blocks
from engine.flash.table_warm import WarmTable

Policy = Literal["warm", "cold"]
"""Through the page cache, or around it through a hot-row cache of a set size."""
CACHE_BYTES = 2 << 30
"""Of the hot-row cache (the seed's figure)."""


class Table(Protocol):
    """Rows of a fixed width by number. Twins share one, and any thread may ask."""

    @property
    def header(self) -> Header:
        """Rows, width and dtype."""

    @property
    def said(self) -> str:
        """What the operator should know of how rows are read, in one line; "" when nothing."""

    def rows(self, keys: torch.Tensor) -> torch.Tensor:
        """Rows [n, width] of int64 keys [n] in [0, rows), in the table's dtype, on the CPU.

        Raises TableUnreadable, and never returns a row that is not the key's.
        """

    def resident_bytes(self) -> int:
        """Page cache that is kept on purpose. Walks the pages of the file: 1 ms a GiB."""

    def digest(self) -> str:
        """What tells this table from others. Raises TableUnreadable."""

    def close(self) -> None:
        """Give files and memory back; no call may be under way."""


class MemoryTable:
    """A table that is a tensor [rows, width], for models without files."""

    def __init__(self, tensor: torch.Tensor, digest: str = "") -> None:
        assert tensor.ndim == 2
        self.tensor, self._digest = tensor, digest
        self.header = Header(tensor.shape[0], tensor.shape[1], tensor.dtype)
        self.said = ""

    @classmethod
    def random(cls, *, rows: int, width: int, dtype: torch.dtype, seed: int) -> MemoryTable:
        """Normal rows, each block of them from the seed and its own number."""
        blocks = random_blocks(Header(rows, width, dtype), seed)
        return cls(torch.cat(list(blocks)), f"random seed={seed} {rows} x {width} {dtype}")

    def rows(self, keys: torch.Tensor) -> torch.Tensor:
        """Rows [n, width] of int64 keys [n]."""
        return self.tensor[keys]

    def resident_bytes(self) -> int:
        """None of it is page cache."""
        return 0

    def digest(self) -> str:
        """How it was made; "" for a tensor that somebody gave."""
        return self._digest

    def close(self) -> None:
        """Nothing is open."""


def open_table(
    path: str,
    *,
    policy: Policy,
    cache_bytes: int = CACHE_BYTES,
    rows: int | None = None,
    width: int | None = None,
    dtype: torch.dtype | None = None,
) -> Table:
    """Open a table's file; `cache_bytes` are for the cold policy.

    Raises BadInput, also where rows, width or dtype are given and the file has others.
    """
    table: WarmTable | ColdTable
    table = WarmTable(path) if policy == "warm" else ColdTable(path, cache_bytes)
    try:
        check(path, table.header, rows=rows, width=width, dtype=dtype)
    except ValueError:
        table.close()
        raise
    return table
