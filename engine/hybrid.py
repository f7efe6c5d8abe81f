"""Hybrid engine: gated delta net and attention layers behind the Model port.

Sections: `gdn.S` [gdn layers, value heads, key_dim, value_dim] float32; `gdn.conv` [gdn layers,
channels, 3]; `draft.h` [hidden], the last absorbed position's hidden, which the draft layer reads
with the next token; with a tower `rope.shift` [1] int64, how far positions lie behind rows because
of the pictures that were read to their end. Views: `K`, `V` [attention layers, kv heads, window,
head_dim] and `draft.K`, `draft.V` [draft layers, kv heads, window, head_dim]; where these are e4m3
`K.scale` and so on, float32 [layers, kv heads, window]. All else is in the model's dtype.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch

from cache.types import CacheState, Cost, Ids, Manifest, Section
from engine.adapter import Engine
from engine.buffers import Buffers
from engine.config import HybridConfig
from engine.device import kernel_files
from engine.forward import block, counted, hiddens, kept, lane
from engine.graphs import Captures, Graphs, Made, captures_for
from engine.layers import delta_rule
from engine.layers.block import Block
from engine.layers.conv import next_tail
from engine.layers.decoder import Decoder
from engine.layers.delta_net import DeltaNet
from engine.layers.rope import Angles, Rope
from engine.layers.sight import Sight
from engine.machine import libraries, traits
from engine.pictures.encoded import Encoded
from engine.pictures.places import Place
from engine.weights import random_weights

_FILES = (
    "engine/adapter.py",
    "engine/buffers.py",
    "engine/config.py",
    "engine/forward.py",
    "engine/graphs.py",
    "engine/hybrid.py",
    "engine/layers/attend.py",
    "engine/layers/attention.py",
    "engine/layers/block.py",
    "engine/layers/conv.py",
    "engine/layers/counted.py",
    "engine/layers/decoder.py",
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
    "engine/layers/sight.py",
    "engine/layers/tiles.py",
    "engine/layers/vision.py",
    "engine/layers/wide_rule.py",
    "engine/moe_config.py",
    "engine/pictures/encoded.py",
    "engine/pictures/picture.py",
    "engine/pictures/places.py",
    "engine/vision_config.py",
    "engine/weights.py",
)


class Hybrid(Engine):
    """One sequence of a hybrid model. Any token ids in [0, vocab) may follow any others, and where
    there is a tower the rows of pictures that `look` was told of.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        grid: int,
        window: int,
        cost: Cost | None = None,
        block_logits: bool = True,
        encoded: Encoded | None = None,
        graphs: Captures | bool = True,
    ) -> None:
        """`cost` replaces the real bytes (a replay counts a board's); `encoded` is for all engines
        over these weights to share.

        Without `block_logits` verify returns an empty (0, vocab) tensor: a forced replay reads
        none, and over a large vocabulary they cost more than all the layers of a narrow model.

        With `graphs` verify blocks are captured and replayed as the weights' device does that, or
        as is said.
        """
        super().__init__(grid, window)
        config = decoder.config
        self.vocab = config.vocab
        self.decoder = decoder
        self._cost = cost
        self._block_logits = block_logits
        self._buffers = Buffers(config, window, decoder.device)
        turned = config.rotary_dim, config.rope_theta, window, config.torch_dtype
        self._rope = Rope(*turned, config.mrope_section, decoder.device)
        self._sight = Sight(decoder.tower, self._rope) if decoder.tower else None
        if decoder.tower:
            self.encoded = Encoded() if encoded is None else encoded
        self._last: Block | None = None
        self._with_graphs = graphs
        captures = captures_for(decoder.device) if isinstance(graphs, bool) else graphs
        # Experts ask the host which of them have rows: no graph holds that.
        captured = captures is not None and graphs is not False and config.moe is None
        self.graphs = Graphs(captures, decoder.device) if captured else None

    @classmethod
    def random(
        cls,
        config: HybridConfig,
        seed: int,
        *,
        grid: int,
        window: int,
        cost: Cost | None = None,
        block_logits: bool = True,
        encoded: Encoded | None = None,
    ) -> Hybrid:
        """An engine over weights drawn from `seed`."""
        decoder = Decoder(random_weights(config, seed))
        return cls(
            decoder,
            grid=grid,
            window=window,
            cost=cost,
            block_logits=block_logits,
            encoded=encoded,
        )

    def twin(self, window: int) -> Hybrid:
        """An empty engine over the same weights with buffers of its own."""
        return Hybrid(
            self.decoder,
            grid=self.grid,
            window=window,
            cost=self._cost,
            block_logits=self._block_logits,
            encoded=self.encoded,
            graphs=self._with_graphs,
        )

    # the Model port

    def cache_state(self) -> CacheState:
        """The live tensors; the same ones at every call."""
        buffers = self._buffers
        sections = [Section("gdn.S", buffers.state), Section("gdn.conv", buffers.tail)]
        views = buffers.rows.views
        if self.decoder.draft:
            sections.append(Section("draft.h", buffers.hidden))
            views += buffers.draft_rows.views
        if self._sight:
            sections.append(Section("rope.shift", self._sight.shift))
        return CacheState(tuple(sections), views)

    def cost(self) -> Cost:
        """Real bytes unless the constructor was given others."""
        if self._cost is not None:
            return self._cost
        state, config = self.cache_state(), self.decoder.config
        # The widest moment of a chunk: a delta net layer with projections, inner chunks and scores
        # in float32, or rows at their experts; and the logits of one row.
        wide = 6 * config.channels + 4 * config.value_heads * (config.value_dim + 64)
        experts = config.moe.floats(config.hidden) if config.moe else 0
        wide = max(wide + 4 * config.hidden + 3 * config.intermediate, experts)
        return Cost(
            row_bytes=sum(view.tensor.nbytes for view in state.views) // self.window,
            anchor_bytes=sum(section.tensor.nbytes for section in state.sections),
            workspace_floor_bytes=4 * (self.grid * wide + config.vocab),
            workspace_row_bytes=self._buffers.rows.read_bytes,
        )

    def manifest(self) -> Manifest:
        """What computes stored rows; the window does not."""
        decoder, config = self.decoder, self.decoder.config
        knobs = {field.name: str(getattr(config, field.name)) for field in fields(config)}
        # There were no pictures when format 1 was written: the shift of positions was zero.
        old = {"S": "gdn.S", "conv": "gdn.conv"}
        files = tuple(sorted((*_FILES, *decoder.made_by, *kernel_files(decoder.device))))
        made_by = files, knobs, decoder.recipe, self.grid, libraries(), traits(decoder.device)
        return Manifest(*made_by, {}, decoder.weight_files, old, ("rope.shift",))

    # forward

    @torch.inference_mode()
    def draft(self, token: int, count: int) -> list[int]:
        """Greedy guesses of the draft layer, fed with its own hidden; [] when there is none.

        Writes only its rows at and past `length`, which the next verify overwrites.
        """
        layer = self.decoder.draft
        if layer is None:
            return []
        # With a commit pending the newest hidden is still in the block.
        pending = self._last if self.pending else None
        newest = pending.hidden[self.pending - 1] if pending else self._buffers.hidden
        hidden, guesses = newest[None], list[torch.Tensor]()
        newer = torch.full((1,), token, device=self.decoder.device)
        for at in range(self.length, min(self.length + count, self.window)):
            embedded, turn = self.decoder.embed(newer), self._angles(at, at + 1)
            hidden = layer.step(embedded, hidden, at, self._buffers.draft_rows.layers, turn)
            newer = self.decoder.logits(hidden).argmax(-1)
            guesses.append(newer)
        # All at once: each guess asked for alone would wait for a device.
        return torch.cat(guesses).tolist() if guesses else []

    @torch.inference_mode()
    def _chunk(self, ids: Ids) -> torch.Tensor:
        buffers = self._buffers

        def run(at: int, layer: DeltaNet, x: torch.Tensor) -> torch.Tensor:
            return layer.chunk(x, buffers.states[at], buffers.tails[at])

        where = lane(buffers, self.length, self._angles(self.length, self.length + len(ids)))
        embedded = self._embedded(ids, self.length)
        hidden = hiddens(self.decoder, buffers, embedded, run, where, last_only=True)
        buffers.hidden.copy_(hidden[-1])
        if self._sight:
            self._sight.passed(self.length, self.length + len(ids))
        self._last = None
        return self.decoder.logits(hidden[-1:])[0]

    @torch.inference_mode()
    def _verify(self, ids: Ids, folded: int) -> torch.Tensor:
        if folded:
            self._absorb(folded)
        start, stop = self.length, self.length + len(ids)
        seen = self._sight and self._sight.between(start, stop)
        captured = self.graphs is not None and not seen
        made = self.graphs.forward(self._counted, ids, start) if captured else None
        if made is None:
            where = lane(self._buffers, start, self._angles(start, stop))
            embedded = self._embedded(ids, start)
            made = block(self.decoder, self._buffers, embedded, where, self._block_logits)
            logits = made[0]
        else:
            # The caller may keep them; the next replay writes over these.
            logits = made[0].clone()
        self._last = kept(made)
        return logits

    @torch.inference_mode()
    def _counted(self, ids: torch.Tensor, start: torch.Tensor, places: torch.Tensor) -> Made:
        """A block of text whose place lies on the device: what a graph captures."""
        shift = self._sight.shift if self._sight else None
        where = counted(self._buffers, self._rope, shift, start, places)
        embedded = self.decoder.embed(ids)
        return block(self.decoder, self._buffers, embedded, where, self._block_logits)

    @torch.inference_mode()
    def _land(self, count: int) -> None:
        self._absorb(count)

    def _embedded(self, ids: Ids, start: int) -> torch.Tensor:
        """Rows [n, hidden] of tokens, and of pictures what the tower makes of them."""
        tokens = np.array(ids, np.int64)
        if not (self._sight and self._sight.between(start, start + len(ids))):
            return self.decoder.embed(torch.from_numpy(tokens).to(self.decoder.device))
        assert self.encoded is not None
        rows = self.decoder.embed(torch.from_numpy(tokens.clip(0)).to(self.decoder.device))
        self._sight.embed(rows, start, self.encoded)
        return rows

    def _angles(self, start: int, stop: int) -> Angles:
        """Of the positions of rows [start, stop)."""
        return self._sight.angles(start, stop) if self._sight else self._rope.rows(start, stop)

    def _look(self, places: tuple[Place, ...], line: int) -> None:
        assert not places or self._sight, "a model of text alone reads no pictures"
        if self._sight:
            self._sight.look(places, line)

    def _absorb(self, count: int) -> None:
        """Let the sections take in the last block's first `count` tokens."""
        assert self._last is not None
        held = self._last.held
        delta_rule.absorb(self._buffers.all_heads, held.keys, held.decay, held.u, count)
        self._buffers.tail.copy_(next_tail(held.joined, count, self.decoder.config.conv_kernel))
        self._buffers.hidden.copy_(self._last.hidden[count - 1])

    def _clear(self) -> None:
        for section in self.cache_state().sections:
            section.tensor.zero_()

    def _rebuild(self, length: int) -> None:
        # Nothing is derived from rows; the block belonged to the sequence that was replaced.
        self._last = None
        if self._sight:
            self._sight.forget()
