"""Two 64-bit sums of a buffer's bytes, by which a block is known to be the one on the drive."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch

Sums = tuple[int, int]
"""Plain sum of the 32-bit words, and the sum of every word times its position from 1; unsigned,
both mod 2**64. Zero bytes at the end change neither: whoever compares compares sizes too."""

WORD = 4
"""Bytes of a word; it is read little-endian, and a last part of one is filled up with zeros."""
COLUMNS = 1 << 11
"""Words of a row, where a CPU adds up a matrix of them: by rows and by columns, which is quicker
than to multiply each by its position."""
PIECE = 1 << 15
"""Words that are widened at a time on a CPU, so that they stay in its cache."""
STRETCH_MIN = 1 << 12
"""Bytes without a gap below which a view is copied before it is summed."""
SMALL = 1 << 16
"""Bytes of a buffer that is summed as one array on a CPU."""
_UNSIGNED = (1 << 64) - 1
_POSITIONS = np.arange(1, SMALL // WORD + 1, dtype=np.uint64)


def sums_of(rows: Sequence[torch.Tensor]) -> list[Sums]:
    """The sums of each tensor, of any dtype and strides, all of them on one device.

    Those of a view with gaps are the sums of its contiguous copy's bytes. All sums come off the
    device in one copy.
    """
    if all(tensor.device.type == "cpu" and tensor.nbytes <= SMALL for tensor in rows):
        return [_small(_bytes(tensor).numpy()) for tensor in rows]
    pairs = torch.stack([_pair(tensor) for tensor in rows]).cpu().tolist()
    return [(plain & _UNSIGNED, weighted & _UNSIGNED) for plain, weighted in pairs]


def _small(data: npt.NDArray[np.uint8]) -> Sums:
    """The sums of a few bytes, for which calling torch would take most of the time."""
    words = np.zeros(-(-len(data) // WORD), np.uint32)
    words.view(np.uint8)[: len(data)] = data
    wide = words.astype(np.uint64)
    return int(wide.sum()), int((wide * _POSITIONS[: len(wide)]).sum())


def torch_pair(words: torch.Tensor) -> torch.Tensor:
    """(plain, weighted) of int32 words, shape (n,), as int64 that wrapped; on their device.

    What the Triton kernel is held to.
    """
    return _of_rows([words]) if words.device.type == "cpu" else _one_by_one(words)


def _of_rows(stretches: Sequence[torch.Tensor]) -> torch.Tensor:
    """The same of words in stretches, all but the last of whole rows of COLUMNS, on a CPU."""
    step, total = max(1, PIECE // COLUMNS), sum(len(words) // COLUMNS for words in stretches)
    wide = torch.empty(step, COLUMNS, dtype=torch.int64)
    of_row = torch.empty(total, dtype=torch.int64)
    of_column = torch.zeros(COLUMNS, dtype=torch.int64)
    at = 0
    for words in stretches:
        matrix = words[: len(words) // COLUMNS * COLUMNS].view(torch.uint32).view(-1, COLUMNS)
        for start in range(0, len(matrix), step):
            part = matrix[start : start + step]
            now = wide[: len(part)].copy_(part)
            torch.sum(now, 1, out=of_row[at : at + len(part)])
            of_column += now.sum(0)
            at += len(part)
    # A word in row r and column c is at r * COLUMNS + c, from 1.
    rows = (of_row * torch.arange(total)).sum() * COLUMNS
    columns = (of_column * torch.arange(1, COLUMNS + 1)).sum()
    pair = torch.stack([of_row.sum(), rows + columns])
    rest = stretches[-1][len(stretches[-1]) // COLUMNS * COLUMNS :]
    return pair + _behind(_one_by_one(rest), total * COLUMNS)


def _one_by_one(words: torch.Tensor) -> torch.Tensor:
    """The same, every word times its position."""
    wide = words.view(torch.uint32).to(torch.int64)
    position = torch.arange(1, len(words) + 1, device=words.device)
    return torch.stack([wide.sum(), (wide * position).sum()])


def _behind(pair: torch.Tensor, words: int) -> torch.Tensor:
    """The pair of what comes after so many words."""
    return torch.stack([pair[0], pair[1] + pair[0] * words])


def _pair(tensor: torch.Tensor) -> torch.Tensor:
    stretches = _stretches(tensor) if tensor.device.type == "cpu" else None
    if stretches is None or any(len(data) % (WORD * COLUMNS) for data in stretches):
        return _of_bytes(_bytes(tensor))
    return _of_rows([data.view(torch.int32) for data in stretches])


def _stretches(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The bytes of a view with gaps, a tensor for each stretch without one, in the order of its
    elements and where a word may start; None when there is no gap or they are short."""
    if tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    stretches: list[torch.Tensor] = []
    for part in tensor:
        if part.nbytes < STRETCH_MIN:
            return None
        found = [_bytes(part)] if part.is_contiguous() else _stretches(part)
        if found is None:
            return None
        stretches += found
    return stretches


def _of_bytes(data: torch.Tensor) -> torch.Tensor:
    whole = len(data) // WORD * WORD
    words = data[:whole].view(torch.int32)
    kernels = kernels_for(data)
    pair = torch_pair(words) if kernels is None else kernels.pair(words)
    if whole < len(data):
        last = torch.zeros(WORD, dtype=torch.uint8, device=data.device)
        last[: len(data) - whole] = data[whole:]
        pair = pair + _behind(_one_by_one(last.view(torch.int32)), len(words))
    return pair


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in the order of its elements, where a word may start."""
    whole = tensor.resolve_conj().resolve_neg().contiguous()
    # A stride counts for nothing where there is one element, but a view of bytes looks at it.
    flat = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
    aligned = flat.storage_offset() % WORD == 0 and flat.data_ptr() % WORD == 0
    return flat if aligned else flat.clone()


def kernels_for(tensor: torch.Tensor) -> ModuleType | None:
    """The Triton kernels, when the tensor lies on a device that they run on."""
    if not tensor.is_cuda:
        return None
    try:
        from cache.spill import kernels
    except ImportError:
        return None
    return kernels
