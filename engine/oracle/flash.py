"""The whole flash model, one token at a time: what its engine must come close to

Source: docs/flash.md, with the names of its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch

from engine.flash.config import FlashConfig
from engine.oracle.delta_net import DeltaState
from engine.oracle.flash_layer import FlashKind, Parts, delta_mixer, embed, feed, sparse_mixer
from engine.oracle.formulas import rms_norm
from engine.oracle.per_layer import embedded, ngram_keys
from engine.oracle.sparse import IndexedRows, pooled
from engine.oracle.wide import Weights, back, floats, jitted, under, whole, wide, wide_all, zeros


class FlashOracle:
    """A sequence of up to `window` tokens, a whole number of blocks."""

    def __init__(
        self,
        config: FlashConfig,
        tensors: Mapping[str, torch.Tensor],
        table: torch.Tensor,
        window: int = 256,
    ) -> None:
        """`table` holds the n-grams' rows, [ngram_rows, ngram_width]."""
        assert window % config.block_rows == 0
        self.config, self._kind = config, FlashKind.of(config)
        w = wide_all(tensors)
        self._w = {n: t for n, t in w.items() if not n.startswith(("model.layers.", "mtp.layers."))}
        self._layers = [Parts.of(under(w, f"model.layers.{at}.")) for at in range(config.layers)]
        self._mtp = Parts.of(under(w, "mtp.layers.0."))
        self._table = table
        state = DeltaState(
            zeros(config.value_heads, config.key_dim, config.value_dim),
            zeros(config.channels, config.conv_kernel - 1),
        )
        none = zeros(config.kv_heads, window, config.head_dim)
        rows = IndexedRows(none, none, zeros(window, config.index_dim), whole(0))
        self._memory: list[DeltaState | IndexedRows] = [
            rows if (at + 1) % config.attention_interval == 0 else state
            for at in range(config.layers)
        ]
        self._mtp_rows = rows
        self._tail = zeros(config.layers * config.ple_dim, config.ple_kernel - 1)
        self._streams = zeros(config.streams, config.hidden)
        self._tokens: list[int] = []
        self.margin = float("inf")
        """The least that a block's score was above the best one that was not chosen."""

    def step(self, token: int) -> torch.Tensor:
        """Forward one token; returns logits [vocab], float64."""
        if self.config.draft:
            _, self._mtp_rows = self._drafted(token, self._streams, self._mtp_rows)
        self._tokens.append(token)
        own = self._own(token)
        streams = self._start(token)
        for at, (w, memory) in enumerate(zip(self._layers, self._memory, strict=True)):
            if isinstance(memory, IndexedRows):
                streams, self._memory[at] = self._sparse(w.mixer, streams, memory)
            else:
                streams, self._memory[at] = delta_mixer(w.mixer, streams, memory, kind=self._kind)
            streams = feed(w.mlp, streams, kind=self._kind)
            streams = embed(w.ple, streams, own[at], kind=self._kind)
        self._streams = streams
        return self._logits(streams, "model")

    def read(self, tokens: Sequence[int]) -> torch.Tensor:
        """Forward tokens one after the other; returns their logits [n, vocab]."""
        return torch.stack([self.step(token) for token in tokens])

    def draft(self, token: int, count: int) -> list[int]:
        """Greedy guesses of the `count` tokens after `token`, by the MTP layer's own streams."""
        streams, rows, guesses = self._streams, self._mtp_rows, list[int]()
        for _ in range(count):
            streams, rows = self._drafted(token, streams, rows)
            token = int(self._logits(streams, "mtp").argmax())
            guesses.append(token)
        return guesses

    def state(self) -> dict[str, torch.Tensor]:
        """Sections, then views' rows of all tokens, by their names, in their shapes and order."""
        deltas = [memory for memory in self._memory if isinstance(memory, DeltaState)]
        found = {f"gdn.S.{n}": back(state.s) for n, state in enumerate(deltas)}
        found |= {f"gdn.conv.{n}": back(state.tail) for n, state in enumerate(deltas)}
        context = [0] * self.config.ngram + [token + 1 for token in self._tokens]
        found["ple.conv"] = back(self._tail)
        found["ple.context"] = torch.tensor(context[len(context) - self.config.ngram + 1 :])
        if self.config.draft:
            found["mtp.last"] = back(self._streams)
        rows = [memory for memory in self._memory if isinstance(memory, IndexedRows)]
        count = len(self._tokens)
        found["K"] = torch.stack([back(of.keys)[:, :count] for of in rows])
        found["V"] = torch.stack([back(of.values)[:, :count] for of in rows])
        found["index.K"] = torch.stack([back(of.index_keys)[:count] for of in rows])
        if self.config.draft:
            found["mtp.K"] = back(self._mtp_rows.keys)[:, :count]
            found["mtp.V"] = back(self._mtp_rows.values)[:, :count]
            found["mtp.index.K"] = back(self._mtp_rows.index_keys)[:count]
        return found

    def pooled(self) -> list[torch.Tensor]:
        """Mean index keys [blocks, index_dim] of whole blocks, the MTP layer's last."""
        rows = [memory for memory in self._memory if isinstance(memory, IndexedRows)]
        size = self.config.block_rows
        whole = len(self._tokens) // size
        kept = [*rows, *([self._mtp_rows] if self.config.draft else [])]
        return [back(_pooled(of.index_keys, size=size))[:whole] for of in kept]

    def _own(self, token: int) -> list[jax.Array]:
        """The layers' embeddings of the last of the tokens; moves the convolution's tail."""
        config, w = self.config, under(self._w, "model.ple.")
        keys = ngram_keys(self._tokens, config.ngram, config.ngram_rows)
        ngrams = wide(self._table[keys])
        made, self._tail = embedded(w, whole(token), ngrams, self._tail)
        return [floats(own) for own in np.split(np.array(made), config.layers)]

    def _start(self, token: int) -> jax.Array:
        row = self._w["model.embed_tokens.weight"]
        made: jax.Array = _copies(row, whole(token), streams=self.config.streams)
        return made

    def _drafted(
        self, token: int, before: jax.Array, rows: IndexedRows
    ) -> tuple[jax.Array, IndexedRows]:
        """The MTP layer's streams for a token, given the streams before it, and its rows."""
        eps = self._kind.eps
        streams = _fused(under(self._w, "mtp."), self._start(token), before, eps=eps)
        streams, rows = self._sparse(self._mtp.mixer, streams, rows)
        return feed(self._mtp.mlp, streams, kind=self._kind), rows

    def _sparse(
        self, w: Weights, streams: jax.Array, rows: IndexedRows
    ) -> tuple[jax.Array, IndexedRows]:
        streams, (after, scores) = sparse_mixer(w, streams, rows, kind=self._kind)
        own = int(rows.filled) // self.config.block_rows
        between, top = np.sort(np.array(scores)[1 : max(own - 1, 1)])[::-1], self.config.top_blocks
        if len(between) > top and between[top - 1] != between[top]:
            self.margin = min(self.margin, float(between[top - 1] - between[top]))
        return streams, after

    def _logits(self, streams: jax.Array, under_name: str) -> torch.Tensor:
        tied, w = self.config.tie_embeddings, self._w
        head = w["model.embed_tokens.weight" if tied else "lm_head.weight"]
        read, norm = w[f"{under_name}.streams.read"], w[f"{under_name}.norm.weight"]
        return back(_headed(streams, read, norm, head, eps=self._kind.eps))


@jitted("streams")
def _copies(table: jax.Array, token: jax.Array, *, streams: int) -> jax.Array:
    return jnp.tile(table[token], (streams, 1))


@jitted("size")
def _pooled(index: jax.Array, *, size: int) -> jax.Array:
    return pooled(index, size)


@jitted("eps")
def _fused(w: Weights, embedded: jax.Array, before: jax.Array, *, eps: float) -> jax.Array:
    """fc of every stream's two sides, [streams, hidden] both, each behind its norm."""
    one = rms_norm(embedded, w["pre_fc_norm_embedding.weight"], eps)
    other = rms_norm(before, w["pre_fc_norm_hidden.weight"], eps)
    return jnp.concatenate((one, other), axis=1) @ w["fc.weight"].T


@jitted("eps")
def _headed(
    streams: jax.Array, read: jax.Array, norm: jax.Array, head: jax.Array, *, eps: float
) -> jax.Array:
    return head @ rms_norm(read @ streams, norm, eps)
