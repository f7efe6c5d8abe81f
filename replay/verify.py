"""Every resume held to its gate: against the witness's formula, or against a cold prefill."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from cache.types import CacheState, Gate, Ids
from engine.adapter import Engine
from engine.pictures.encoded import Encoded
from engine.witness import Witness

TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Largest difference of logits under the greedy gate, by their dtype. A verify block and a prefill
chunk round differently: up to 1e-5 in float32 and 0.07 in bfloat16 on the small models, whose
logits reach four; a wrong state is off by far more."""
CHOICE = "in bfloat16 a near tie in the choice of blocks can do that: --dtype float32 tells"
"""Of an engine that chooses rows: a step, past which logits are further apart than rounding."""
E4M3_TOLERANCE = 0.25
"""The same with rows in e4m3: a number near the middle of two of its steps, which lie up to an
eighth apart, is rounded to either."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found; `why` is empty when it passed."""

    gate: Gate
    why: str = ""

    @property
    def ok(self) -> bool:
        """Whether the gate held."""
        return not self.why


class Verifier(Protocol):
    """Checks the state in place after a prefill of `ids`, whose bits hold up to row `clean`."""

    def check(self, ids: Ids, logits: torch.Tensor, gate: Gate, clean: int) -> Verdict:
        """Compare with what a cold prefill gives. `clean` counts under the greedy gate only."""


class WitnessVerifier:
    """Rows and sections say how they were computed: compare them with what should have been."""

    def __init__(self, engine: Witness) -> None:
        self._engine = engine

    def check(self, ids: Ids, logits: torch.Tensor, gate: Gate, clean: int) -> Verdict:
        """All rows, both sections and the logits, on every request."""
        return Verdict(gate, self._engine.differs(ids, logits, gate, clean))


class ColdVerifier:
    """Prefill the same prompt cold on a twin engine, and compare every bit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._twin: Engine | None = None

    def check(self, ids: Ids, logits: torch.Tensor, gate: Gate, clean: int) -> Verdict:
        """All of it under the bit gate; else rows up to `clean`, and the logits nearly."""
        size = len(ids)
        twin, expected = self._prefilled(ids)
        live, cold = self._engine.cache_state(), twin.cache_state()
        # A prompt's last rows went through a shorter product than the same rows of a longer one.
        rows = size if gate is Gate.BITS else clean // twin.grid * twin.grid
        for view, reference in zip(live.views, cold.views, strict=True):
            if not torch.equal(view.rows(0, rows), reference.rows(0, rows)):
                return Verdict(gate, f"rows of {view.name} differ")
        if gate is Gate.GREEDY:
            worst = float((logits.float() - expected.float()).abs().max())
            if worst <= tolerance(live, logits.dtype):
                return Verdict(gate)
            chosen = self._engine.choice_rows
            turned = chosen is not None and size > chosen and logits.dtype is torch.bfloat16
            why = f"; {CHOICE}" if turned and math.isfinite(worst) else ""
            return Verdict(gate, f"logits off by {worst:.3g}{why}")
        for section, reference in zip(live.sections, cold.sections, strict=True):
            if not torch.equal(section.tensor, reference.tensor):
                return Verdict(gate, f"section {section.name} differs")
        return Verdict(gate, "" if torch.equal(logits, expected) else "logits differ")

    def _prefilled(self, ids: Ids) -> tuple[Engine, torch.Tensor]:
        """The twin after a cold prefill of `ids`, and the logits of the last token."""
        twin, logits = self._cold(len(ids)), torch.empty(0)
        twin.look(ids, self._engine.pictures, 0)
        for start in range(0, len(ids), twin.grid):
            logits = twin.prefill(ids[start : start + twin.grid])
        return twin, logits

    def _cold(self, rows: int) -> Engine:
        """The twin, emptied, with room for `rows`; its window is another one on purpose."""
        if self._twin is None or self._twin.window < rows:
            self._twin = self._engine.twin(max(rows, 4_096) * 5 // 4)
            if self._twin.encoded is not None:
                # It reads every picture itself: what was kept of one is among what is checked.
                self._twin.encoded = Encoded(budget_bytes=0)
        self._twin.resume_at(0)
        return self._twin


def tolerance(state: CacheState, dtype: torch.dtype) -> float:
    """How far logits may be from a cold prefill's where blocks wrote some of the rows."""
    e4m3 = any(view.tensor.dtype is torch.float8_e4m3fn for view in state.views)
    return max(TOLERANCES[dtype], E4M3_TOLERANCE if e4m3 else 0.0)
