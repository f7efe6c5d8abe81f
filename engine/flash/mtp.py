"""MTP layer: guesses the token after next from a row's streams and the next token"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.flash.config import FlashConfig
from engine.flash.rows import SparseRows
from engine.flash.sparse_attention import SparseAttention
from engine.flash.streams import Branch, stream_sum
from engine.layers.draft import under
from engine.layers.linear import linear
from engine.layers.mlp import Mlp
from engine.layers.norm import centred
from engine.layers.rope import Angles


class Mtp:
    """Row i of its views comes from the streams of row i - 1, as the last layer leaves them (zeros
    before the first), and the embedding of token i: never from a later token.
    """

    def __init__(self, config: FlashConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors` by their names inside `mtp.`."""
        layer, eps = under(tensors, "layers.0."), config.rms_eps
        self._fc, self._read = tensors["fc.weight"], tensors["streams.read"][None]
        self._of_embedding = centred(tensors["pre_fc_norm_embedding.weight"], eps)
        self._of_streams = centred(tensors["pre_fc_norm_hidden.weight"], eps)
        self._norm = centred(tensors["norm.weight"], eps)
        self._attention = SparseAttention(config, under(layer, "self_attn."))
        self._mlp = Mlp(under(layer, "mlp."))
        self._before = Branch(layer, "input_layernorm", "mixer_streams", eps)
        self._after = Branch(layer, "post_attention_layernorm", "mlp_streams", eps)

    def rows(
        self,
        embedded: torch.Tensor,
        streams: torch.Tensor,
        start: int,
        rows: SparseRows,
        turn: Angles,
    ) -> None:
        """Write rows [start, start + n) from n embeddings [n, hidden] and the streams before them,
        [streams, n, hidden]. A row needs neither attention nor MLP: those run for a guess alone.
        """
        x = self._before.alone(self._mixed(embedded, streams))
        self._attention.rows(x, start, rows, turn)

    def step(
        self,
        embedded: torch.Tensor,
        streams: torch.Tensor,
        start: int,
        rows: SparseRows,
        turn: Angles,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """This layer's own streams [streams, 1, hidden] for one row, which is written, and the
        hidden [1, hidden] that its guess is read from.
        """
        x = self._mixed(embedded, streams)
        normed, mixed = self._before.read(x)
        x = self._before.write(mixed, self._attention(normed, start, rows, turn))
        normed, mixed = self._after.read(x)
        x = self._after.write(mixed, self._mlp(normed))
        return x, self._norm(stream_sum(self._read, x)[0])

    def _mixed(self, embedded: torch.Tensor, streams: torch.Tensor) -> torch.Tensor:
        side = self._of_embedding(embedded).expand_as(streams)
        rows = torch.cat((side, self._of_streams(streams)), dim=-1).flatten(0, 1)
        return linear(rows, self._fc).view(streams.shape)
