"""The kernels on a CUDA device, beside the torch code of the processor.

Goal: at the 27B's shapes, and at odd ones, every kernel is within its bound of the torch code and
e4m3 rows, sums and planes are bit-equal; a second run gives the same bits; attention hangs on the
rows alone, not on the window nor on what lies past them.
Method: the cases of `moorage check device`; skipped without a device.
"""

from __future__ import annotations

from dataclasses import replace

import gpu
import pytest
import torch

from cache.host import SystemClock
from engine.device import Kernels, kernels_for
from replay.device_compare import Case, Stopwatch, compared
from replay.device_kernels import LARGE, SMALL, cases

pytestmark = pytest.mark.gpu
ODD = replace(LARGE, chunks=3, heads=5, tokens=37, key_dim=20, value_dim=72, past=1_001, block=7)


def kernels() -> Kernels:
    found = kernels_for(gpu.device())
    assert found is not None
    return found


def untimed(case: Case) -> Case:
    return replace(case, plain=None)


@pytest.mark.parametrize("sizes", [SMALL, ODD, LARGE], ids=["small", "odd", "large"])
def test_kernels_are_the_torch_codes(sizes: object) -> None:
    watch = Stopwatch(gpu.device(), SystemClock())
    found = [
        compared(untimed(case), watch)
        for case in cases(kernels(), gpu.device(), sizes, 0)  # type: ignore[arg-type]
    ]
    assert [one for one in found if not one.held] == []
    assert {one.kernel for one in found} >= {
        "block sums",
        "byte planes",
        "solve",
        "chunk attention",
    }


def test_a_second_run_gives_the_same_bits() -> None:
    for case in cases(kernels(), gpu.device(), LARGE, 1):
        first, second = case.ours(), case.ours()
        for a, b in zip(first, second, strict=True):
            assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("past", [0, 1, 63, 5_000])
def test_attention_hangs_on_the_rows_alone(dtype: torch.dtype, past: int) -> None:
    device = gpu.device()
    generator = torch.Generator().manual_seed(past)
    q = torch.empty(4, 6, 5, 256).normal_(generator=generator).to(device, dtype)
    rows = torch.empty(2, 4, past + 5, 256).normal_(generator=generator).to(device, dtype)
    found = []
    for window in (past + 5, past + 900):
        keys, values = torch.full((2, 4, window, 256), torch.nan, dtype=dtype, device=device)
        keys[:, : past + 5], values[:, : past + 5] = rows
        count = torch.full((1,), past, device=device)
        found.append(kernels().attend_rows(q, count, keys, values))
    assert found[0].isfinite().all() and torch.equal(*found)
