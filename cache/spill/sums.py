"""Two 64-bit sums of a buffer's bytes, by which a block is known to be the one on the drive."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

Sums = tuple[int, int]
"""Plain sum of the 32-bit words, and the sum of every word times its position from 1; unsigned,
both mod 2**64. Zero bytes at the end change neither: whoever compares compares sizes too."""

WORD = 4
"""Bytes of a word; it is read little-endian, and a last part of one is filled up with zeros."""
PIECE = 1 << 16
"""Words that are widened at a time on a CPU, so that they stay in its cache."""
_UNSIGNED = (1 << 64) - 1


def sums_of(rows: Sequence[torch.Tensor]) -> list[Sums]:
    """The sums of each tensor, of any dtype and strides, all of them on one device.

    Those of a view with gaps are the sums of its contiguous copy's bytes. All sums come off the
    device in one copy.
    """
    if not rows:
        return []
    pairs = torch.stack([_pair(_bytes(tensor)) for tensor in rows]).cpu().tolist()
    return [(plain & _UNSIGNED, weighted & _UNSIGNED) for plain, weighted in pairs]


def torch_pair(words: torch.Tensor) -> torch.Tensor:
    """(plain, weighted) of int32 words, shape (n,), as int64 that wrapped; on their device.

    What the Triton kernel is held to.
    """
    pair = torch.zeros(2, dtype=torch.int64, device=words.device)
    piece = min(PIECE, len(words)) if words.device.type == "cpu" else len(words)
    position = torch.arange(1, piece + 1, device=words.device)
    wide = torch.empty(piece, dtype=torch.int64, device=words.device)
    unsigned = words.view(torch.uint32)
    for start in range(0, len(words), max(1, piece)):
        stop = min(start + piece, len(words))
        now = wide[: stop - start].copy_(unsigned[start:stop])
        plain = now.sum()
        pair[0] += plain
        pair[1] += plain * start + _product(now, position[: stop - start])
    return pair


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    # A device has no integer dot product; a CPU's saves a pass over the memory.
    return torch.dot(a, b) if a.device.type == "cpu" else (a * b).sum()


def _pair(data: torch.Tensor) -> torch.Tensor:
    whole = len(data) // WORD * WORD
    words = data[:whole].view(torch.int32)
    kernels = kernels_for(data)
    pair = torch_pair(words) if kernels is None else kernels.pair(words)
    if whole < len(data):
        last = torch.zeros(WORD, dtype=torch.uint8, device=data.device)
        last[: len(data) - whole] = data[whole:]
        value = last.view(torch.int32).to(torch.int64) & 0xFFFF_FFFF
        pair += torch.cat([value, value * (len(words) + 1)])
    return pair


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in the order of its elements, where a word may start."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
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
