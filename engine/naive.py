"""Token-by-token reference of every layer of the hybrid model: the oracle of its tests.

Written from the formulas alone, in any floating dtype (tests use float64), one token at a time,
with the published tensors as they are: nothing is fused, chunked or batched, and nothing is shared
with engine/layers but the configuration.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.config import HybridConfig

Tensors = Mapping[str, torch.Tensor]
Position = tuple[int, int, int]
"""In time, height and width."""


@dataclass(slots=True)
class DeltaState:
    """A gated delta net layer's: s [heads, key_dim, value_dim], tail [channels, kernel - 1]."""

    s: torch.Tensor
    tail: torch.Tensor


@dataclass(slots=True)
class Rows:
    """An attention layer's: one entry a token, each [kv heads, head_dim]."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean x^2 + eps) * (1 + weight)."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * (1 + weight)


def gated_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """x / sqrt(mean x^2 + eps) * weight * silu(gate)."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight * silu(gate)


def silu(x: torch.Tensor) -> torch.Tensor:
    """x / (1 + exp(-x))."""
    return x / (1 + torch.exp(-x))


def rotate(
    x: torch.Tensor,
    position: int | Position,
    rotary: int,
    theta: float,
    section: tuple[int, int, int] = (11, 11, 10),
) -> torch.Tensor:
    """Turn channel i of the first half of `rotary` with channel i of the second, x [heads, dim].

    Pair i turns with the height where i is 1 modulo 3 and below 3 * section[1], with the width
    where it is 2 modulo 3 and below 3 * section[2], with the time elsewhere.
    """
    out, half = x.clone(), rotary // 2
    along = (position, position, position) if isinstance(position, int) else position
    for i in range(half):
        axis = i % 3 if i < 3 * section[i % 3] else 0
        angle = torch.tensor(along[axis] * theta ** (-2 * i / rotary), dtype=torch.float64)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        out[:, i] = x[:, i] * cos - x[:, half + i] * sin
        out[:, half + i] = x[:, half + i] * cos + x[:, i] * sin
    return out


def positions(parts: Sequence[int | Position]) -> list[Position]:
    """Of every row of a prompt: a part is so many tokens of text, or a picture's merged grid."""
    found: list[Position] = []
    start = 0
    for part in parts:
        if isinstance(part, int):
            found += [(at, at, at) for at in range(start, start + part)]
            start += part
            continue
        frames, rows, columns = (range(start, start + size) for size in part)
        found += itertools.product(frames, rows, columns)
        start = max(max(position) for position in found) + 1
    return found


def conv_step(x: torch.Tensor, tail: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """silu of each channel's last values times its taps; x [channels] moves `tail` on by one."""
    columns = torch.cat((tail, x[:, None]), dim=1)
    tail.copy_(columns[:, 1:])
    return silu((columns * weight).sum(1))


def delta_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    s: torch.Tensor,
) -> torch.Tensor:
    """One token of the gated delta rule over heads: q, k, v [heads, dim], g, beta [heads].

    Changes s [heads, key_dim, value_dim] in place, returns o [heads, value_dim].
    """
    s *= torch.exp(g)[:, None, None]
    u = beta[:, None] * (v - torch.einsum("hk,hkv->hv", k, s))
    s += torch.einsum("hk,hv->hkv", k, u)
    return torch.einsum("hk,hkv->hv", q, s)


def delta_net(config: HybridConfig, w: Tensors, x: torch.Tensor, state: DeltaState) -> torch.Tensor:
    """One token x [hidden] through a gated delta net layer."""
    heads, repeats = config.value_heads, config.value_heads // config.key_heads
    mixed = conv_step(w["in_proj_qkv.weight"] @ x, state.tail, w["conv1d.weight"][:, 0])
    keys = config.key_heads * config.key_dim
    q = mixed[:keys].view(-1, config.key_dim).repeat_interleave(repeats, dim=0)
    k = mixed[keys : 2 * keys].view(-1, config.key_dim).repeat_interleave(repeats, dim=0)
    v = mixed[2 * keys :].view(heads, config.value_dim)
    q = q / torch.sqrt((q * q).sum(-1, keepdim=True) + 1e-6) / config.key_dim**0.5
    k = k / torch.sqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    beta = 1 / (1 + torch.exp(-(w["in_proj_b.weight"] @ x)))
    g = -torch.exp(w["A_log"]) * torch.log1p(torch.exp(w["in_proj_a.weight"] @ x + w["dt_bias"]))
    o = delta_step(q, k, v, g, beta, state.s)
    gate = (w["in_proj_z.weight"] @ x).view(heads, config.value_dim)
    normed = gated_norm(o, gate, w["norm.weight"], config.rms_eps)
    return w["out_proj.weight"] @ normed.flatten()


