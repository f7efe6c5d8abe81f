"""The hybrid's pass over one sequence's buffers: a chunk's hiddens, a verified block's parts"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.buffers import Buffers
from engine.graphs import Made
from engine.layers.block import Block
from engine.layers.counted import Counted
from engine.layers.decoder import Decoder, RunDelta
from engine.layers.delta_net import DeltaNet, Held
from engine.layers.kv import Kv
from engine.layers.rope import Angles, Rope


@dataclass(frozen=True, slots=True)
class Lane:
    """Where rows go: those of the attention layers and of the draft layers, and their angles."""

    start: int
    turn: Angles
    rows: Sequence[Kv]
    drafts: Sequence[Kv]


def lane(buffers: Buffers, start: int, turn: Angles) -> Lane:
    """Rows from `start` on."""
    return Lane(start, turn, buffers.rows.layers, buffers.draft_rows.layers)


def counted(
    buffers: Buffers, rope: Rope, shift: torch.Tensor | None, start: torch.Tensor, at: torch.Tensor
) -> Lane:
    """Rows at places int64 `at` [n], the first of which is `start` [1], all on the device.

    `shift` [1] is how far positions lie behind rows.
    """
    positions = at if shift is None else at - shift
    rows, drafts = (
        [Counted(layer, start, at) for layer in stack.layers]
        for stack in (buffers.rows, buffers.draft_rows)
    )
    return Lane(0, rope.at(positions[:, None].expand(-1, 3)), rows, drafts)


def hiddens(
    decoder: Decoder,
    buffers: Buffers,
    embedded: torch.Tensor,
    run: RunDelta,
    lane: Lane,
    *,
    last_only: bool = False,
) -> torch.Tensor:
    """[n, hidden] of embedded rows [n, hidden], which every attention layer gets.

    With `last_only` the last of them may be all, [1, hidden]: draft layers read every one.
    """
    cut = last_only and not decoder.draft
    hidden = decoder.forward(embedded, lane.start, run, lane.rows, lane.turn, last_only=cut)
    if decoder.draft:
        before = torch.cat((buffers.hidden[None], hidden[:-1]))
        decoder.draft.rows(embedded, before, lane.start, lane.drafts, lane.turn)
    return hidden


def block(
    decoder: Decoder, buffers: Buffers, embedded: torch.Tensor, lane: Lane, logits: bool
) -> Made:
    """A block's logits [n, vocab] (none where they aren't wanted), and what makes its `Block`.

    Changes no section.
    """
    held: list[Held] = []

    def run(at: int, layer: DeltaNet, x: torch.Tensor) -> torch.Tensor:
        out, kept = layer.block(x, buffers.states[at], buffers.tails[at])
        held.append(kept)
        return out

    hidden = hiddens(decoder, buffers, embedded, run, lane)
    kept = Block.of(held, hidden).held
    said = decoder.logits(hidden if logits else hidden[:0])
    return said, kept.keys, kept.decay, kept.u, kept.joined, hidden


def kept(made: Made) -> Block:
    """What the sections need of a block to absorb it."""
    _, keys, decay, u, joined, hidden = made
    return Block(Held(keys, decay, u, joined), hidden)
