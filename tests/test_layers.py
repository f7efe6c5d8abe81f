"""Every layer against its token-by-token reference.

Goal: the batched, chunked and fused float32 layers compute the published formulas, for odd lengths
and head counts, from any starting state, and a layer that says it changes nothing changes nothing.
Method: engine/naive.py in float64 on the same weights. Bounds are absolute, on values of order one,
a few times the largest error seen: a float32 sum of n terms of order one is good to about n * 6e-8.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from engine import naive
from engine.config import HybridConfig
from engine.layers import delta_rule
from engine.layers.attend import attend
from engine.layers.attention import Attention
from engine.layers.conv import causal_conv, next_tail
from engine.layers.delta_net import DeltaNet
from engine.layers.draft import Draft, under
from engine.layers.kv import Kv
from engine.layers.mlp import Mlp
from engine.layers.norm import UNIT_EPS, GatedNorm, Norm, centred
from engine.layers.rope import Rope
from engine.weights import random_weights

CONFIG = HybridConfig.tiny()
WEIGHTS = random_weights(CONFIG, seed=11).tensors
# The delta rule carries a state over many tokens, and the attention kernel's exp has 20 good bits.
CLOSE, CARRIED = 3e-6, 1e-5


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal noise."""
    return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got: torch.Tensor, want: torch.Tensor, bound: float = CLOSE) -> None:
    """No element further than `bound`; NaN is far from everything."""
    torch.testing.assert_close(got.double(), want.double(), atol=bound, rtol=0.0)


