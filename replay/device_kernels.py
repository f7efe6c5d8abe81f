"""What a device's kernels are looked at on: random input of the real shapes, and small ones"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from cache.spill import planes, sums
from engine.device import Kernels
from engine.layers import delta_rule, e4m3
from engine.layers.attend import attend
from replay.device_compare import BITS, CARRIED, FULL, HALF, Case, Draw, Tensors


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the kernels are given."""

    chunks: int
    heads: int
    tokens: int
    """Of one inner chunk."""
    key_dim: int
    value_dim: int
    kv_heads: int
    group: int
    head_dim: int
    past: int
    """Rows before a block, or before a chunk."""
    block: int
    chunk: int
    words: int


SMALL = Sizes(2, 2, 16, 16, 16, 2, 2, 16, 70, 3, 24, 1 << 10)
LARGE = Sizes(16, 48, 64, 128, 128, 4, 6, 256, 16_384, 4, 1_024, 1 << 24)
"""The 27B's, for a chunk of 1,024 tokens."""


def cases(kernels: Kernels, device: torch.device, sizes: Sizes, seed: int) -> Iterator[Case]:
    """Every kernel, on random input of these sizes."""
    draw = Draw(device, seed)
    yield from _rule(kernels, draw, sizes)
    yield from _attention(kernels, draw, sizes)
    yield from _codes(kernels, draw, sizes)
    yield from _spill(draw, sizes)


def _rule(kernels: Kernels, draw: Draw, of: Sizes) -> Iterator[Case]:
    batch, shape = of.chunks * of.heads, f"{of.chunks} x {of.heads} chunks of {of.tokens}"
    q, k = (F.normalize(draw.normal(batch, of.tokens, of.key_dim), dim=-1) for _ in "qk")
    v = draw.normal(batch, of.tokens, of.value_dim)
    g, beta = -0.1 * draw.normal(batch, of.tokens).abs(), draw.normal(batch, of.tokens).sigmoid()
    given = (q, k, v, g, beta)
    inner = delta_rule.solve(*_host(*given))

    def solved() -> Tensors:
        return inner.queries, inner.decay, inner.scores, inner.fresh, inner.reads

    ours, plain = (lambda: kernels.solve(*given)), (lambda: delta_rule.solve(*given))
    yield Case("solve", shape, FULL, ours, solved, plain)
    state = draw.normal(of.heads, of.key_dim, of.value_dim)
    parts = inner.queries, inner.keys, inner.decay, inner.scores, inner.fresh, inner.reads
    there = tuple(part.to(state.device) for part in parts)

    def swept() -> Tensors:
        carried = state.clone()
        return kernels.sweep(*there, carried), carried

    def wanted() -> Tensors:
        carried = state.cpu().clone()
        return delta_rule._sweep(inner, carried), carried

    on_it = delta_rule.Inner(*there)

    def torch_sweep() -> None:
        delta_rule._sweep(on_it, state.clone())

    yield Case("sweep", shape, CARRIED, swept, wanted, torch_sweep)


def _attention(kernels: Kernels, draw: Draw, of: Sizes) -> Iterator[Case]:
    for dtype, bound in ((torch.float32, FULL), (torch.bfloat16, HALF)):
        name = str(dtype).removeprefix("torch.")
        window = of.past + of.chunk
        keys, values = (draw.normal(of.kv_heads, window, of.head_dim, dtype=dtype) for _ in "kv")
        shape = (of.kv_heads, of.group, of.block, of.head_dim)
        q, count = draw.normal(*shape, dtype=dtype), draw.count(of.past)
        what = f"{of.block} after {of.past:,}, {name}"
        yield _rows_case(kernels, what, bound, (q, count, keys, values), of.past, ())
        codes = [e4m3.quantise(rows.cpu()) for rows in (keys, values)]
        (key_codes, key_scales), (value_codes, value_scales) = (
            [part.to(q.device) for part in pair] for pair in codes
        )
        scales = key_scales, value_scales
        given = (q, count, key_codes, value_codes)
        yield _rows_case(kernels, f"{what}, e4m3", bound, given, of.past, scales)
        chunk = draw.normal(of.kv_heads, of.group, of.chunk, of.head_dim, dtype=dtype)
        yield _chunk_case(f"{of.chunk:,} after {of.past:,}, {name}", bound, chunk, keys, values)


