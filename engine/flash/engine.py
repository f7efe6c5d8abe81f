"""Flash engine: the second architecture behind the Model port; docs/flash.md lists its state"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch

from cache.types import CacheState, Cost, Ids, Manifest
from engine.adapter import Engine
from engine.device import kernel_files
from engine.flash.config import FIXED_BLOCKS, FlashConfig
from engine.flash.decoder import FlashDecoder, RunDelta
from engine.flash.state import FlashState
from engine.flash.table import Table
from engine.flash.weights import random_weights
from engine.flash.workspace import Workspace
from engine.layers import delta_rule
from engine.layers.block import Block
from engine.layers.conv import next_tail
from engine.layers.delta_net import DeltaNet, Held
from engine.layers.rope import Angles, Rope
from engine.machine import libraries, traits
from engine.pictures.places import Place

_FILES = (
    "engine/adapter.py",
    "engine/config.py",
    "engine/flash/config.py",
    "engine/flash/decoder.py",
    "engine/flash/engine.py",
    "engine/flash/indexer.py",
    "engine/flash/mtp.py",
    "engine/flash/ple.py",
    "engine/flash/rows.py",
    "engine/flash/sparse_attention.py",
    "engine/flash/state.py",
    "engine/flash/streams.py",
    "engine/flash/table.py",
    "engine/flash/table_cold.py",
    "engine/flash/table_file.py",
    "engine/flash/table_handle.py",
    "engine/flash/table_hot.py",
    "engine/flash/table_lane.py",
    "engine/flash/table_warm.py",
    "engine/flash/weights.py",
    "engine/flash/workspace.py",
    "engine/layers/attend.py",
    "engine/layers/attention.py",
    "engine/layers/block.py",
    "engine/layers/conv.py",
    "engine/layers/delta_net.py",
    "engine/layers/delta_rule.py",
    "engine/layers/delta_wide.py",
    "engine/layers/draft.py",
    "engine/layers/e4m3.py",
    "engine/layers/kv.py",
    "engine/layers/linear.py",
    "engine/layers/mlp.py",
    "engine/layers/moe.py",
    "engine/layers/norm.py",
    "engine/layers/rope.py",
    "engine/layers/tiles.py",
    "engine/layers/wide_rule.py",
    "engine/moe_config.py",
    "engine/vision_config.py",
    "engine/weights.py",
)


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What a call computed of its rows, and what the sections that go with tokens are cut from."""

    streams: torch.Tensor
    """[streams, n, hidden] after the last layer."""
    tokens: torch.Tensor
    """Ids plus one with the context in front, [ngram - 1 + n]."""
    stream: torch.Tensor
    """The per-layer embeddings' stream with the tail in front, [kernel - 1 + n, channels]."""


