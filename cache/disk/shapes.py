"""The shapes of the tier's files: the sections of chunks and anchors, and what they weigh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cache.format import Layout, Part
from cache.ports import PAGE, Model
from cache.saving import TMP
from cache.types import CacheState, Ids

ROWS, ANCHOR = "rows", "anchor"
"""The two kinds of file."""
IDS = "ids"
"""The section of a chunk that holds its token ids."""
NO_ROOM = (MemoryError, RuntimeError)
"""What a copy raises that finds no memory on its way: torch's own is a RuntimeError."""
PACKAGES, PACKAGE_CHARS = 16, 64
"""How many packages an anchor's file names, the last ones, and how much of each name."""


class Shapes:
    """How one model's state lies in files. Asking for a layout copies nothing."""

    def __init__(self, model: Model, fingerprint: str) -> None:
        """`fingerprint` is what computes the rows, as every file says of itself."""
        state, cost, grid = model.cache_state(), model.cost(), model.grid
        self.grid = grid
        self.fingerprint = fingerprint
        manifest = model.manifest()
        self.renamed: Mapping[str, str] = manifest.legacy_names
        self.absent = manifest.legacy_absent
        rows = tuple(
            Part(view.name, view.tensor.dtype, tuple(view.rows(0, grid).shape))
            for view in state.views
        )
        self.rows = (Part(IDS, torch.int32, (grid,)), *rows)
        self.sections = tuple(
            Part(section.name, section.tensor.dtype, tuple(section.tensor.shape))
            for section in state.sections
        )
        chunk = sum(view.rows(0, grid).nbytes for view in state.views)
        anchor = sum(section.tensor.nbytes for section in state.sections)
        # A simulated board's rows are larger than those that really move: budgets count its own.
        self._more = {ROWS: grid * cost.row_bytes - chunk, ANCHOR: cost.anchor_bytes - anchor}

    def chunk(self, name: int, stop: int) -> Layout:
        """A chunk's file: the ids of rows [stop - grid, stop), then those rows of every view."""
        meta = self._meta(name) | {"start": stop - self.grid, "stop": stop}
        return Layout(ROWS, meta, self.rows)

    def anchor(
        self, name: int, line: int, chunks: Sequence[int], packages: Sequence[str] = ()
    ) -> Layout:
        """An anchor's file: every section at the line, and the chunks below by their hashes."""
        below = [f"{chunk:016x}" for chunk in chunks]
        named = [package[:PACKAGE_CHARS] for package in packages[-PACKAGES:]]
        meta = self._meta(name) | {"line": line, "chunks": below, "packages": named}
        return Layout(ANCHOR, meta, self.sections)

    def _meta(self, name: int) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, "hash": f"{name:016x}", "grid": self.grid}

    def weight(self, kind: str, file_bytes: int) -> int:
        """What a file counts for under the budget: its size, with the board's rows in it."""
        return max(0, file_bytes + self._more[kind])

    def weigh(self, name: str, nbytes: int) -> int:
        """What real bytes of the file of this name stand for, a passing name or not.

        A page alone is a header, and weighs what it is.
        """
        kind = name.removesuffix(TMP).rpartition(".")[2]
        return nbytes if nbytes <= PAGE or kind not in self._more else self.weight(kind, nbytes)

    def bytes_of(self, kind: str, chunks: int = 1) -> int:
        """What a file of this kind, yet to be written, will count for; an anchor names `chunks`."""
        if kind == ROWS:
            return self.weight(ROWS, self.chunk(0, self.grid).nbytes)
        names = [0] * chunks
        return self.weight(ANCHOR, self.anchor(0, chunks * self.grid, names).nbytes)

    def slot_bytes(self, kind: str, chunks: int) -> int:
        """A staging buffer for any file of this kind, with up to `chunks` chunks below."""
        if kind == ROWS:
            return self.chunk(0, self.grid).nbytes
        # A character beyond the basic plane takes the most JSON.
        packages = [PACKAGE_CHARS * "\U0010ffff"] * PACKAGES
        return self.anchor(0, chunks * self.grid, [0] * chunks, packages).nbytes


def fill_chunk(
    tensors: Sequence[torch.Tensor], ids: Ids, state: CacheState, start: int, stop: int
) -> None:
    """Copy ids and rows [start, stop) of every view into a chunk's sections. Raises NO_ROOM."""
    tensors[0].copy_(torch.from_numpy(ids[start:stop]))
    for view, tensor in zip(state.views, tensors[1:], strict=True):
        tensor.copy_(view.rows(start, stop))


def put_chunk(tensors: Sequence[torch.Tensor], state: CacheState, start: int, stop: int) -> None:
    """Write a chunk's rows where they belong. Raises NO_ROOM; some may be written then."""
    for view, tensor in zip(state.views, tensors[1:], strict=True):
        view.rows(start, stop).copy_(tensor)


def has_ids(tensors: Sequence[torch.Tensor], ids: Ids, start: int, stop: int) -> bool:
    """Whether a chunk's ids are these, every one of them."""
    return bool(np.array_equal(tensors[0].numpy(), ids[start:stop]))