def _rows_case(
    kernels: Kernels, what: str, bound: float, given: Tensors, past: int, scales: Tensors
) -> Case:
    q, _, keys, values = given
    stop = past + q.shape[2]

    def read(*tensors: torch.Tensor) -> list[torch.Tensor]:
        """Keys and values up to the block's end, as floats."""
        rows = [tensor[:, :stop] for tensor in tensors[:2]]
        pairs = zip(rows, tensors[2:], strict=True) if scales else ()
        made = [e4m3.dequantise(codes, scale[:, :stop], q.dtype) for codes, scale in pairs]
        return made or rows

    def wanted() -> Tensors:
        return (attend(q.cpu(), past, *read(*_host(keys, values, *scales))),)

    def ours() -> Tensors:
        return (kernels.attend_rows(*given, scales or None),)

    return Case(
        "attend_rows",
        what,
        bound,
        ours,
        wanted,
        lambda: _torch_attend(q, *read(keys, values, *scales)),
    )


def _chunk_case(
    what: str, bound: float, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> Case:
    """A prefill's chunk, by the kernels that `attend` takes on the device."""
    past, stop = keys.shape[1] - q.shape[2], keys.shape[1]

    def wanted() -> Tensors:
        return (attend(*_host(q), past, *_host(keys, values)),)

    def ours() -> Tensors:
        return (attend(q, past, keys, values),)

    return Case(
        "chunk attention",
        what,
        bound,
        ours,
        wanted,
        lambda: _torch_attend(q, keys[:, :stop], values[:, :stop]),
    )


def _torch_attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Of torch, under a mask: what one would write without a kernel."""
    n, stop = q.shape[2], keys.shape[1]
    mask = torch.ones(n, stop, dtype=torch.bool, device=q.device).tril_(stop - n)
    k, v = (x.unsqueeze(1).expand(-1, q.shape[1], -1, -1) for x in (keys, values))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _codes(kernels: Kernels, draw: Draw, of: Sizes) -> Iterator[Case]:
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        rows = draw.normal(of.kv_heads, of.past, of.head_dim, dtype=dtype)
        codes, scale = e4m3.quantise(rows.cpu())
        there = codes.to(rows.device), scale.to(rows.device), dtype
        what = f"{of.kv_heads} x {of.past:,} rows, {name}"
        yield Case(
            *("quantise", what, BITS),
            lambda rows=rows: kernels.quantise(rows),
            lambda codes=codes, scale=scale: (codes, scale),
            lambda rows=rows: e4m3.quantise(rows),
        )
        yield Case(
            *("dequantise", what, BITS),
            lambda there=there: (kernels.dequantise(*there),),
            lambda codes=codes, scale=scale, dtype=dtype: (e4m3.dequantise(codes, scale, dtype),),
            lambda there=there: e4m3.dequantise(*there),
        )


def _spill(draw: Draw, of: Sizes) -> Iterator[Case]:
    """The spill's sums and planes, which are chosen by where the rows lie."""
    words = draw.words(of.words, torch.int32)
    found = sums.kernels_for(words)
    if found is None:
        return
    host = words.cpu()
    yield Case(
        *("block sums", f"{of.words:,} words", BITS),
        lambda: (found.pair(words),),
        lambda: (sums.torch_pair(host),),
        lambda: sums.torch_pair(words),
    )
    halves, cut = draw.words(of.words, torch.int16), torch.empty(2, of.words, dtype=torch.uint8)
    there = cut.to(words.device)

    def wanted() -> Tensors:
        planes.torch_split(halves.cpu(), cut)
        return (cut, halves.cpu())

    def ours() -> Tensors:
        back = torch.empty_like(halves)
        found.split(halves, there)
        found.join(there, back)
        return there, back

    def plain() -> None:
        planes.torch_split(halves, there)
        planes.torch_join(there, torch.empty_like(halves))

    yield Case("byte planes", f"{of.words:,} of 2 bytes", BITS, ours, wanted, plain)


def _host(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
    return [tensor.cpu() for tensor in tensors]