def wide(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights for the reference."""
    return {name: tensor.double() for name, tensor in tensors.items()}


# norms


@pytest.mark.parametrize("size", [1e-4, 1.0, 100.0])
def test_centred_norm_is_the_root_mean_square_with_one_plus_weight(size: float) -> None:
    x, weight = draw(7, 48) * size, draw(48, seed=1) * 0.1
    close(centred(weight, 1e-6)(x), naive.rms_norm(x.double(), weight.double(), 1e-6))


def test_norm_of_zeros_is_zeros() -> None:
    assert not centred(draw(48), 1e-6)(torch.zeros(2, 48)).any()


def test_norm_rounds_once_in_bfloat16() -> None:
    x, weight = draw(9, 48, dtype=torch.bfloat16), draw(48, seed=1, dtype=torch.bfloat16)
    want = naive.rms_norm(x.double(), weight.double(), 1e-6)
    # Half a unit in the last of 8 bits, with room for the float32 that is rounded.
    torch.testing.assert_close(
        centred(weight, 1e-6)(x).double(), want, atol=0.0, rtol=2**-8 * 1.001
    )


def test_unit_norm_is_the_plain_length_with_its_floor_inside_the_root() -> None:
    x = draw(5, 2, 3, 12) * 1e-3
    want = x.double() / torch.sqrt((x.double() ** 2).sum(-1, keepdim=True) + UNIT_EPS)
    close(Norm(torch.ones(2, 1, 1), UNIT_EPS)(x), want)


def test_gated_norm_norms_before_the_gate_with_plain_weight() -> None:
    x, gate, weight = draw(6, 4, 20), draw(6, 4, 20, seed=1), 1 + 0.1 * draw(20, seed=2)
    want = naive.gated_norm(x.double(), gate.double(), weight.double(), 1e-6)
    close(GatedNorm(weight, 1e-6)(x, gate), want)


# rotary positions


@pytest.mark.parametrize("start", [0, 1, 4090, 9000])
def test_rope_turns_the_leading_channels(start: int) -> None:
    x = draw(9, 3, 16)
    got = Rope(4, 1e7, 10_000, torch.float32).rows(start, start + len(x))(x)
    want = torch.stack([naive.rotate(x[i].double(), start + i, 4, 1e7) for i in range(9)])
    # The angle of position p is a float32 product: off by up to p * 2^-24.
    close(got, want, 3e-6 + 4 * start * 2**-24)
    assert torch.equal(got[..., 4:], x[..., 4:])


def test_rope_does_not_depend_on_the_window() -> None:
    x = draw(37, 1, 16)
    whole = Rope(8, 1e7, 10_001, torch.float32)
    for window in (37, 100, 4096, 4099):
        table, at = Rope(8, 1e7, window, torch.float32), (window - 37, window)
        assert torch.equal(table.rows(*at)(x), whole.rows(*at)(x))


SECTIONS = [(11, 11, 10), (2, 1, 1), (4, 0, 0), (0, 2, 1)]


@pytest.mark.parametrize("section", SECTIONS)
def test_rope_in_three_directions(section: tuple[int, int, int]) -> None:
    x, places = draw(9, 3, 16), torch.randint(0, 100, (9, 3), generator=torch.manual_seed(0))
    got = Rope(16, 1e4, 100, torch.float32, section).at(places)(x)
    along = [tuple(place) for place in places.tolist()]
    want = [naive.rotate(x[i].double(), along[i], 16, 1e4, section) for i in range(9)]
    close(got, torch.stack(want), 3e-5)


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rope_of_equal_directions_is_the_texts_bits(
    section: tuple[int, int, int], dtype: torch.dtype
) -> None:
    x, rope = draw(9, 3, 16).to(dtype), Rope(12, 1e7, 5_000, dtype, section)
    places = torch.arange(4_000, 4_009)[:, None].expand(9, 3)
    assert torch.equal(rope.at(places)(x), rope.rows(4_000, 4_009)(x))


# convolution


@pytest.mark.parametrize("n", [1, 2, 3, 4, 17])
def test_conv_is_causal_over_tail_and_rows(n: int) -> None:
    rows, tail, weight = draw(n, 10), draw(10, 3, seed=1), draw(10, 4, seed=2)
    got, joined = causal_conv(rows, tail, weight.t().contiguous().unbind())
    moved = tail.double()
    want = [naive.conv_step(rows[i].double(), moved, weight.double()) for i in range(n)]
    close(got, torch.stack(want))
    assert torch.equal(next_tail(joined, n, 4).double(), moved)
    for count in range(n):
        columns = torch.cat((tail, rows[:count].t()), dim=1)
        assert torch.equal(next_tail(joined, count, 4), columns[:, -3:])


# delta rule

RuleInput = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def rule_input(n: int, heads: int, key: int, value: int, rate: float) -> RuleInput:
    """q, k of unit length, v, decay rates of about `rate` a token, beta in (0, 1)."""
    q, k = (torch.nn.functional.normalize(draw(n, heads, key, seed=s), dim=-1) for s in (1, 2))
    g = -rate * draw(n, heads, seed=3).exp()
    return q, k, draw(n, heads, value, seed=4), g, draw(n, heads, seed=5).sigmoid()


def by_token(args: RuleInput, state: torch.Tensor) -> torch.Tensor:
    """The reference's o for all tokens; moves `state`, float64."""
    steps = zip(*(x.double() for x in args), strict=True)
    return torch.stack([naive.delta_step(*step, state) for step in steps])


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 200])
@pytest.mark.parametrize("heads, key, value", [(1, 8, 8), (3, 12, 20)])
@pytest.mark.parametrize("rate", [0.002, 0.1, 3.0])
def test_scan_is_the_recurrence(n: int, heads: int, key: int, value: int, rate: float) -> None:
    args = rule_input(n, heads, key, value, rate)
    state = draw(heads, key, value)
    wanted = state.double()
    want = by_token(args, wanted)
    close(delta_rule.scan(*args, state), want, CARRIED)
    close(state, wanted, CARRIED)


def test_scan_holds_when_every_key_is_the_same() -> None:
    """The system to solve is then as far from the identity as it can be."""
    q, k, v, g, _ = rule_input(130, 2, 8, 8, 0.001)
    args = (q, k[:1].expand_as(k), v, g, torch.full((130, 2), 0.999))
    state = torch.zeros(2, 8, 8)
    wanted = state.double()
    want = by_token(args, wanted)
    close(delta_rule.scan(*args, state), want, CARRIED)
    close(state, wanted, CARRIED)


