"""Full attention: grouped heads, q and k norms, partial rotary positions, output gate."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.config import HybridConfig
from engine.layers.kv import Kv
from engine.layers.linear import linear
from engine.layers.norm import centred, rms
from engine.layers.rope import Angles


class Attention:
    """One layer's weights."""

    def __init__(self, config: HybridConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors` by their names inside `self_attn.`."""
        self._q_heads, self._kv_heads = config.q_heads, config.kv_heads
        self._head = config.head_dim
        heads = (config.q_heads + config.kv_heads, config.kv_heads, config.q_heads)
        self._splits = [count * config.head_dim for count in heads]
        q, gate = _split_gate(tensors["q_proj.weight"], config.q_heads)
        k, v = tensors["k_proj.weight"], tensors["v_proj.weight"]
        # In this order queries and keys are one block for norm and rotation, keys and values
        # another for the rows alone.
        self._in = torch.cat((q, k, v, gate))
        self._kv = self._in[len(q) : len(q) + 2 * len(k)]
        self._q, self._gate = self._in[: len(q)], self._in[-len(gate) :]
        self._out = tensors["o_proj.weight"]
        self._key_norm = centred(tensors["k_norm.weight"], config.rms_eps)
        # Queries and keys go through one norm, in which every head has its own weights.
        scales = [1.0 + tensors[f"{name}.weight"].float() for name in ("q_norm", "k_norm")]
        counts = (config.q_heads, config.kv_heads)
        each = [scale.expand(count, -1) for scale, count in zip(scales, counts, strict=True)]
        self._norm = rms(torch.cat(each), config.rms_eps)
        self._query_norm = centred(tensors["q_norm.weight"], config.rms_eps)

    def __call__(self, x: torch.Tensor, start: int, rows: Kv, turn: Angles) -> torch.Tensor:
        """Forward x [n, hidden] as rows [start, start + n), which are written first.

        `turn` has the angles of their positions.
        """
        n, heads = len(x), self._q_heads + self._kv_heads
        pair, v, gate = torch.split_with_sizes(linear(x, self._in), self._splits, -1)
        turned = turn(self._norm(pair.view(n, heads, self._head)))
        q, k = torch.split_with_sizes(turned, (self._q_heads, self._kv_heads), 1)
        rows.write(start, k, v.view(n, self._kv_heads, self._head))
        return self._attended(q, gate, start, rows)

    def last(self, x: torch.Tensor, start: int, rows: Kv, turn: Angles) -> torch.Tensor:
        """What the call gives for the last row alone, [1, hidden]; all rows are written.

        For a layer after which no other row is read: the rest need no query, gate or output.
        """
        self.rows(x, start, rows, turn)
        only = x[-1:]
        q = linear(only, self._q).view(1, self._q_heads, self._head)
        turned = turn.last()(self._query_norm(q))
        return self._attended(turned, linear(only, self._gate), start + len(x) - 1, rows)

    def _attended(self, q: torch.Tensor, gate: torch.Tensor, start: int, rows: Kv) -> torch.Tensor:
        """[n, hidden] of queries [n, q heads, head_dim] at rows [start, start + n), and a gate."""
        n = len(q)
        grouped = q.view(n, self._kv_heads, -1, self._head).permute(1, 2, 0, 3)
        mixed = rows.attend(grouped, start).permute(2, 0, 1, 3).reshape(n, -1)
        return linear(mixed * gate.sigmoid(), self._out)

    def rows(self, x: torch.Tensor, start: int, rows: Kv, turn: Angles) -> None:
        """Write the rows [start, start + n) of x [n, hidden] and nothing more."""
        k, v = linear(x, self._kv).view(len(x), 2, self._kv_heads, self._head).unbind(1)
        rows.write(start, turn(self._key_norm(k)), v)


def _split_gate(weight: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The published q_proj holds, head by head, the query's rows and then the gate's."""
    q, gate = weight.view(heads, 2, -1, weight.shape[1]).unbind(1)
    return q.flatten(0, 1), gate.flatten(0, 1)
