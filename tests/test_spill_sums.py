"""The two sums of a buffer: what they are, and that they see what happens to bytes.

Method: Python's integers over the bytes of a contiguous copy, for random dtypes, sizes and strides;
every flipped bit, swap and shift of random words must change them. A plain sum alone is the canary.
"""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cache.spill import sums
from cache.spill.sums import Sums, kernels_for, sums_of, torch_pair

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.int16,
    torch.float32,
    torch.complex64,
    torch.float64,
    torch.complex128,
)
MOD = 1 << 64


def naive(tensor: torch.Tensor) -> Sums:
    """Word by word, in Python's integers."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1)
    data = bytes(flat.view(torch.uint8).tolist())
    data += bytes(-len(data) % 4)
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
    weighted = sum(word * at for at, word in enumerate(words, 1))
    return sum(words) % MOD, weighted % MOD


def noise(seed: int, nbytes: int) -> torch.Tensor:
    return torch.tensor(list(random.Random(seed).randbytes(nbytes)), dtype=torch.uint8)


def words_of(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint32)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 70)), max_size=5), st.integers())
def test_sums_are_those_of_the_words_in_order(
    kinds: list[tuple[torch.dtype, int]], seed: int
) -> None:
    # Bytes of a bool are 0 or 1; every other dtype holds whatever bytes there are.
    rows = [
        noise(seed, count).gt(127) if dtype == torch.bool else noise(seed, 16 * count).view(dtype)
        for dtype, count in kinds
    ]
    assert sums_of(rows) == [naive(tensor) for tensor in rows]


@given(
    *(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 3), st.integers()),
    st.sampled_from([1, 16, sums.STRETCH_MIN]),
)
def test_a_view_with_gaps_is_its_contiguous_copy(
    a: int, b: int, c: int, offset: int, seed: int, stretch_min: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "STRETCH_MIN", stretch_min)
        patch.setattr(sums, "COLUMNS", min(stretch_min, 4))
        views_are_their_copies(a, b, c, offset, seed)


def views_are_their_copies(a: int, b: int, c: int, offset: int, seed: int) -> None:
    whole = noise(seed, 2 * (2 * a * b * c + offset))
    for dtype in (torch.uint8, torch.bfloat16):
        tensor = whole.view(dtype)[offset : offset + 2 * a * b * c].view(a, 2 * b, c)
        views = (tensor, tensor[:, b:], tensor.transpose(0, 2), tensor[:, ::2], tensor[0])
        assert sums_of(views) == [naive(view) for view in views]


def test_stretches_without_a_gap_are_summed_where_they_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sums, "COLUMNS", 64)
    monkeypatch.setattr(sums, "SMALL", 0)
    view = noise(1, 3 * 16 * 1_024).view(3, 16, 1_024)[:, 4:12]
    stretches = sums._stretches(view)
    assert stretches is not None and [len(data) for data in stretches] == [8_192] * 3
    assert stretches[1].data_ptr() == view[1].data_ptr(), "nothing was copied"
    assert sums_of([view]) == [naive(view)]
    # Canary: another order of them is another sum.
    monkeypatch.setattr(sums, "_stretches", lambda tensor: stretches[::-1])
    assert sums_of([view]) != [naive(view)]


def test_conjugated_views_are_what_they_stand_for() -> None:
    tensor = torch.complex(torch.randn(7), torch.randn(7))
    assert sums_of([tensor.conj()]) == [naive(tensor.conj().resolve_conj())]
    negated = torch._neg_view(tensor.real.clone())
    assert sums_of([negated]) == sums_of([-tensor.real]) != sums_of([tensor.real])
    assert sums_of([tensor.conj().imag]) == [naive(tensor.conj().imag.resolve_neg())]


def test_buffers_longer_than_a_piece_and_sums_that_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    large = noise(0, 12_345)
    want = naive(large)
    for columns, piece in ((1, 1), (3, 7), (64, 1_000), (3_086, 3_086), (3_087, 10_000), (64, 1)):
        monkeypatch.setattr(sums, "COLUMNS", columns)
        monkeypatch.setattr(sums, "PIECE", piece)
        assert sums_of([large]) == [want]
    monkeypatch.undo()
    # So many of the largest word that the weighted sum leaves 64 bits.
    count = 150_000
    ones = torch.full((count,), -1, dtype=torch.int32)
    weighted = (2**32 - 1) * count * (count + 1) // 2
    assert weighted > MOD
    assert sums_of([ones]) == [((2**32 - 1) * count, weighted % MOD)]


def test_memory_that_no_word_begins_at() -> None:
    data = memoryview(bytearray(range(40)))
    odd = torch.frombuffer(data[3:], dtype=torch.uint8)
    assert odd.data_ptr() % 4
    assert sums_of([odd, odd[1:]]) == [naive(odd), naive(odd[1:])]


def test_nothing_has_no_sums_and_empty_buffers_have_zeros() -> None:
    assert sums_of([]) == []
    empty = torch.empty(0, 4, dtype=torch.bfloat16)
    assert sums_of([empty, torch.tensor(1.0)]) == [(0, 0), naive(torch.tensor(1.0))]


def test_a_tensor_in_the_hosts_memory_needs_no_kernel() -> None:
    assert kernels_for(torch.zeros(1)) is None


# what they see


WORDS = st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=40)


@given(WORDS, st.data())
def test_what_happens_to_bytes_is_seen(values: list[int], data: st.DataObject) -> None:
    before = sums_of([words_of(*values)])
    i, j = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=2, max_size=2, unique=True))
    swapped = list(values)
    swapped[i], swapped[j] = values[j], values[i]
    flipped = list(values)
    flipped[i] ^= 1 << data.draw(st.integers(0, 31))
    assert sums_of([words_of(*flipped)]) != before
    if values[i] != values[j]:
        assert sums_of([words_of(*swapped)]) != before
    if any(values):
        assert sums_of([words_of(0, *values)]) != before, "moved by a position"
        assert sums_of([words_of(*values[1:], values[0])]) != before or len(set(values)) == 1


def test_zero_rows_behind_are_not_seen_and_before_are() -> None:
    """Which is why sizes are compared beside the sums."""
    rows, zeros = torch.ones(3, 8), torch.zeros(1, 8)
    assert sums_of([torch.cat([rows, zeros])]) == sums_of([rows])
    assert sums_of([torch.cat([zeros, rows])]) != sums_of([rows])


@pytest.mark.parametrize("kept", [0, 1])
def test_canary_one_sum_alone_misses_what_two_see(kept: int) -> None:
    a, b = words_of(5, 9, 2), words_of(9, 5, 2)
    if kept == 1:
        # 5*1 + 9*2 + 2*3 = 8*1 + 0*2 + 7*3
        b = words_of(8, 0, 7)
    (one,), (other,) = sums_of([a]), sums_of([b])
    assert one[kept] == other[kept] and one != other


def test_canary_a_signed_word_is_seen() -> None:
    words = torch.tensor([-1, 3], dtype=torch.int32)
    signed = int(words.sum()) % MOD
    assert sums_of([words])[0][0] != signed
    assert [int(one) for one in torch_pair(words)] == [2**32 + 2, 2**32 - 1 + 6]