@pytest.mark.parametrize("rate", [20.0, 300.0])
def test_scan_survives_decay_that_forgets_everything(rate: float) -> None:
    """Above the diagonal the decay would be exp of a large positive number."""
    args = rule_input(96, 2, 8, 8, rate)
    state = draw(2, 8, 8)
    wanted = state.double()
    want = by_token(args, wanted)
    close(delta_rule.scan(*args, state), want, CARRIED)
    close(state, wanted, CARRIED)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_a_block_is_read_without_moving_the_state_and_absorbed_in_part(n: int) -> None:
    args = rule_input(n, 3, 12, 20, 0.05)
    start = draw(3, 12, 20)
    state = start.clone()
    inner = delta_rule.solve(*(x.transpose(0, 1) for x in args))
    o, u = delta_rule.read(inner, state)
    assert torch.equal(state, start)
    close(o.transpose(0, 1), by_token(args, start.double()), CARRIED)
    for count in range(1, n + 1):
        moved, wanted = start.clone(), start.double()
        delta_rule.absorb(moved, inner.keys, inner.decay, u, count)
        by_token(tuple(x[:count] for x in args), wanted)
        close(moved, wanted, CARRIED)


# gated delta net layer


def delta_layer() -> tuple[DeltaNet, dict[str, torch.Tensor]]:
    """The layer and the same weights for the reference."""
    tensors = under(WEIGHTS, "model.layers.0.linear_attn.")
    return DeltaNet(CONFIG, tensors), wide(tensors)


def delta_memory() -> tuple[torch.Tensor, torch.Tensor, naive.DeltaState]:
    """A state and tail in the middle of a sequence, twice."""
    state, tail = draw(4, 12, 20, seed=7), draw(CONFIG.channels, 3, seed=8)
    return state, tail, naive.DeltaState(state.double(), tail.double())


@pytest.mark.parametrize("n", [1, 3, 64, 100])
def test_delta_net_chunk(n: int) -> None:
    layer, weights = delta_layer()
    state, tail, memory = delta_memory()
    x = draw(n, CONFIG.hidden)
    want = [naive.delta_net(CONFIG, weights, x[i].double(), memory) for i in range(n)]
    close(layer.chunk(x, state, tail), torch.stack(want), CARRIED)
    close(state, memory.s, CARRIED)
    close(tail, memory.tail)


@pytest.mark.parametrize("count", range(1, 7))
def test_delta_net_block_absorbs_its_first_tokens(count: int) -> None:
    layer, weights = delta_layer()
    state, tail, memory = delta_memory()
    before = state.clone(), tail.clone()
    x = draw(6, CONFIG.hidden)
    out, held = layer.block(x, state, tail)
    assert torch.equal(state, before[0]) and torch.equal(tail, before[1])
    want = [naive.delta_net(CONFIG, weights, x[i].double(), memory) for i in range(count)]
    close(out[:count], torch.stack(want), CARRIED)
    delta_rule.absorb(state, held.keys, held.decay, held.u, count)
    close(state, memory.s, CARRIED)
    close(next_tail(held.joined, count, CONFIG.conv_kernel), memory.tail)


# attention


@pytest.mark.parametrize("past", [0, 1, 63, 64, 300])
@pytest.mark.parametrize("n", [1, 2, 5, 64])
@pytest.mark.parametrize("kv_heads, group", [(1, 1), (2, 3)])
def test_attend_is_causal_softmax(past: int, n: int, kv_heads: int, group: int) -> None:
    window = past + n + 5
    keys, values = draw(kv_heads, window, 16), draw(kv_heads, window, 16, seed=1)
    keys[:, past + n :] = values[:, past + n :] = torch.nan
    q = draw(kv_heads, group, n, 16, seed=2) * 2
    got = attend(q, past, keys, values)
    for i in range(n):
        stop = past + i + 1
        k, v = keys[:, :stop].double(), values[:, :stop].double()
        scores = torch.einsum("hgd,hnd->hgn", q[:, :, i].double(), k) / 4
        close(got[:, :, i], torch.einsum("hgn,hnd->hgd", scores.softmax(-1), v), 1e-5)


