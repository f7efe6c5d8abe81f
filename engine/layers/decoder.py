"""The layers in order over one set of weights; sequences bring their own state and rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from engine.config import HybridConfig
from engine.layers.attention import Attention
from engine.layers.delta_net import DeltaNet
from engine.layers.draft import Draft, under
from engine.layers.kv import Kv
from engine.layers.linear import linear
from engine.layers.moe import mlp_of
from engine.layers.norm import centred
from engine.layers.rope import Angles
from engine.layers.vision import Tower
from engine.weights import Weights

RunDelta = Callable[[int, DeltaNet, torch.Tensor], torch.Tensor]
"""Runs the delta net layer of that number (counting such layers only) over normed rows."""


class Layer:
    """A mixer, gated delta net or attention, and an MLP or experts, each behind its norm."""

    def __init__(
        self, config: HybridConfig, tensors: dict[str, torch.Tensor], attention: bool
    ) -> None:
        self.mixer: DeltaNet | Attention = (
            Attention(config, under(tensors, "self_attn."))
            if attention
            else DeltaNet(config, under(tensors, "linear_attn."))
        )
        self.mlp = mlp_of(config.moe, under(tensors, "mlp."))
        self.before = centred(tensors["input_layernorm.weight"], config.rms_eps)
        self.after = centred(tensors["post_attention_layernorm.weight"], config.rms_eps)


class Decoder:
    """The whole model without any sequence: it is never written to, so engines share it."""

    def __init__(self, weights: Weights) -> None:
        config = weights.config
        self.config = config
        self.recipe, self.weight_files = weights.recipe, weights.files
        self.made_by = weights.made_by
        # Part by part, so that of weights in files no more than a part is held twice.
        with weights.below("model.embed_tokens.") as tensors:
            self._embed = tensors["weight"]
        self.device = self._embed.device
        with weights.below("lm_head.") as tensors:
            self._head = self._embed if config.tie_embeddings else tensors["weight"]
        with weights.below("model.norm.") as tensors:
            self._norm = centred(tensors["weight"], config.rms_eps)
        self.layers = [self._layer(weights, at) for at in range(config.layers)]
        with weights.below("mtp.") as tensors:
            self.draft = Draft(config, tensors) if config.draft else None
        with weights.below("model.visual.") as tensors:
            self.tower = (
                Tower(config.vision, tensors, config.torch_dtype) if config.vision else None
            )

    def _layer(self, weights: Weights, at: int) -> Layer:
        with weights.below(f"model.layers.{at}.") as tensors:
            return Layer(weights.config, tensors, weights.config.is_attention(at))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows [n, hidden] of n token ids."""
        return F.embedding(ids, self._embed)

    def forward(
        self,
        x: torch.Tensor,
        start: int,
        run_delta: RunDelta,
        rows: Sequence[Kv],
        turn: Angles,
        *,
        last_only: bool = False,
    ) -> torch.Tensor:
        """The hiddens [n, hidden] after the final norm, of embedded rows [start, start + n).

        `rows`, one an attention layer, get the new rows; `turn` has the angles of theirs. With
        `last_only` it is [1, hidden], the last row's: what the last layer would do for the others
        beyond their keys and values, or their part of a state, nobody reads.
        """
        deltas = attentions = 0
        for at, layer in enumerate(self.layers, 1):
            cut = last_only and at == len(self.layers)
            normed = layer.before(x)
            if isinstance(layer.mixer, Attention):
                mix = layer.mixer.last if cut else layer.mixer
                mixed = mix(normed, start, rows[attentions], turn)
                attentions += 1
            else:
                mixed = run_delta(deltas, layer.mixer, normed)
                deltas += 1
            x = x[-1:] + mixed[-1:] if cut else x + mixed
            x = x + layer.mlp(layer.after(x))
        return self._norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab] of hiddens [n, hidden], in the model's dtype."""
        return linear(hidden, self._head)
