"""What a turn says of itself while it runs: each is a point where it may be closed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cache.budget import Refused
from cache.plan import Plan
from cache.types import Ids, Line


@dataclass(frozen=True, slots=True)
class Resumed:
    """The cache has chosen: the prefill starts at `line`."""

    line: Line
    plan: Plan


@dataclass(frozen=True, slots=True)
class Chunk:
    """The prefill has come to `done` tokens; closing the turn here cancels it."""

    done: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The whole prompt is in place as it was served; `logits` are its last position's."""

    ids: Ids
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of the answer; closing the turn here ends it after them."""

    ids: list[int]


Event = Refused | Resumed | Chunk | Ready | Tokens