def test_attend_holds_when_past_and_block_differ_by_far_in_weight() -> None:
    """One part's log-sum-exp then swamps the other's, either way round."""
    for scale in (-30.0, 30.0):
        keys, values = draw(1, 40, 16), draw(1, 40, 16, seed=1)
        q = keys[:, None, 20:24] * scale
        scores = (q.double() @ keys[:, None, :24].double().transpose(2, 3)) / 4
        scores += torch.full((4, 24), -torch.inf).triu(21)
        want = scores.softmax(-1) @ values[:, None, :24].double()
        close(attend(q, 20, keys, values), want, 1e-5)


def attention_layer() -> tuple[Attention, dict[str, torch.Tensor]]:
    """The layer and the same weights for the reference."""
    tensors = under(WEIGHTS, "model.layers.3.self_attn.")
    return Attention(CONFIG, tensors), wide(tensors)


def test_attention_layer_in_pieces() -> None:
    layer, weights = attention_layer()
    rope = Rope(CONFIG.rotary_dim, CONFIG.rope_theta, 100, torch.float32)
    keys, values = torch.zeros(2, 100, 16), torch.zeros(2, 100, 16)
    own = Kv(keys, values, (), torch.float32)
    x, rows = draw(90, CONFIG.hidden), naive.Rows([], [])
    want = [naive.attention(CONFIG, weights, x[i].double(), rows) for i in range(90)]
    starts = [0, 64, 65, 70, 90]
    got = [layer(x[a:b], a, own, rope.rows(a, b)) for a, b in itertools.pairwise(starts)]
    close(torch.cat(got), torch.stack(want), CARRIED)
    close(keys[:, :90], torch.stack(rows.keys, 1), CARRIED)
    close(values[:, :90], torch.stack(rows.values, 1))
    assert not keys[:, 90:].any() and not values[:, 90:].any()


def test_rows_alone_are_the_layers_rows() -> None:
    layer, _ = attention_layer()
    rope = Rope(CONFIG.rotary_dim, CONFIG.rope_theta, 64, torch.float32)
    buffers = [torch.zeros(2, 64, 16) for _ in range(4)]
    x = draw(20, CONFIG.hidden)
    layer(x, 0, Kv(*buffers[:2], (), torch.float32), rope.rows(0, 20))
    layer.rows(x, 0, Kv(*buffers[2:], (), torch.float32), rope.rows(0, 20))
    close(buffers[2], buffers[0])
    close(buffers[3], buffers[1])


# MLP and draft layer


def test_mlp() -> None:
    tensors = under(WEIGHTS, "model.layers.0.mlp.")
    x = draw(5, CONFIG.hidden)
    want = [naive.mlp(wide(tensors), x[i].double()) for i in range(5)]
    close(Mlp(tensors)(x), torch.stack(want))


def test_draft_rows_and_steps() -> None:
    layer = Draft(CONFIG, under(WEIGHTS, "mtp."))
    reference = naive.Naive(CONFIG, WEIGHTS, torch.float64)
    rope = Rope(CONFIG.rotary_dim, CONFIG.rope_theta, 64, torch.float32)
    keys, values = torch.zeros(2, 64, 16), torch.zeros(2, 64, 16)
    own = [Kv(keys, values, (), torch.float32)]
    before, rows = draw(12, CONFIG.hidden), naive.Rows([], [])
    tokens = torch.arange(100, 112)
    embedded = WEIGHTS["model.embed_tokens.weight"][tokens]
    want = [
        reference.draft_step(int(token), before[i].double(), rows) for i, token in enumerate(tokens)
    ]
    layer.rows(embedded[:11], before[:11], 0, own, rope.rows(0, 11))
    close(keys[:, :11], torch.stack(rows.keys[:11], 1), CARRIED)
    close(values[:, :11], torch.stack(rows.values[:11], 1), CARRIED)
    assert not keys[:, 11:].any()
    guess = layer.step(embedded[11:], before[11:], 11, own, rope.rows(11, 12))
    close(guess[0], want[11], CARRIED)
    close(keys[:, 11], rows.keys[11], CARRIED)
