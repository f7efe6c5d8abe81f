"""The device's Triton kernels, under Triton's interpreter on a CPU, beside the torch code.

Goal: the delta rule's chunks and sweep, and attention over counted rows, are the torch code's to
rounding, rows past the count and junk in them touch nothing, and e4m3 rows are bit-equal. A second
run gives the same bits, and neither the window nor where rows lie in it changes any.
Method: a process of its own, since the interpreter has to be asked for before Triton is loaded; it
runs every case, prints what differs, and plants faults that must differ. Covers
engine.kernels.delta_scan, engine.kernels.decode_attention, engine.kernels.rows_e4m3 and
engine.kernels.attend_device (by its shapes; torch's own kernels need the device).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.layers import delta_rule, e4m3
from engine.layers.attend import attend

CLOSE, HALF_CLOSE = 3e-6, 2**-7
"""Bounds on values of order one: float32 sums in another order, bfloat16's last two bits."""
SHARES = 3
BLOCK = 256
CHUNKS = [(1, 1, 64, 16, 24), (3, 2, 9, 12, 40), (1, 2, 1, 16, 16)]
"""Inner chunks, heads, tokens of a chunk, key and value dimensions."""
FULL, HALF = torch.float32, torch.bfloat16
BLOCKS = [
    *((33, 2, FULL, False), (0, 1, FULL, False), (0, 8, HALF, False), (63, 2, HALF, False)),
    *((90, 8, FULL, False), (130, 3, FULL, True), (0, 3, FULL, True), (70, 5, HALF, True)),
]
"""Rows before a block, its tokens, the dtype, and whether rows are e4m3."""


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(seed))


def rule(batch: int, size: int, keys: int, values: int) -> tuple[torch.Tensor, ...]:
    """q, k, v, g and beta as a layer gives them."""
    q, k = (
        torch.nn.functional.normalize(draw(batch, size, keys, seed=at), dim=-1) for at in (1, 2)
    )
    g, beta = -draw(batch, size, seed=3).abs() * 0.1, draw(batch, size, seed=4).sigmoid()
    return q * keys**-0.5, k, draw(batch, size, values, seed=5), g, beta


def far(got: torch.Tensor, want: torch.Tensor, bound: float = CLOSE) -> bool:
    return not bool(((got.double() - want.double()).abs() <= bound).all())


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def chunks_differ() -> list[str]:
    from engine.kernels import delta_scan

    bad = []
    for chunks, heads, size, keys, values in CHUNKS:
        q, k, v, g, beta = rule(chunks * heads, size, keys, values)
        want = delta_rule.solve(q, k, v, g, beta)
        names = ("queries", "decay", "scores", "fresh", "reads")
        for name, got in zip(names, delta_scan.solve(q, k, v, g, beta), strict=True):
            if far(got, getattr(want, name)):
                bad.append(f"{name} of {size} tokens")
        state = draw(heads, keys, values, seed=6)
        parts = want.queries, want.keys, want.decay, want.scores, want.fresh, want.reads
        ours, again = state.clone(), state.clone()
        o = delta_scan.sweep(*parts, ours)
        if not same(o, delta_scan.sweep(*parts, again)) or not same(ours, again):
            bad.append(f"a second sweep of {size} tokens")
        if far(o, delta_rule._sweep(want, state), 1e-5) or far(ours, state, 1e-5):
            bad.append(f"the sweep of {size} tokens")
    return bad


def attended(
    past: int, n: int, dtype: torch.dtype, window: int, coded: bool, heads: int = 2
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the kernel's, the torch code's) over rows that are junk from the block's end on."""
    from engine.kernels import decode_attention

    stop, channels = past + n, 20
    q = draw(heads, 2, n, channels, seed=1).to(dtype)
    k, v = (draw(heads, 160, channels, seed=at).to(dtype)[:, :stop] for at in (2, 3))
    keys = torch.full((heads, window, channels), torch.nan, dtype=dtype)
    values = keys.clone()
    keys[:, :stop], values[:, :stop] = k, v
    count = torch.tensor([past])
    if not coded:
        got = decode_attention.attend_rows(q, count, keys, values, shares=SHARES)
        return got, attend(q, past, k, v)
    (key_codes, key_scales), (value_codes, value_scales) = map(e4m3.quantise, (keys, values))
    scales = key_scales, value_scales
    got = decode_attention.attend_rows(q, count, key_codes, value_codes, scales, shares=SHARES)
    read = [
        e4m3.dequantise(codes[:, :stop], scale[:, :stop], torch.float32)
        for codes, scale in ((key_codes, key_scales), (value_codes, value_scales))
    ]
    return got, attend(q.float(), past, *read)


def attention_differs() -> list[str]:
    bad = []
    for past, n, dtype, coded in BLOCKS:
        got, want = attended(past, n, dtype, 160, coded)
        if far(got, want, HALF_CLOSE if dtype is HALF else CLOSE) or got.dtype is not dtype:
            bad.append(f"{n} after {past}, {dtype}, coded {coded}")
    return bad


