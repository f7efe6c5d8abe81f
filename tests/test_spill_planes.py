"""Byte planes: every bit of every dtype there and back, whatever the strides.

Method: a plane byte by byte in Python as the oracle; random dtypes, shapes, gaps and bit patterns,
among them numbers that are none; canaries for a plane out of order and a sign that spreads.
"""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cache.spill import planes
from cache.spill.planes import join, split, torch_join, torch_split

DTYPES = (
    torch.uint8,
    torch.int8,
    torch.float8_e5m2,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.int64,
    torch.complex64,
    torch.complex128,
)


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.clone(memory_format=torch.contiguous_format).view(-1)
    return bytes(flat.view(torch.uint8).tolist())


def noise(seed: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    data = list(random.Random(seed).randbytes(count * dtype.itemsize))
    return torch.tensor(data, dtype=torch.uint8).view(dtype)


def naive(tensor: torch.Tensor) -> list[list[int]]:
    data = bits(tensor)
    return [list(data[k :: tensor.itemsize]) for k in range(tensor.itemsize)]


def planes_of(tensor: torch.Tensor) -> torch.Tensor:
    into = torch.full((tensor.itemsize, tensor.numel()), 0xA5, dtype=torch.uint8)
    split(tensor, into)
    return into


def there_and_back(view: torch.Tensor, other: torch.Tensor) -> None:
    """`other` is a view of the same shape with other bits, whose surroundings must stay."""
    cut = planes_of(view)
    assert cut.tolist() == naive(view)
    join(cut, other)
    assert bits(other) == bits(view)


@given(
    st.sampled_from(DTYPES),
    st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 7)),
    st.integers(),
    st.sampled_from([1, 8, planes.PIECE_MIN]),
)
def test_every_bit_comes_back(
    dtype: torch.dtype, shape: tuple[int, int, int], seed: int, piece_min: int
) -> None:
    a, b, c = shape
    before, planes.PIECE_MIN = planes.PIECE_MIN, piece_min
    try:
        for cut in (
            lambda t: t,
            lambda t: t[:, b // 2 :],
            lambda t: t.transpose(0, 1),
            lambda t: t[:, ::2, ::2],
            lambda t: t[0, 0, 0],
            lambda t: t[:, :0],
        ):
            whole, target = (noise(seed + i, dtype, a * b * c).view(a, b, c) for i in (0, 1))
            outside = torch.ones(a, b, c, dtype=torch.bool)
            cut(outside).zero_()
            surroundings = bits(target.view(torch.uint8).view(a, b, c, -1)[outside])
            there_and_back(cut(whole), cut(target))
            assert bits(target.view(torch.uint8).view(a, b, c, -1)[outside]) == surroundings
    finally:
        planes.PIECE_MIN = before


@pytest.mark.parametrize("block", [1, 3, 64, 1 << 17])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64], ids=str)
def test_longer_than_a_block(
    dtype: torch.dtype, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planes, "BLOCK", block)
    monkeypatch.setattr(planes, "PIECE_MIN", 10)
    there_and_back(noise(0, dtype, 200), noise(1, dtype, 200))
    there_and_back(
        noise(0, dtype, 800).view(4, 10, 20)[:, 3:9],
        noise(1, dtype, 800).view(4, 10, 20)[:, :6],
    )


def test_every_pattern_of_two_bytes() -> None:
    """NaNs with a payload, both zeros and numbers below the normal ones among them."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    for dtype in (torch.bfloat16, torch.float16):
        there_and_back(every.view(dtype), torch.zeros(1 << 16, dtype=dtype))
    flags = torch.tensor([True, False, True])
    there_and_back(flags, torch.zeros(3, dtype=torch.bool))


def test_planes_may_lie_apart() -> None:
    rows, store = noise(0, torch.float32, 50), torch.zeros(4, 90, dtype=torch.uint8)
    split(rows, store[:, 20:70])
    assert store[:, 20:70].tolist() == naive(rows)
    assert not store[:, :20].any() and not store[:, 70:].any()
    back = torch.zeros(50)
    join(store[:, 20:70], back)
    assert bits(back) == bits(rows)


def test_a_conjugated_view_is_what_it_stands_for() -> None:
    tensor = torch.complex(torch.randn(6), torch.randn(6))
    assert planes_of(tensor.conj()).tolist() == naive(tensor.conj().resolve_conj())
    assert planes_of(tensor.conj().imag).tolist() == naive(tensor.conj().imag.resolve_neg())
    with pytest.raises(AssertionError):
        join(planes_of(tensor), tensor.conj())


def test_planes_of_another_size_are_a_programmers_error() -> None:
    rows = torch.zeros(4, dtype=torch.bfloat16)
    with pytest.raises(AssertionError):
        split(rows, torch.zeros(2, 5, dtype=torch.uint8))
    with pytest.raises(AssertionError):
        split(rows, torch.zeros(4, 2, dtype=torch.uint8))
    with pytest.raises(AssertionError):
        join(torch.zeros(2, 4, dtype=torch.int8), rows)


def test_canary_planes_out_of_order_and_bytes_with_a_sign_are_seen() -> None:
    rows = noise(0, torch.int32, 40)
    cut = torch.empty(4, 40, dtype=torch.uint8)
    torch_split(rows, cut)
    back = torch.empty(40, dtype=torch.int32)
    torch_join(cut, back)
    assert torch.equal(back, rows)
    torch_join(cut.flip(0), back)
    assert not torch.equal(back, rows)
    # As it would be if the low bytes were read as numbers with a sign.
    signed = cut.view(torch.int8).to(torch.int32)
    back = signed[0] | signed[1] << 8 | signed[2] << 16 | signed[3] << 24
    assert not torch.equal(back, rows)
