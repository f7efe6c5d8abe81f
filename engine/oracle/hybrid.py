"""The whole hybrid, one token at a time: what its engine must come close to

Source: Qwen3.5 and Qwen3-Next as published, with their multi-token-prediction layers (`mtp.*`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import jax
import torch

from engine.config import HybridConfig
from engine.oracle.attention import Rows
from engine.oracle.delta_net import DeltaState
from engine.oracle.draft import Drafts
from engine.oracle.formulas import rms_norm
from engine.oracle.layer import Kind, attention_layer, delta_layer
from engine.oracle.wide import back, floats, jitted, under, whole, wide, wide_all, zeros

Position = tuple[int, int, int]
"""In time, height and width."""
Token = int | torch.Tensor
"""A token's id, or one row of a picture as it is embedded, [hidden]."""
_SIDES = "keys", "values"


class Oracle:
    """A sequence of up to `window` tokens."""

    def __init__(
        self, config: HybridConfig, tensors: Mapping[str, torch.Tensor], window: int = 256
    ) -> None:
        self.config = config
        self._kind = Kind.of(config)
        w = wide_all({n: t for n, t in tensors.items() if not n.startswith("model.visual.")})
        self._embed = w["model.embed_tokens.weight"]
        self._head = self._embed if config.tie_embeddings else w["lm_head.weight"]
        self._norm = w["model.norm.weight"]
        self._layers = [under(w, f"model.layers.{at}.") for at in range(config.layers)]
        self._drafts = Drafts(config, under(w, "mtp.")) if config.draft else None
        none = zeros(config.kv_heads, window, config.head_dim)
        rows = Rows(none, none, whole(0))
        state = DeltaState(
            zeros(config.value_heads, config.key_dim, config.value_dim),
            zeros(config.channels, config.conv_kernel - 1),
        )
        self._memory: list[DeltaState | Rows] = [
            rows if config.is_attention(at) else state for at in range(config.layers)
        ]
        self._draft_rows = [rows] * config.draft_layers
        self._hidden = zeros(config.hidden)
        self._count = 0

    def step(self, token: Token, position: Position | None = None) -> torch.Tensor:
        """Forward one token; returns logits [vocab], float64.

        Without `position` it is the number of tokens before, three times.
        """
        at = floats(position or (self._count,) * 3)
        x = self._embedded(token)
        if self._drafts:
            _, self._draft_rows = self._drafts.step(x, self._hidden, self._draft_rows, at)
        for number, (w, memory) in enumerate(zip(self._layers, self._memory, strict=True)):
            if isinstance(memory, Rows):
                x, memory = attention_layer(w, x, memory, at, kind=self._kind)
            else:
                x, memory = delta_layer(w, x, memory, kind=self._kind)
            self._memory[number] = memory
        self._hidden = _norm(x, self._norm, eps=self._kind.eps)
        self._count += 1
        return back(_times(self._head, self._hidden))

    def read(self, tokens: Sequence[Token], positions: Sequence[Position] = ()) -> torch.Tensor:
        """Forward tokens one after the other; returns their logits [n, vocab]."""
        where: Sequence[Position | None] = positions or [None] * len(tokens)
        return torch.stack([self.step(t, at) for t, at in zip(tokens, where, strict=True)])

    def draft(self, token: int, count: int, start: int | None = None) -> list[int]:
        """Greedy guesses of the `count` tokens after `token`, chaining the draft layers' hidden.

        `start` is the position of `token` where its row is not.
        """
        assert self._drafts is not None, "a model without draft layers"
        rows, hidden, guesses = self._draft_rows, self._hidden, list[int]()
        for at in range(count):
            place = floats((at + (self._count if start is None else start),) * 3)
            hidden, rows = self._drafts.step(self._embedded(token), hidden, rows, place)
            token = int(back(_times(self._head, hidden)).argmax())
            guesses.append(token)
        return guesses

    def guess(self, token: int, start: int) -> dict[str, torch.Tensor]:
        """What the draft layers' rows hold for `token` at position `start`, by the views' names."""
        assert self._drafts is not None, "a model without draft layers"
        place, embedded = floats((start,) * 3), self._embedded(token)
        _, rows = self._drafts.step(embedded, self._hidden, self._draft_rows, place)
        return _named(rows, slice(self._count, self._count + 1))

    def state(self) -> dict[str, torch.Tensor]:
        """Sections, then views' rows of all tokens, by their names, in their shapes and order."""
        deltas = [memory for memory in self._memory if isinstance(memory, DeltaState)]
        rows = [memory for memory in self._memory if isinstance(memory, Rows)]
        found = {
            "gdn.S": torch.stack([back(state.s) for state in deltas]),
            "gdn.conv": torch.stack([back(state.tail) for state in deltas]),
        }
        if self._drafts:
            found["draft.h"] = back(self._hidden)
        for name, side in zip(("K", "V"), _SIDES, strict=True):
            cut = [back(getattr(of, side))[:, : self._count] for of in rows]
            found[name] = torch.stack(cut)
        return found | (_named(self._draft_rows, slice(self._count)) if self._drafts else {})

    def _embedded(self, token: Token) -> jax.Array:
        return wide(token) if isinstance(token, torch.Tensor) else _row(self._embed, token)


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


def _named(rows: Sequence[Rows], cut: slice) -> dict[str, torch.Tensor]:
    """Rows of the draft layers by the views' names, [layers, kv heads, n, head_dim]."""
    keys, values = ([back(getattr(of, side))[:, cut] for of in rows] for side in _SIDES)
    return {"draft.K": torch.stack(keys), "draft.V": torch.stack(values)}


@jitted()
def _row(table: jax.Array, at: jax.Array) -> jax.Array:
    return table[at]


@jitted()
def _times(matrix: jax.Array, x: jax.Array) -> jax.Array:
    return matrix @ x


@jitted("eps")
def _norm(x: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    return rms_norm(x, weight, eps)
