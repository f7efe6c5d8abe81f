"""Every layer against the oracle, which goes token by token.

Goal: the batched, chunked and fused float32 layers compute the published formulas, for odd lengths
and head counts, from any starting state, and a layer that says it changes nothing changes nothing.
Method: engine.oracle in JAX float64 on the same weights: its formulas, delta_net, attention, mlp
and draft (engine.oracle.draft). Bounds are absolute, on values of order one, a few times the
largest error seen: a float32 sum of n terms of order one is good to about n * 6e-8.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import HybridConfig
from engine.layers import delta_rule, linear
from engine.layers.attend import attend
from engine.layers.attention import Attention
from engine.layers.conv import causal_conv, causal_conv_wide, next_tail
from engine.layers.delta_net import DeltaNet
from engine.layers.delta_rule import share
from engine.layers.draft import Draft, under
from engine.layers.kv import Kv
from engine.layers.mlp import Mlp
from engine.layers.moe import Moe
from engine.layers.norm import UNIT_EPS, GatedNorm, Norm, centred
from engine.layers.rope import Rope
from engine.moe_config import MoeConfig
from engine.oracle import attention as attention_oracle
from engine.oracle import delta_net as delta_oracle
from engine.oracle import formulas
from engine.oracle import mlp as mlp_oracle
from engine.oracle.attention import Rows, Turn
from engine.oracle.delta_net import DeltaState
from engine.oracle.draft import Drafts
from engine.oracle.wide import Weights, back, jitted, wide, wide_all
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


rms_norm = jitted("eps")(formulas.rms_norm)
gated_norm = jitted("eps")(formulas.gated_norm)
rotate = jitted("rotary", "theta", "section")(formulas.rotate)
conv_step = jitted()(delta_oracle.conv_step)
delta_step = jitted()(delta_oracle.delta_step)
delta_net = jitted("key_heads", "eps")(delta_oracle.delta_net)
attention = jitted("turn", "eps")(attention_oracle.attention)
experts = jitted("per_token", "renormalise")(mlp_oracle.experts)
silu, unit, mlp = (jitted()(of) for of in (formulas.silu, formulas.unit, mlp_oracle.mlp))


def stacked(rows: list[Any]) -> torch.Tensor:
    """What the oracle gives for each token, as a torch tensor of all."""
    return torch.stack([back(row) for row in rows])


# norms


@pytest.mark.parametrize("size", [1e-4, 1.0, 100.0])
def test_centred_norm_is_the_root_mean_square_with_one_plus_weight(size: float) -> None:
    x, weight = draw(7, 48) * size, draw(48, seed=1) * 0.1
    close(centred(weight, 1e-6)(x), back(rms_norm(wide(x), wide(weight), eps=1e-6)))


def test_norm_of_zeros_is_zeros() -> None:
    assert not centred(draw(48), 1e-6)(torch.zeros(2, 48)).any()


def test_norm_rounds_once_in_bfloat16() -> None:
    x, weight = draw(9, 48, dtype=torch.bfloat16), draw(48, seed=1, dtype=torch.bfloat16)
    want = back(rms_norm(wide(x), wide(weight), eps=1e-6))
    # Half a unit in the last of 8 bits, with room for the float32 that is rounded.
    torch.testing.assert_close(
        centred(weight, 1e-6)(x).double(), want, atol=0.0, rtol=2**-8 * 1.001
    )


def test_unit_norm_is_the_plain_length_with_its_floor_inside_the_root() -> None:
    x = draw(5, 2, 3, 12) * 1e-3
    close(Norm(torch.ones(2, 1, 1), UNIT_EPS)(x), back(unit(wide(x))))


def test_gated_norm_norms_before_the_gate_with_plain_weight() -> None:
    x, gate, weight = draw(6, 4, 20), draw(6, 4, 20, seed=1), 1 + 0.1 * draw(20, seed=2)
    want = gated_norm(wide(x), wide(gate), wide(weight), eps=1e-6)
    close(GatedNorm(weight, 1e-6)(x, gate), back(want))


def test_gated_norm_rounds_its_input_then_after_the_norm_and_after_the_weight() -> None:
    """As the published implementation does in bfloat16; each rounding moves some bits here."""
    x, gate = draw(64, 4, 20), draw(64, 4, 20, seed=1).bfloat16()
    weight = (1 + 0.1 * draw(20, seed=2)).bfloat16()
    rows = x.bfloat16().float()
    normed = (rows * (rows.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).bfloat16()
    weighted = normed * weight
    want = (weighted.float() * torch.nn.functional.silu(gate.float())).bfloat16()
    got = GatedNorm(weight, 1e-6)(x, gate)
    # Lengths are taken another way: a value next to a rounding's edge may fall on its other side.
    assert got.dtype is torch.bfloat16 and (got != want).float().mean() < 0.01


# rotary positions


@pytest.mark.parametrize("start", [0, 1, 4090, 9000])
def test_rope_turns_the_leading_channels(start: int) -> None:
    x = draw(9, 3, 16)
    got = Rope(4, 1e7, 10_000, torch.float32).rows(start, start + len(x))(x)
    places = [torch.full((3,), start + i) for i in range(9)]
    how = {"rotary": 4, "theta": 1e7}
    want = stacked([rotate(wide(x[i]), wide(places[i]), **how) for i in range(9)])
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
    how = {"rotary": 16, "theta": 1e4, "section": section}
    want = [rotate(wide(x[i]), wide(places[i]), **how) for i in range(9)]
    close(got, stacked(want), 3e-5)


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
    moved, want = wide(tail), []
    for row in rows:
        mixed, moved = conv_step(wide(row), moved, wide(weight))
        want.append(silu(mixed))
    close(got, stacked(want))
    assert torch.equal(next_tail(joined, n, 4).double(), back(moved))
    for count in range(n):
        columns = torch.cat((tail, rows[:count].t()), dim=1)
        assert torch.equal(next_tail(joined, count, 4), columns[:, -3:])


def both_convs(
    n: int, dtype: torch.dtype, taps: int = 1
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """The convolution for few channels and that for many; `taps` -1 turns the latter's around."""
    rows, tail = draw(n, 40).to(dtype), draw(40, 3, seed=1).to(dtype)
    weight = draw(40, 1, 4, seed=2).to(dtype)
    few = causal_conv(rows, tail, weight.float()[:, 0].t().contiguous().unbind())
    return few, causal_conv_wide(rows, tail, weight if taps > 0 else weight.flip(2))


