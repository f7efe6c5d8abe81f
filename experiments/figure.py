"""What an experiment gives: figures beside the measured ones, and curves over a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One number; `seed` is what was measured on the system this one is modelled on."""

    key: str
    seed: float | None
    """None where nothing was measured."""
    ours: float
    unit: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Lines over one size: a name to its points (x, y), ascending in x."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
