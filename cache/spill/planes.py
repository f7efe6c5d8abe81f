"""Byte planes: all first bytes of a tensor's elements, then all second bytes, and back."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from cache.spill.sums import kernels_for

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element to what it is read as: numbers as they are, whatever they stand for."""
BLOCK = 1 << 17
"""Elements that are shifted at a time on a CPU, so that they stay in its cache."""
PIECE_MIN = 1 << 10
"""Elements without a gap below which a view is copied before it is cut."""


def carve(memory: memoryview, sizes: Iterable[tuple[int, int]]) -> list[torch.Tensor]:
    """Room for planes in memory: of (planes, bytes of each) uint8 tensors, one after another."""
    carved, at = list[torch.Tensor](), 0
    for planes, nbytes in sizes:
        count = planes * nbytes
        flat = torch.frombuffer(memory, dtype=torch.uint8, count=count, offset=at)
        carved.append(flat.view(planes, nbytes))
        at += count
    return carved


def split(rows: torch.Tensor, into: torch.Tensor) -> None:
    """Write the planes of `rows`, any dtype, shape and strides, into uint8 (itemsize, elements).

    The first plane has the bytes at the lowest address: those of the lowest value. Rows are cut
    where they lie; planes may lie there too, or in the host's memory. Every bit comes back by
    `join`, also of what is no number.
    """
    _check(rows, into)
    ints = _integers(rows.resolve_conj().resolve_neg())
    if rows.itemsize == 16:
        for half in (0, 1):
            split(ints[..., half], into[8 * half : 8 * half + 8])
        return
    kernels = kernels_for(rows)
    if kernels is not None or into.device != rows.device:
        flat = ints.contiguous().view(-1)
        cut = into if into.device == rows.device else torch.empty_like(into, device=rows.device)
        (torch_split if kernels is None else kernels.split)(flat, cut)
        if cut is not into:
            into.copy_(cut)
        return
    start = 0
    for piece in _pieces(ints) or [ints.contiguous().view(-1)]:
        torch_split(piece, into[:, start : start + len(piece)])
        start += len(piece)


def join(planes: torch.Tensor, into: torch.Tensor) -> None:
    """Write the elements of uint8 planes (itemsize, elements) into a view, whatever its strides.

    They are joined where the view lies; the planes may lie there too, or in the host's memory.
    """
    _check(into, planes)
    assert not (into.is_conj() or into.is_neg()), "a view of what it is not"
    ints = _integers(into)
    if into.itemsize == 16:
        for half in (0, 1):
            join(planes[8 * half : 8 * half + 8], ints[..., half])
        return
    kernels = kernels_for(into)
    pieces = None if kernels is not None or planes.device != into.device else _pieces(ints)
    if pieces is None:
        whole = torch.empty(ints.numel(), dtype=ints.dtype, device=ints.device)
        (torch_join if kernels is None else kernels.join)(planes.to(ints.device), whole)
        ints.copy_(whole.view(ints.shape))
        return
    start = 0
    for piece in pieces:
        torch_join(planes[:, start : start + len(piece)], piece)
        start += len(piece)


def torch_split(ints: torch.Tensor, into: torch.Tensor) -> None:
    """Planes of integers, shape (n,), into (itemsize, n); what the Triton kernel is held to."""
    shifted = torch.empty(min(BLOCK, len(ints)), dtype=ints.dtype, device=ints.device)
    for start in range(0, len(ints), BLOCK):
        block = ints[start : start + BLOCK]
        into[0, start : start + len(block)].copy_(block)  # Keeps the lowest byte.
        for k in range(1, ints.itemsize):
            now = torch.bitwise_right_shift(block, 8 * k, out=shifted[: len(block)])
            into[k, start : start + len(block)].copy_(now)


def torch_join(planes: torch.Tensor, into: torch.Tensor) -> None:
    """Integers, shape (n,), of planes (itemsize, n); what the Triton kernel is held to."""
    byte = torch.empty(min(BLOCK, len(into)), dtype=into.dtype, device=into.device)
    for start in range(0, len(into), BLOCK):
        block = into[start : start + BLOCK]
        stop = start + len(block)
        block.copy_(planes[-1, start:stop])
        for k in range(into.itemsize - 2, -1, -1):
            now = byte[: len(block)].copy_(planes[k, start:stop])
            block.bitwise_left_shift_(8).bitwise_or_(now)


def _check(rows: torch.Tensor, planes: torch.Tensor) -> None:
    assert planes.dtype == torch.uint8
    assert planes.shape == (rows.itemsize, rows.numel()), "one plane a byte of an element"


def _integers(rows: torch.Tensor) -> torch.Tensor:
    """The same memory as integers; an element of 16 bytes is two, along a last axis."""
    if rows.itemsize == 16:
        return torch.view_as_real(rows).view(torch.int64)
    return rows.view(INTEGERS[rows.itemsize])


def _pieces(ints: torch.Tensor) -> list[torch.Tensor] | None:
    """Views without gaps, shape (n,), in the order of the elements; None when they are small."""
    if ints.is_contiguous():
        return [ints.view(-1)]
    if ints[0].numel() < PIECE_MIN:
        return None
    pieces: list[torch.Tensor] = []
    for part in ints:
        found = _pieces(part)
        if found is None:
            return None
        pieces += found
    return pieces
