"""Triton kernels of the sums and the byte planes, imported only for tensors on a device."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

BLOCK = 4_096
"""Words, or elements, a program of the grid works on."""


@triton.jit  # type: ignore[untyped-decorator]
def _pair_kernel(words, pair, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + at, mask=at < n, other=0).to(tl.int64) & 0xFFFFFFFF
    tl.atomic_add(pair, tl.sum(word, 0))
    tl.atomic_add(pair + 1, tl.sum(word * (at + 1), 0))


@triton.jit  # type: ignore[untyped-decorator]
def _split_kernel(ints, planes, n, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(ints + at, mask=at < n, other=0)
    for k in tl.static_range(SIZE):
        byte = ((value >> (8 * k)) & 0xFF).to(tl.uint8)
        tl.store(planes + k * stride + at, byte, mask=at < n)


@triton.jit  # type: ignore[untyped-decorator]
def _join_kernel(planes, ints, n, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.zeros((BLOCK,), ints.dtype.element_ty)
    for k in tl.static_range(SIZE):
        byte = tl.load(planes + k * stride + at, mask=at < n, other=0)
        value |= byte.to(ints.dtype.element_ty) << (8 * k)
    tl.store(ints + at, value, mask=at < n)


def pair(words: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    """(plain, weighted) of int32 words, shape (n,), as int64 that wrapped; on their device.

    Integer sums come out the same in any order, so the atomic additions leave no choice open.
    """
    sums = torch.zeros(2, dtype=torch.int64, device=words.device)
    if len(words):
        with _where(words):
            _pair_kernel[(triton.cdiv(len(words), block),)](words, sums, len(words), BLOCK=block)
    return sums


def split(ints: torch.Tensor, into: torch.Tensor, block: int = BLOCK) -> None:
    """Planes of contiguous integers, shape (n,), into uint8 (itemsize, n) of any row stride."""
    assert ints.is_contiguous() and (into.stride(1) == 1 or into.numel() == 0)
    if len(ints):
        grid, size = (triton.cdiv(len(ints), block),), ints.itemsize
        with _where(ints):
            _split_kernel[grid](ints, into, len(ints), into.stride(0), SIZE=size, BLOCK=block)


def join(planes: torch.Tensor, into: torch.Tensor, block: int = BLOCK) -> None:
    """Contiguous integers, shape (n,), of uint8 planes (itemsize, n) of any row stride."""
    assert into.is_contiguous() and (planes.stride(1) == 1 or planes.numel() == 0)
    if len(into):
        grid, size = (triton.cdiv(len(into), block),), into.itemsize
        with _where(into):
            _join_kernel[grid](planes, into, len(into), planes.stride(0), SIZE=size, BLOCK=block)


def _where(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Triton starts kernels on the thread's current device and stream: the first device's, in a
    thread that never chose another. For a tensor in the host's memory it changes nothing.
    """
    return torch.cuda.device(tensor.get_device())