def attention(
    config: HybridConfig, w: Tensors, x: torch.Tensor, rows: Rows, at: Position | None = None
) -> torch.Tensor:
    """One token x [hidden] through an attention layer; without `at` its row is its position."""
    position, head, eps = at or len(rows.keys), config.head_dim, config.rms_eps
    both = (w["q_proj.weight"] @ x).view(config.q_heads, 2 * head)
    q, gate = both[:, :head], both[:, head:]
    k = (w["k_proj.weight"] @ x).view(config.kv_heads, head)
    v = (w["v_proj.weight"] @ x).view(config.kv_heads, head)
    turn = (position, config.rotary_dim, config.rope_theta, config.mrope_section)
    q = rotate(rms_norm(q, w["q_norm.weight"], eps), *turn)
    rows.keys.append(rotate(rms_norm(k, w["k_norm.weight"], eps), *turn))
    rows.values.append(v)
    keys, values = torch.stack(rows.keys, dim=1), torch.stack(rows.values, dim=1)
    out = torch.empty_like(q)
    for h in range(config.q_heads):
        shared = h * config.kv_heads // config.q_heads
        share = torch.softmax(keys[shared] @ q[h] / head**0.5, dim=0)
        out[h] = share @ values[shared]
    return w["o_proj.weight"] @ (out / (1 + torch.exp(-gate))).flatten()


def mlp(w: Tensors, x: torch.Tensor) -> torch.Tensor:
    """down(silu(gate x) * up x)."""
    return w["down_proj.weight"] @ (silu(w["gate_proj.weight"] @ x) * (w["up_proj.weight"] @ x))


class Naive:
    """A whole sequence, one token at a time, in `dtype`."""

    def __init__(self, config: HybridConfig, tensors: Tensors, dtype: torch.dtype) -> None:
        self.config = config
        self._w = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        heads = (config.value_heads, config.key_dim, config.value_dim)
        tail = (config.channels, config.conv_kernel - 1)
        self.memory: list[DeltaState | Rows] = [
            Rows([], [])
            if config.is_attention(at)
            else DeltaState(torch.zeros(heads, dtype=dtype), torch.zeros(tail, dtype=dtype))
            for at in range(config.layers)
        ]
        self.draft_rows = Rows([], [])
        self.hidden = torch.zeros(config.hidden, dtype=dtype)
        """The last position's hidden, after the final norm."""

    def step(self, token: int | torch.Tensor, position: Position | None = None) -> torch.Tensor:
        """Forward one token, or one row of a picture as it is embedded; returns logits [vocab].

        Without `position` it is the number of tokens before, three times.
        """
        config, eps = self.config, self.config.rms_eps
        x = self._embedded(token)
        if config.draft:
            self.draft_step(token, self.hidden, self.draft_rows, position)
        for at, memory in enumerate(self.memory):
            w = self._under(f"model.layers.{at}.")
            normed = rms_norm(x, w["input_layernorm.weight"], eps)
            if isinstance(memory, Rows):
                x = x + attention(config, _below(w, "self_attn."), normed, memory, position)
            else:
                x = x + delta_net(config, _below(w, "linear_attn."), normed, memory)
            normed = rms_norm(x, w["post_attention_layernorm.weight"], eps)
            x = x + mlp(_below(w, "mlp."), normed)
        self.hidden = rms_norm(x, self._w["model.norm.weight"], eps)
        return self.head(self.hidden)

    def draft_step(
        self,
        token: int | torch.Tensor,
        before: torch.Tensor,
        rows: Rows,
        position: Position | None = None,
    ) -> torch.Tensor:
        """The draft layer's hidden for `token`, given the hidden before it; appends to `rows`."""
        config, eps = self.config, self.config.rms_eps
        w = self._under("mtp.")
        layer = _below(w, "layers.0.")
        embedded = self._embedded(token)
        sides = (
            rms_norm(embedded, w["pre_fc_norm_embedding.weight"], eps),
            rms_norm(before, w["pre_fc_norm_hidden.weight"], eps),
        )
        x = w["fc.weight"] @ torch.cat(sides)
        normed = rms_norm(x, layer["input_layernorm.weight"], eps)
        x = x + attention(config, _below(layer, "self_attn."), normed, rows, position)
        normed = rms_norm(x, layer["post_attention_layernorm.weight"], eps)
        x = x + mlp(_below(layer, "mlp."), normed)
        return rms_norm(x, w["norm.weight"], eps)

    def draft(self, token: int, count: int, start: int | None = None) -> list[int]:
        """Greedy guesses of the `count` tokens after `token`, chaining the draft layer's hidden.

        `start` is the position of `token` where its row is not.
        """
        rows = Rows(list(self.draft_rows.keys), list(self.draft_rows.values))
        hidden, guesses = self.hidden, list[int]()
        for at in range(count):
            position = None if start is None else (start + at,) * 3
            hidden = self.draft_step(token, hidden, rows, position)
            token = int(self.head(hidden).argmax())
            guesses.append(token)
        return guesses

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of a hidden."""
        tied = self.config.tie_embeddings
        return self._w["model.embed_tokens.weight" if tied else "lm_head.weight"] @ hidden

    def _embedded(self, token: int | torch.Tensor) -> torch.Tensor:
        return self._w["model.embed_tokens.weight"][token] if isinstance(token, int) else token

    def _under(self, prefix: str) -> dict[str, torch.Tensor]:
        return _below(self._w, prefix)


def _below(tensors: Tensors, prefix: str) -> dict[str, torch.Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
