"""Draft layer: one attention layer that guesses the token after next from the last hidden."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from engine.config import HybridConfig
from engine.layers.attention import Attention
from engine.layers.mlp import Mlp
from engine.layers.norm import centred
from engine.layers.rope import Angles


class Draft:
    """The multi-token-prediction layer of the published checkpoints (`mtp.*`).

    Row i of its keys and values comes from the hidden of position i - 1 (the main model's, after
    its final norm; zeros before the first) and the embedding of token i: never from a later token.
    """

    def __init__(self, config: HybridConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors` by their names inside `mtp.`."""
        layer = under(tensors, "layers.0.")
        self._fc = tensors["fc.weight"]
        self._attention = Attention(config, under(layer, "self_attn."))
        self._mlp = Mlp(under(layer, "mlp."))
        eps = config.rms_eps
        self._of_embedding = centred(tensors["pre_fc_norm_embedding.weight"], eps)
        self._of_hidden = centred(tensors["pre_fc_norm_hidden.weight"], eps)
        self._norm = centred(tensors["norm.weight"], eps)
        self._before = centred(layer["input_layernorm.weight"], eps)
        self._after = centred(layer["post_attention_layernorm.weight"], eps)

    def rows(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        start: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        turn: Angles,
    ) -> None:
        """Write rows [start, start + n) from n embeddings and the n hiddens before them.

        A row needs neither this layer's attention nor its MLP: those run only for a guess.
        """
        x = self._before(self._mixed(embedded, hidden))
        self._attention.rows(x, start, keys, values, turn)

    def step(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        start: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        turn: Angles,
    ) -> torch.Tensor:
        """This layer's own hidden for one position, [1, hidden]; writes its row."""
        x = self._mixed(embedded, hidden)
        x = x + self._attention(self._before(x), start, keys, values, turn)
        x = x + self._mlp(self._after(x))
        return self._norm(x)

    def _mixed(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        sides = (self._of_embedding(embedded), self._of_hidden(hidden))
        return F.linear(torch.cat(sides, dim=-1), self._fc)


def under(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors below `prefix`, by the rest of their names."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