@pytest.mark.parametrize("has_bfloat16", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 64, 200])
def test_conv_of_many_channels_is_the_same(
    n: int, dtype: torch.dtype, has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "multiplies_bfloat16", lambda: has_bfloat16)
    (few, joined), (many, also) = both_convs(n, dtype)
    assert many.dtype is dtype and many.is_contiguous() and torch.equal(joined, also)
    # Sums of four in another order, which now and then are rounded to the next bfloat16.
    bound = 1e-6 if dtype is torch.float32 else 2**-7
    assert bool(((few - many).abs().float() <= bound * (1 + few.float().abs())).all())


def test_canary_taps_the_other_way_around_are_seen() -> None:
    (few, _), (many, _) = both_convs(64, torch.bfloat16, taps=-1)
    assert float((few - many).abs().max()) > 0.5


# delta rule


def test_what_is_left_of_a_token_is_a_normal_number() -> None:
    passed = torch.tensor([0.0, -1.0, -86.9, -88.0, -1e4, -torch.inf, 3.0, 1e4])
    left = share(passed.clone())
    close(left[:3], passed[:3].double().exp())
    assert bool((left[3:6] == left[3]).all()) and 1e-38 < left[3] < 2e-38
    # Tokens in the wrong order.
    assert bool((left[6:] == 1.0).all())


RuleInput = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def rule_input(n: int, heads: int, key: int, value: int, rate: float) -> RuleInput:
    """q, k of unit length, v, decay rates of about `rate` a token, beta in (0, 1)."""
    q, k = (torch.nn.functional.normalize(draw(n, heads, key, seed=s), dim=-1) for s in (1, 2))
    g = -rate * draw(n, heads, seed=3).exp()
    return q, k, draw(n, heads, value, seed=4), g, draw(n, heads, seed=5).sigmoid()


def by_token(args: RuleInput, state: torch.Tensor) -> torch.Tensor:
    """The oracle's o for all tokens; moves `state`, float64."""
    moved, outputs = wide(state), []
    for step in zip(*(x.double().numpy() for x in args), strict=True):
        o, moved = delta_step(*step, moved)
        outputs.append(o)
    state.copy_(back(moved))
    return stacked(outputs)


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


def delta_layer() -> tuple[DeltaNet, Weights]:
    """The layer and the same weights for the oracle."""
    tensors = under(WEIGHTS, "model.layers.0.linear_attn.")
    return DeltaNet(CONFIG, tensors), wide_all(tensors)


def delta_memory() -> tuple[torch.Tensor, torch.Tensor, DeltaState]:
    """A state and tail in the middle of a sequence, twice."""
    state, tail = draw(4, 12, 20, seed=7), draw(CONFIG.channels, 3, seed=8)
    return state, tail, DeltaState(wide(state), wide(tail))


def by_layer(w: Weights, x: torch.Tensor, memory: DeltaState) -> tuple[torch.Tensor, DeltaState]:
    """The oracle's output for rows x, and its memory after them."""
    outputs = []
    for row in x:
        out, memory = delta_net(w, wide(row), memory, key_heads=2, eps=CONFIG.rms_eps)
        outputs.append(out)
    return stacked(outputs), memory


