"""Per-layer embeddings: a token's own, its n-grams' from the table, and a short convolution"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from engine.flash.config import HASH_FACTOR, HASH_PRIME, FlashConfig
from engine.flash.table import Table
from engine.layers.conv import causal_conv
from engine.layers.linear import linear


class PerLayer:
    """What gives every token an embedding for each layer; shared by all sequences."""

    def __init__(
        self, config: FlashConfig, tensors: Mapping[str, torch.Tensor], table: Table
    ) -> None:
        """`tensors` by their names inside `model.ple.`."""
        self._longest, self._table_rows = config.ngram, config.ngram_rows
        self._embed = tensors["embed_tokens.weight"]
        self._proj = tensors["ngram_proj.weight"]
        self._taps = tensors["conv1d.weight"].float()[:, 0].t().contiguous().unbind()
        self._table = table

    def __call__(
        self, ids: torch.Tensor, context: torch.Tensor, tail: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Embeddings [n, channels] of ids [n], and what the next context and tail are cut from.

        `context` [ngram - 1] and `tail` [channels, kernel - 1] are the sections' tensors and stay.
        The second result is [ngram - 1 + n], the third [kernel - 1 + n, channels].
        """
        tokens = torch.cat((context, ids + 1))
        keys = ngram_keys(tokens, self._longest, self._table_rows)
        # The table lies on the host wherever the weights are.
        found = self._table.rows(keys.flatten().cpu()).to(self._proj)
        stream = F.embedding(ids, self._embed) + linear(found.view(len(ids), -1), self._proj)
        mixed, joined = causal_conv(stream, tail, self._taps)
        return mixed, tokens, joined


def ngram_keys(tokens: torch.Tensor, longest: int, rows: int) -> torch.Tensor:
    """Table keys int64 [n, longest - 1], shortest n-gram first, of the last n of tokens.

    tokens int64 [longest - 1 + n]: ids plus one, 0 where there is none.
    """
    n = len(tokens) - longest + 1
    keys = []
    for order in range(2, longest + 1):
        key = torch.full((n,), order, dtype=torch.int64, device=tokens.device)
        for back in range(order - 1, -1, -1):
            key.add_(tokens[longest - 1 - back :][:n]).mul_(HASH_FACTOR).remainder_(HASH_PRIME)
        keys.append(key.remainder_(rows))
    return torch.stack(keys, 1)


class PleBranch:
    """One layer's gate: up(silu(gate x) * its embedding)."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors` by their names inside `ple.`."""
        self._gate, self._up = tensors["gate_proj.weight"], tensors["up_proj.weight"]

    def __call__(self, x: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Forward x [n, hidden] with the layer's embeddings [n, ple_dim]."""
        return linear(F.silu(linear(x, self._gate)) * embedded, self._up)
