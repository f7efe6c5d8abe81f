"""A made-up architecture: two sections and three views of odd shapes, dtypes and token axes."""

from __future__ import annotations

import torch

from cache.types import CacheState, Cost, Ids, Manifest, Section, View
from engine.adapter import Engine


class MadeUp(Engine):
    """Integer arithmetic that depends on every earlier token, and on where a chunk began.

    Sections: `sum` int32 [5], a running mix of all tokens, and `last` uint8 [2, 2], the last
    token's bytes and the position's parity. Views: `wide` int16 [3, window, 2], `flat` uint8
    [window] and `deep` float64 [2, 1, 4, window], whose token axis comes last. A row also holds
    the first row of the call that wrote it, so that a resume inside a chunk differs, as it does in
    a real model.
    """

    vocab = 499

    def __init__(self, grid: int, window: int) -> None:
        super().__init__(grid, window)
        self._sum = torch.zeros(5, dtype=torch.int32)
        self._last = torch.zeros(2, 2, dtype=torch.uint8)
        self._wide = torch.zeros(3, window, 2, dtype=torch.int16)
        self._flat = torch.zeros(window, dtype=torch.uint8)
        self._deep = torch.zeros(2, 1, 4, window, dtype=torch.float64)
        self._held: list[int] = []

    def cache_state(self) -> CacheState:
        """Two sections, three views."""
        return CacheState(
            (Section("sum", self._sum), Section("last", self._last)),
            (View("wide", self._wide, 1), View("flat", self._flat, 0), View("deep", self._deep, 3)),
        )

    def cost(self) -> Cost:
        """Real bytes."""
        return Cost(row_bytes=12 + 1 + 64, anchor_bytes=24)

    def manifest(self) -> Manifest:
        """This file."""
        return Manifest(("tests/made_up.py",), {}, "none", self.grid, {})

    def twin(self, window: int) -> MadeUp:
        """An empty engine of the same kind."""
        return MadeUp(self.grid, window)

    def _chunk(self, ids: Ids) -> torch.Tensor:
        logits = self._rows(ids.tolist(), commit=True)
        return logits[-1]

    def _verify(self, ids: Ids, folded: int) -> torch.Tensor:
        if folded:
            self._land(folded)
        self._held = ids.tolist()
        # Another way of computing: what a verify block writes is never a chunk's bits.
        return self._rows(self._held, commit=False, way=7, start=self._settled + folded)

    def _land(self, count: int) -> None:
        for token in self._held[:count]:
            self._absorb(token, way=7)

    def _clear(self) -> None:
        self._sum.zero_()
        self._last.zero_()

    def _rebuild(self, length: int) -> None:
        self._held = []

    def _absorb(self, token: int, way: int) -> None:
        mixed = (int(self._sum.sum()) * 31 + token * 7 + way + int(self._last.sum())) % 65_521
        self._sum = torch.roll(self._sum, 1)
        self._sum[0] = mixed
        self._last = torch.tensor(
            [[token % 256, token // 256], [mixed % 2, way]], dtype=torch.uint8
        )

    def _rows(
        self, ids: list[int], *, commit: bool, way: int = 0, start: int | None = None
    ) -> torch.Tensor:
        first = self._settled if start is None else start
        saved = self._sum.clone(), self._last.clone()
        logits = torch.zeros(len(ids), self.vocab)
        for at, token in enumerate(ids):
            self._absorb(token, way)
            position, mixed = first + at, int(self._sum[0])
            self._wide[:, position] = torch.tensor([mixed % 1_000, first], dtype=torch.int16)
            self._flat[position] = token % 251
            self._deep[..., position] = mixed / 3.0
            logits[at, mixed % self.vocab] = 1.0
        if not commit:
            self._sum, self._last = saved
        return logits
