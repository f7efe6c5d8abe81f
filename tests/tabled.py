"""What the tests of n-gram tables share: a random table's file."""

from __future__ import annotations

import torch

from engine.flash.table_file import Header, random_blocks, write_blocks


def write_table(path: str, *, rows: int, width: int, dtype: torch.dtype, seed: int) -> None:
    """The rows of `MemoryTable.random`, never in memory as a whole; raises BadInput."""
    header = Header(rows, width, dtype)
    write_blocks(path, header, random_blocks(header, seed))
