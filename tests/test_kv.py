"""One layer's rows: what is written is what is read, plain or coded, and nothing beside it.

Goal: engine.layers.kv writes where it is told and reads the compute dtype; plain rows are the
buffers, without a copy. Method: buffers that are full of other numbers, drawn rows, both kinds.
"""

from __future__ import annotations

import pytest
import torch

from engine.layers.e4m3 import DTYPE, dequantise, quantise
from engine.layers.kv import Kv

HEADS, WINDOW, HEAD = 2, 40, 8


def rows(count: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[n, kv heads, head_dim]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(count, HEADS, HEAD).normal_(generator=generator).to(dtype)


def plain(dtype: torch.dtype = torch.float32) -> Kv:
    """Buffers full of sevens."""
    keys, values = (torch.full((HEADS, WINDOW, HEAD), 7.0, dtype=dtype) for _ in "KV")
    return Kv(keys, values, (), dtype)


def coded(dtype: torch.dtype = torch.float32) -> Kv:
    """The same in codes."""
    keys, values = (torch.full((HEADS, WINDOW, HEAD), 7.0).to(DTYPE) for _ in "KV")
    return Kv(keys, values, [torch.ones(HEADS, WINDOW) for _ in "KV"], dtype)


def test_plain_rows_are_read_where_they_lie() -> None:
    of, k, v = plain(), rows(5, 1), rows(5, 2)
    of.write(3, k, v)
    keys, values = of.read(8)
    assert keys.data_ptr() == of.keys.data_ptr() and values.data_ptr() == of.values.data_ptr()
    assert torch.equal(keys[:, 3:8], k.transpose(0, 1))
    assert torch.equal(values[:, 3:8], v.transpose(0, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coded_rows_are_read_as_they_come_back(dtype: torch.dtype) -> None:
    of, k, v = coded(dtype), rows(5, 1, dtype), rows(5, 2, dtype)
    of.write(3, k, v)
    for got, given in zip(of.read(8), (k, v), strict=True):
        assert got.dtype is dtype and got.shape == (HEADS, 8, HEAD) and got.is_contiguous()
        want = dequantise(*quantise(given), dtype)
        assert torch.equal(got[:, 3:], want.transpose(0, 1))
        assert not torch.equal(want, given)
        assert (got[:, :3] == 7).all()


@pytest.mark.parametrize("make", [plain, coded])
def test_a_write_touches_its_own_rows_alone(make: type[Kv]) -> None:
    of = make()
    of.write(30, rows(4, 1), rows(4, 2))
    for buffer in (of.keys.float(), of.values.float()):
        assert (buffer[:, :30] == 7).all() and (buffer[:, 34:] == 7).all()
        assert not (buffer[:, 30:34] == 7).all(-1).any()
    for scale in of.scales:
        assert (scale[:, :30] == 1).all() and (scale[:, 34:] == 1).all()
        assert not (scale[:, 30:34] == 1).any()


def test_rows_written_one_by_one_are_the_same_bits() -> None:
    whole, single, k, v = coded(), coded(), rows(9, 1), rows(9, 2)
    whole.write(2, k, v)
    for at in range(9):
        single.write(2 + at, k[at : at + 1], v[at : at + 1])
    for a, b in zip(whole.read(WINDOW), single.read(WINDOW), strict=True):
        assert torch.equal(a, b)


def test_attention_reads_what_lies_in_the_buffers() -> None:
    """Over codes it is attention over the plain rows that those stand for."""
    of, same = coded(), plain()
    of.write(0, rows(12, 1), rows(12, 2))
    of.write(12, rows(4, 3), rows(4, 4))
    keys, values = of.read(16)
    same.write(0, keys.transpose(0, 1), values.transpose(0, 1))
    q = rows(8, 5).view(4, 2, HEADS, HEAD).permute(2, 1, 0, 3)
    assert torch.equal(of.attend(q, 12), same.attend(q, 12))