def windows_differ() -> list[str]:
    """The bits hang on the rows alone, and are the same at every run."""
    bad = []
    for past, n, coded in ((0, 3, False), (130, 3, True)):
        one, again, wider = (attended(past, n, FULL, size, coded)[0] for size in (133, 133, 160))
        if not same(one, again) or not same(one, wider):
            bad.append(f"{n} after {past}, coded {coded}")
    return bad


def rows_differ() -> list[str]:
    from engine.kernels import rows_e4m3

    bad = []
    generator = torch.Generator().manual_seed(7)
    bits = torch.randint(-(2**31), 2**31, (700, 24), dtype=torch.int64, generator=generator)
    sizes = torch.logspace(-45, 30, 60)[:, None, None]
    cases = {
        "sizes": draw(60, 3, 20) * sizes,
        "bfloat16": (draw(60, 3, 20) * sizes).bfloat16(),
        "zeros": torch.tensor([0.0, -0.0]).repeat(3, 8),
        "bits": bits.to(torch.int32).view(torch.float32),
        "ties": torch.cat((torch.tensor([[448.0]]), torch.arange(1, 449)[None] - 0.5), 1),
    }
    for name, rows in cases.items():
        (codes, scale), (wanted, scales) = rows_e4m3.quantise(rows, BLOCK), e4m3.quantise(rows)
        finite = scales.isfinite()
        equal = same(codes.view(torch.uint8)[finite], wanted.view(torch.uint8)[finite])
        if not equal or not same(scale[finite], scales[finite]):
            bad.append(f"quantised {name}")
        if not torch.equal(scale.isfinite(), finite):
            bad.append(f"what is no number in {name}")
    return bad


def codes_differ() -> list[str]:
    from engine.kernels import rows_e4m3

    bad = []
    every = torch.arange(256, dtype=torch.uint8).repeat(2, 70, 1).view(e4m3.DTYPE)
    scales = draw(2, 70).abs() * torch.logspace(-37, 30, 70)
    for dtype in (torch.float32, torch.bfloat16):
        for stop in (70, 33, 0):
            part = every[:, 2:stop], scales[:, 2:stop], dtype
            if not same(rows_e4m3.dequantise(*part, BLOCK), e4m3.dequantise(*part)):
                bad.append(f"{stop} rows of {dtype}")
    return bad


def planted() -> list[str]:
    """Kernels with a fault each; gives those that nothing was seen of."""
    from engine.kernels import decode_attention, delta_scan, rows_e4m3

    unseen = []
    del CHUNKS[:1], CHUNKS[1:], BLOCKS[1:]

    def check(name: str, module: object, fault: Callable[..., object], case: Callable[[], object]):  # type: ignore[no-untyped-def]
        sound = getattr(module, name)
        setattr(module, name, lambda *a, **named: fault(sound, *a, **named))
        try:
            unseen.extend([] if case() else [fault.__name__])
        finally:
            setattr(module, name, sound)

    def one_row_more(sound, q, count, *rest, **named):  # type: ignore[no-untyped-def]
        return sound(q, count + 1, *rest, **named)

    def no_block(sound, q, count, *rest, **named):  # type: ignore[no-untyped-def]
        return sound(q, count - 1, *rest, **named) if count else sound(q, count, *rest, **named)

    def grows(sound, q, k, v, g, beta):  # type: ignore[no-untyped-def]
        return sound(q, k, v, -g, beta)

    def keeps_the_state(sound, *parts):  # type: ignore[no-untyped-def]
        return sound(*parts[:-1], parts[-1].clone())

    def nearest_below(sound, rows, block):  # type: ignore[no-untyped-def]
        codes, scale = sound(rows, block)
        return (codes.view(torch.uint8) & 0xFE).view(codes.dtype), scale

    check("attend_rows", decode_attention, one_row_more, attention_differs)
    check("attend_rows", decode_attention, no_block, attention_differs)
    check("solve", delta_scan, grows, chunks_differ)
    check("sweep", delta_scan, keeps_the_state, chunks_differ)
    check("quantise", rows_e4m3, nearest_below, rows_differ)
    return unseen


CASES: tuple[Callable[[], list[str]], ...] = (
    chunks_differ,
    attention_differs,
    windows_differ,
    rows_differ,
    codes_differ,
    planted,
)


@pytest.fixture(scope="module")
def interpreted() -> dict[str, list[str]]:
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_the_kernels_give_what_torch_gives(case: str, interpreted: dict[str, list[str]]) -> None:
    assert interpreted[case] == []


def test_a_chunks_attention_asks_for_the_right_kernel_and_shapes() -> None:
    """Torch knows its shapes without a device; its values are looked at on one."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from engine.kernels.attend_device import flash

    with FakeTensorMode():
        for dtype in (torch.float32, torch.bfloat16):
            q = torch.zeros(2, 3, 40, 64, dtype=dtype, device="cuda")
            k = torch.zeros(2, 1, 50, 64, dtype=dtype, device="cuda").expand(-1, 3, -1, -1)
            out, weight = flash(q, k, k, causal=False)
            assert (out.shape, out.dtype) == (q.shape, dtype)
            assert weight.dtype is torch.float32 and weight.shape == q.shape[:3]


if __name__ == "__main__":
    # Junk rows, and numbers that are none, are part of the cases.
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    print(json.dumps({case.__name__: case() for case in CASES}))
