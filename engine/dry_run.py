"""A model's real size without its memory: weights and buffers on torch's meta device"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from engine.adapter import Engine
from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.weights import Weights, expected_shapes

DRAFTS = ("draft.", "mtp.")
"""What the names of the drafters' views begin with."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an engine's tensors take, counted on the tensors themselves."""

    parameters: int
    weight_bytes: int
    section_bytes: Mapping[str, int]
    """Of one copy, by the section's name."""
    view_row_bytes: Mapping[str, int]
    """Of one token, by the view's name."""
    workspace_floor_bytes: int
    workspace_row_bytes: int

    @classmethod
    def of(cls, engine: Engine, weights: Iterable[torch.Tensor]) -> Sizes:
        """Count an engine, wherever its tensors lie, over `weights`."""
        state, cost, weights = engine.cache_state(), engine.cost(), list(weights)
        return cls(
            parameters=sum(tensor.numel() for tensor in weights),
            weight_bytes=sum(tensor.nbytes for tensor in weights),
            section_bytes={section.name: section.tensor.nbytes for section in state.sections},
            view_row_bytes={view.name: view.rows(0, 1).nbytes for view in state.views},
            workspace_floor_bytes=cost.workspace_floor_bytes,
            workspace_row_bytes=cost.workspace_row_bytes,
        )

    @property
    def anchor_bytes(self) -> int:
        """Of one copy of all sections."""
        return sum(self.section_bytes.values())

    @property
    def row_bytes(self) -> int:
        """Of one token over all views."""
        return sum(self.view_row_bytes.values())

    @property
    def draft_row_bytes(self) -> int:
        """The drafters' part of it."""
        views = self.view_row_bytes.items()
        return sum(nbytes for name, nbytes in views if name.startswith(DRAFTS))

    @property
    def kv_row_bytes(self) -> int:
        """The part of the model's own layers."""
        return self.row_bytes - self.draft_row_bytes


def dry_run(config: HybridConfig, *, grid: int = 1_024, window: int = 1_024) -> Sizes:
    """The sizes of a hybrid of this shape: every tensor is made as it always is, on no memory.

    The window changes none of them.
    """
    with torch.device("meta"):
        tensors = {
            name: torch.empty(shape, dtype=config.torch_dtype)
            for name, shape in expected_shapes(config).items()
        }
        engine = Hybrid(Decoder(Weights(config, tensors, "meta")), grid=grid, window=window)
    return Sizes.of(engine, tensors.values())