@pytest.mark.parametrize("n", [1, 3, 64, 100])
def test_delta_net_chunk(n: int) -> None:
    layer, weights = delta_layer()
    state, tail, memory = delta_memory()
    x = draw(n, CONFIG.hidden)
    want, memory = by_layer(weights, x, memory)
    close(layer.chunk(x, state, tail), want, CARRIED)
    close(state, back(memory.s), CARRIED)
    close(tail, back(memory.tail))


@pytest.mark.parametrize("count", range(1, 7))
def test_delta_net_block_absorbs_its_first_tokens(count: int) -> None:
    layer, weights = delta_layer()
    state, tail, memory = delta_memory()
    before = state.clone(), tail.clone()
    x = draw(6, CONFIG.hidden)
    out, held = layer.block(x, state, tail)
    assert torch.equal(state, before[0]) and torch.equal(tail, before[1])
    want, memory = by_layer(weights, x[:count], memory)
    close(out[:count], want, CARRIED)
    delta_rule.absorb(state, held.keys, held.decay, held.u, count)
    close(state, back(memory.s), CARRIED)
    close(next_tail(held.joined, count, CONFIG.conv_kernel), back(memory.tail))


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


TURN = Turn(CONFIG.rotary_dim, CONFIG.rope_theta, CONFIG.mrope_section)


def empty(window: int) -> Rows:
    """Rows of the oracle."""
    none = np.zeros((CONFIG.kv_heads, window, CONFIG.head_dim))
    return Rows(none, none, np.int32(0))


def attention_layer() -> tuple[Attention, Weights]:
    """The layer and the same weights for the oracle."""
    tensors = under(WEIGHTS, "model.layers.3.self_attn.")
    return Attention(CONFIG, tensors), wide_all(tensors)


def test_attention_layer_in_pieces() -> None:
    layer, weights = attention_layer()
    rope = Rope(CONFIG.rotary_dim, CONFIG.rope_theta, 100, torch.float32)
    keys, values = torch.zeros(2, 100, 16), torch.zeros(2, 100, 16)
    own = Kv(keys, values, (), torch.float32)
    x, rows, want = draw(90, CONFIG.hidden), empty(100), []
    for i in range(90):
        at = wide(torch.full((3,), i))
        out, rows = attention(weights, wide(x[i]), rows, at, turn=TURN, eps=CONFIG.rms_eps)
        want.append(out)
    starts = [0, 64, 65, 70, 90]
    got = [layer(x[a:b], a, own, rope.rows(a, b)) for a, b in itertools.pairwise(starts)]
    close(torch.cat(got), stacked(want), CARRIED)
    close(keys[:, :90], back(rows.keys)[:, :90], CARRIED)
    close(values[:, :90], back(rows.values)[:, :90])
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


# MLP, experts and draft layer


def test_mlp() -> None:
    tensors = under(WEIGHTS, "model.layers.0.mlp.")
    x = draw(5, CONFIG.hidden)
    w = wide_all(tensors)
    close(Mlp(tensors)(x), stacked([mlp(w, wide(row)) for row in x]))


@pytest.mark.parametrize("renormalise", [True, False])
def test_experts(renormalise: bool) -> None:
    shape = MoeConfig.small(renormalise=renormalise)
    config = HybridConfig.tiny(moe=shape)
    tensors = under(random_weights(config, seed=11).tensors, "model.layers.0.mlp.")
    x, w = draw(40, config.hidden), wide_all(tensors)
    how = {"per_token": shape.per_token, "renormalise": renormalise}
    close(Moe(shape, tensors)(x), stacked([experts(w, wide(row), **how) for row in x]))


def test_draft_rows_and_steps() -> None:
    layer = Draft(CONFIG, under(WEIGHTS, "mtp."))
    oracle = Drafts(CONFIG, wide_all(WEIGHTS, "mtp."))
    rope = Rope(CONFIG.rotary_dim, CONFIG.rope_theta, 64, torch.float32)
    keys, values = torch.zeros(2, 64, 16), torch.zeros(2, 64, 16)
    own = [Kv(keys, values, (), torch.float32)]
    before, rows, want = draw(12, CONFIG.hidden), [empty(64)], []
    embedded = WEIGHTS["model.embed_tokens.weight"][100:112]
    for i in range(12):
        at = np.full(3, float(i))
        hidden, rows = oracle.step(wide(embedded[i]), wide(before[i]), rows, at)
        want.append(hidden)
    wanted = rows[0]
    layer.rows(embedded[:11], before[:11], 0, own, rope.rows(0, 11))
    close(keys[:, :11], back(wanted.keys)[:, :11], CARRIED)
    close(values[:, :11], back(wanted.values)[:, :11], CARRIED)
    assert not keys[:, 11:].any()
    guess = layer.step(embedded[11:], before[11:], 11, own, rope.rows(11, 12))
    close(guess[0], back(want[11]), CARRIED)
    close(keys[:, 11], back(wanted.keys)[:, 11], CARRIED)
