"""The flash model's layers in order over one set of weights; sequences bring their state"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from engine.config import HybridConfig
from engine.flash.config import FlashConfig
from engine.flash.mtp import Mtp
from engine.flash.ple import PerLayer, PleBranch
from engine.flash.rows import SparseRows
from engine.flash.sparse_attention import SparseAttention
from engine.flash.streams import Branch, stream_sum
from engine.flash.weights import FlashWeights
from engine.layers.delta_net import DeltaNet
from engine.layers.draft import under
from engine.layers.linear import linear
from engine.layers.mlp import Mlp
from engine.layers.norm import centred
from engine.layers.rope import Angles

RunDelta = Callable[[int, DeltaNet, torch.Tensor], torch.Tensor]
"""Runs the delta net layer of that number (counting such layers only) over normed rows."""


class Layer:
    """A mixer, gated delta net or sparse attention, an MLP and a per-layer embedding."""

    def __init__(
        self,
        config: FlashConfig,
        shared: HybridConfig,
        tensors: dict[str, torch.Tensor],
        attention: bool,
    ) -> None:
        eps = config.rms_eps
        self.mixer: DeltaNet | SparseAttention = (
            SparseAttention(config, under(tensors, "self_attn."))
            if attention
            else DeltaNet(shared, under(tensors, "linear_attn."))
        )
        self.mlp = Mlp(under(tensors, "mlp."))
        self.ple = PleBranch(under(tensors, "ple."))
        self.on_mixer = Branch(tensors, "input_layernorm", "mixer_streams", eps)
        self.on_mlp = Branch(tensors, "post_attention_layernorm", "mlp_streams", eps)
        self.on_ple = Branch(tensors, "pre_ple_layernorm", "ple_streams", eps)


class FlashDecoder:
    """The whole model without any sequence: it is never written to, so engines share it."""

    def __init__(self, weights: FlashWeights) -> None:
        config, tensors = weights.config, weights.tensors
        self.config, self.table = config, weights.table
        self.recipe, self.weight_files = weights.recipe, weights.files
        self.made_by = weights.made_by
        self._embed = tensors["model.embed_tokens.weight"]
        self._head = self._embed if config.tie_embeddings else tensors["lm_head.weight"]
        self._read = tensors["model.streams.read"][None]
        self._norm = centred(tensors["model.norm.weight"], config.rms_eps)
        with weights.below("model.ple.") as ple:
            self.per_layer = PerLayer(config, ple, weights.table)
        self.layers, shared = list[Layer](), config.hybrid()
        for at in range(config.layers):
            with weights.below(f"model.layers.{at}.") as layer:
                self.layers.append(Layer(config, shared, layer, config.is_attention(at)))
        self.mtp: Mtp | None = None
        if config.draft:
            with weights.below("mtp.") as mtp:
                self.mtp = Mtp(config, mtp)

    @property
    def device(self) -> torch.device:
        """Where the weights are, and the buffers of engines over them."""
        return self._embed.device

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows [n, hidden] of n token ids."""
        return F.embedding(ids, self._embed)

    def forward(
        self,
        embedded: torch.Tensor,
        per_layer: torch.Tensor,
        start: int,
        run_delta: RunDelta,
        rows: Sequence[SparseRows],
        turn: Angles,
    ) -> torch.Tensor:
        """The streams [streams, n, hidden] after all layers, of rows [start, start + n).

        per_layer [n, channels]: of all layers side by side. `rows`, one an attention layer, get
        the new rows; `turn` has the angles of theirs.
        """
        x = embedded.expand(self.config.streams, -1, -1)
        own = per_layer.view(len(per_layer), -1, self.config.ple_dim).unbind(1)
        sparse = deltas = 0
        for layer, of_layer in zip(self.layers, own, strict=True):
            normed, mixed = layer.on_mixer.read(x)
            if isinstance(layer.mixer, SparseAttention):
                x = layer.on_mixer.write(mixed, layer.mixer(normed, start, rows[sparse], turn))
                sparse += 1
            else:
                x = layer.on_mixer.write(mixed, run_delta(deltas, layer.mixer, normed))
                deltas += 1
            normed, mixed = layer.on_mlp.read(x)
            x = layer.on_mlp.write(mixed, layer.mlp(normed))
            normed, mixed = layer.on_ple.read(x)
            x = layer.on_ple.write(mixed, layer.ple(normed, of_layer))
        return x

    def hidden(self, streams: torch.Tensor) -> torch.Tensor:
        """What the output is read from, [n, hidden], of streams [streams, n, hidden]."""
        return self._norm(stream_sum(self._read, streams)[0])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab] of hiddens [n, hidden], in the model's dtype."""
        return linear(hidden, self._head)