class Flash(Engine):
    """One sequence of a flash model. Any token ids in [0, vocab) may follow any others."""

    def __init__(
        self,
        decoder: FlashDecoder,
        *,
        grid: int,
        window: int,
        cost: Cost | None = None,
        block_logits: bool = True,
    ) -> None:
        """`cost` replaces the real bytes (a replay counts a board's).

        Without `block_logits` verify returns an empty (0, vocab) tensor: a forced replay reads
        none, and over a large vocabulary they cost more than all the layers of a narrow model.
        """
        super().__init__(grid, window)
        config = decoder.config
        self.vocab = config.vocab
        self.choice_rows = (config.top_blocks + FIXED_BLOCKS) * config.block_rows
        self.decoder = decoder
        self._cost = cost
        self._block_logits = block_logits
        self._state = FlashState(config, window, decoder.device)
        turned = config.rotary_dim, config.rope_theta, window, config.torch_dtype
        self._rope = Rope(*turned, device=decoder.device)
        self._last: tuple[Held, Forwarded] | None = None

    @classmethod
    def random(
        cls,
        config: FlashConfig,
        seed: int,
        *,
        grid: int,
        window: int,
        cost: Cost | None = None,
        block_logits: bool = True,
        table: Table | None = None,
    ) -> Flash:
        """An engine over weights drawn from `seed`; without a table one in memory is drawn too."""
        decoder = FlashDecoder(random_weights(config, seed, table))
        return cls(decoder, grid=grid, window=window, cost=cost, block_logits=block_logits)

    def twin(self, window: int) -> Flash:
        """An empty engine over the same weights and table with buffers of its own."""
        return Flash(
            self.decoder,
            grid=self.grid,
            window=window,
            cost=self._cost,
            block_logits=self._block_logits,
        )

    # the Model port

    def cache_state(self) -> CacheState:
        """The live tensors; the same ones at every call."""
        return self._state.cache

    def cost(self) -> Cost:
        """Real bytes unless the constructor was given others."""
        if self._cost is not None:
            return self._cost
        state = self.cache_state()
        workspace = Workspace.of(self.decoder.config, self.grid, self.window)
        return Cost(
            row_bytes=sum(view.tensor.nbytes for view in state.views) // self.window,
            anchor_bytes=sum(section.tensor.nbytes for section in state.sections),
            workspace_floor_bytes=workspace.floor_bytes,
            workspace_row_bytes=workspace.row_bytes,
            workspace_cap_bytes=workspace.cap_bytes,
        )

    def manifest(self) -> Manifest:
        """What computes stored rows, the n-gram table among it; the window does not."""
        decoder, config = self.decoder, self.decoder.config
        knobs = {field.name: str(getattr(config, field.name)) for field in fields(config)}
        files = tuple(sorted((*_FILES, *decoder.made_by, *kernel_files(decoder.device))))
        made_by = files, knobs, decoder.recipe, self.grid, libraries(), traits(decoder.device)
        return Manifest(*made_by, weight_files=decoder.weight_files)

    def resident_files(self) -> int:
        """Page cache of a warm n-gram table."""
        return self.decoder.table.resident_bytes()

    # forward

    @torch.inference_mode()
    def draft(self, token: int, count: int) -> list[int]:
        """Greedy guesses of the MTP layer, fed with its own streams; [] when there is none.

        Writes only its rows at and past `length`, which the next verify overwrites.
        """
        layer, rows = self.decoder.mtp, self._state.mtp_rows
        if layer is None or rows is None:
            return []
        # With a commit pending the newest streams are still in the block.
        block = self._last[1].streams if self._last and self.pending else None
        streams = self._state.last if block is None else block[:, self.pending - 1]
        streams, guesses = streams.unsqueeze(1), list[int]()
        for at in range(self.length, min(self.length + count, self.window)):
            embedded = self.decoder.embed(self._on_device([token]))
            streams, hidden = layer.step(embedded, streams, at, rows, self._angles(at, at + 1))
            token = int(self.decoder.logits(hidden)[0].argmax())
            guesses.append(token)
        return guesses

    @torch.inference_mode()
    def _chunk(self, ids: Ids) -> torch.Tensor:
        state = self._state

        def run(at: int, layer: DeltaNet, x: torch.Tensor) -> torch.Tensor:
            return layer.chunk(x, state.states[at], state.tails[at])

        done = self._forward(ids, self.length, run)
        self._go_on(done, len(ids))
        self._last = None
        return self.decoder.logits(self.decoder.hidden(done.streams[:, -1:]))[0]

    @torch.inference_mode()
    def _verify(self, ids: Ids, folded: int) -> torch.Tensor:
        if folded:
            self._absorb(folded)
        held: list[Held] = []
        state = self._state

        def run(at: int, layer: DeltaNet, x: torch.Tensor) -> torch.Tensor:
            out, kept = layer.block(x, state.states[at], state.tails[at])
            held.append(kept)
            return out

        done = self._forward(ids, self.length, run)
        hidden = self.decoder.hidden(done.streams)
        self._last = Block.of(held, hidden).held, done
        return self.decoder.logits(hidden if self._block_logits else hidden[:0])

    @torch.inference_mode()
    def _land(self, count: int) -> None:
        self._absorb(count)

    def _forward(self, ids: Ids, start: int, run: RunDelta) -> Forwarded:
        """Forward `ids` as rows [start, start + n); writes them in every attention layer.

        Changes no section itself; `run` may.
        """
        decoder, state = self.decoder, self._state
        tokens, turn = self._on_device(ids), self._angles(start, start + len(ids))
        embedded = decoder.embed(tokens)
        per_layer, joined, stream = decoder.per_layer(tokens, state.context, state.ple_tail)
        streams = decoder.forward(embedded, per_layer, start, run, state.rows, turn)
        if decoder.mtp and state.mtp_rows:
            before = torch.cat((state.last.unsqueeze(1), streams[:, :-1]), 1)
            decoder.mtp.rows(embedded, before, start, state.mtp_rows, turn)
        return Forwarded(streams, joined, stream)

    def _on_device(self, ids: Ids | list[int]) -> torch.Tensor:
        return torch.from_numpy(np.array(ids, np.int64)).to(self.decoder.device)

    def _angles(self, start: int, stop: int) -> Angles:
        return self._rope.rows(start, stop)

    def _absorb(self, count: int) -> None:
        """Let the sections take in the last block's first `count` tokens."""
        assert self._last is not None
        (held, done), state = self._last, self._state
        delta_rule.absorb(state.all_heads, held.keys, held.decay, held.u, count)
        state.tail.copy_(next_tail(held.joined, count, self.decoder.config.conv_kernel))
        self._go_on(done, count)

    def _go_on(self, done: Forwarded, count: int) -> None:
        """Let the sections beside those of the gated delta nets take in a call's first rows."""
        config, state = self.decoder.config, self._state
        state.context.copy_(done.tokens[count : count + config.ngram - 1])
        state.ple_tail.copy_(next_tail(done.stream, count, config.ple_kernel))
        state.last.copy_(done.streams[:, count - 1])

    def _look(self, places: tuple[Place, ...], line: int) -> None:
        assert not places, "a model of text alone reads no pictures"

    def _clear(self) -> None:
        for section in self.cache_state().sections:
            section.tensor.zero_()

    def _rebuild(self, length: int) -> None:
        # The block belonged to the sequence that was replaced.
        self._last = None
        self._state.rebuild(length)
