"""A verified block of the gated delta net layers: what their sections need to absorb it later"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.layers.delta_net import Held


@dataclass(frozen=True, slots=True)
class Block:
    """A verified block: what the sections need to absorb its first tokens.

    The heads of all gated delta net layers stand behind each other, so that absorbing is one batch.
    """

    held: Held
    """Leading axis: gdn layers x value heads; `joined` has the layers as its own axis."""
    hidden: torch.Tensor
    """[block, hidden], after the final norm."""

    @classmethod
    def of(cls, layers: list[Held], hidden: torch.Tensor) -> Block:
        """Gather what the layers keep, which are in the state's order."""
        keys, decay, u = (
            torch.cat([getattr(layer, name) for layer in layers]) for name in ("keys", "decay", "u")
        )
        return cls(Held(keys, decay, u, torch.stack([at.joined for at in layers])), hidden)
