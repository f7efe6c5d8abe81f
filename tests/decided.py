"""What the tests of decode rules share: answers of small models, and one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from support import engine, tokens

from cache.types import Ids
from engine.adapter import Engine
from engine.decode import Rule, decode

MODEL = "hybrid-float32"
PROMPT = tokens(100, seed=3)


def prefilled(on: Engine, prompt: Ids = PROMPT) -> torch.Tensor:
    """The logits after a prompt."""
    logits = torch.empty(0)
    for start in range(0, len(prompt), on.grid):
        logits = on.prefill(prompt[start : start + on.grid])
    return logits


def decoded(
    rule: Rule,
    limit: int,
    stops: frozenset[int] = frozenset(),
    *,
    model: str = MODEL,
    prompt: Ids = PROMPT,
    window: int = 256,
) -> list[int]:
    """An answer to a prompt."""
    on = engine(model, window=window)
    logits = prefilled(on, prompt)
    rule.begin(prompt)
    return [token for new in decode(on, logits, rule, limit, stops) for token in new]


class OneByOne:
    """The logits after an answer, whoever wrote that, forwarded a row at a time."""

    def __init__(self, model: str = MODEL, prompt: Ids = PROMPT) -> None:
        self._engine = engine(model, window=256)
        self._logits = prefilled(self._engine, prompt)
        self._forwarded = 0

    def __call__(self, answer: Sequence[int]) -> torch.Tensor:
        for token in answer[self._forwarded :]:
            self._logits = self._engine.verify(np.array([token], np.int32))[-1]
            self._engine.accept(1)
        self._forwarded = len(answer)
        return self._logits


Pick = Callable[[torch.Tensor], int]
"""Chooses a token from a row of logits."""


def best(row: torch.Tensor) -> int:
    """The greedy choice."""
    return int(row.argmax())


class Guesses:
    """A rule around a greedy or sampled one whose drafts are mostly right: it knows the answer."""

    def __init__(self, rule: Rule, answer: Sequence[int], drafts: int, wrong: int) -> None:
        """Each `wrong`-th guess is another token than the answer's; 0 for none."""
        self._rule = rule
        self._answer = list(answer)
        self._drafts = drafts
        self._wrong = wrong
        self.written = 0
        self.accepted = 0
        self.refused = 0
        self.key = rule.key

    def begin(self, ids: Ids) -> None:
        self._rule.begin(ids)

    def first(self, logits: torch.Tensor) -> int:
        self.written += 1
        return self._rule.first(logits)

    def drafts(self, engine: Engine, token: int) -> list[int]:
        at = self.written
        guesses = self._answer[at : at + self._drafts]
        return [
            (guess + 1) % 499 if self._wrong and (at + index) % self._wrong == 0 else guess
            for index, guess in enumerate(guesses)
        ]

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        accepted, following = self._rule.judge(logits, drafts)
        self.written += accepted + 1
        self.accepted += accepted
        self.refused += accepted < len(drafts)
        return accepted, following
