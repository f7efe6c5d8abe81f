"""Draft layers: attention layers that guess the token after next from the last hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from engine.config import HybridConfig
from engine.layers.attention import Attention
from engine.layers.kv import Kv
from engine.layers.linear import linear
from engine.layers.moe import mlp_of
from engine.layers.norm import centred
from engine.layers.rope import Angles


class DraftLayer:
    """Attention and an MLP or experts, each behind its norm, as in the model's own layers."""

    def __init__(self, config: HybridConfig, tensors: dict[str, torch.Tensor]) -> None:
        """`tensors` by their names inside `mtp.layers.N.`."""
        self._attention = Attention(config, under(tensors, "self_attn."))
        self._mlp = mlp_of(config.moe, under(tensors, "mlp."))
        self._before = centred(tensors["input_layernorm.weight"], config.rms_eps)
        self._after = centred(tensors["post_attention_layernorm.weight"], config.rms_eps)

    def __call__(self, x: torch.Tensor, start: int, rows: Kv, turn: Angles) -> torch.Tensor:
        """Forward x [n, hidden] as rows [start, start + n), which are written first."""
        x = x + self._attention(self._before(x), start, rows, turn)
        return x + self._mlp(self._after(x))

    def rows(self, x: torch.Tensor, start: int, rows: Kv, turn: Angles) -> None:
        """Write the rows of x and nothing more."""
        self._attention.rows(self._before(x), start, rows, turn)


class Draft:
    """The multi-token-prediction layers of the published checkpoints (`mtp.*`).

    Row i of the first layer's keys and values comes from the hidden of position i - 1 (the main
    model's, after its final norm; zeros before the first) and the embedding of token i. Further
    layers follow one after the other. So no row comes from a later token.
    """

    def __init__(self, config: HybridConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors` by their names inside `mtp.`."""
        self._fc = tensors["fc.weight"]
        layers = [
            DraftLayer(config, under(tensors, f"layers.{at}.")) for at in range(config.draft_layers)
        ]
        self._first, self._last = layers[:-1], layers[-1]
        eps = config.rms_eps
        self._of_embedding = centred(tensors["pre_fc_norm_embedding.weight"], eps)
        self._of_hidden = centred(tensors["pre_fc_norm_hidden.weight"], eps)
        self._norm = centred(tensors["norm.weight"], eps)

    def rows(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        start: int,
        rows: Sequence[Kv],
        turn: Angles,
    ) -> None:
        """Write rows [start, start + n) from n embeddings and the n hiddens before them.

        The last layer's rows need neither its attention nor its MLP: those run only for a guess.
        """
        x = self._entered(embedded, hidden, start, rows, turn)
        self._last.rows(x, start, rows[-1], turn)

    def step(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        start: int,
        rows: Sequence[Kv],
        turn: Angles,
    ) -> torch.Tensor:
        """The draft's own hidden for one position, [1, hidden]; writes its rows."""
        x = self._entered(embedded, hidden, start, rows, turn)
        return self._norm(self._last(x, start, rows[-1], turn))

    def _entered(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        start: int,
        rows: Sequence[Kv],
        turn: Angles,
    ) -> torch.Tensor:
        """What the last layer reads, [n, hidden]; writes the rows of all before it."""
        sides = (self._of_embedding(embedded), self._of_hidden(hidden))
        x = linear(torch.cat(sides, dim=-1), self._fc)
        for layer, own in zip(self._first, rows, strict=False):
            x = layer(x, start, own, turn)
        return x


def under(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors below `prefix`, by the rest of their names."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
