"""Penalties of what was said already, and biases of single tokens, whatever is drafted"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cache.types import Ids
from engine.adapter import Engine
from engine.decode import Rule

BIAS_MAX = 100.0


@dataclass(frozen=True, slots=True)
class Penalties:
    """What a request adds to the logits before a token is chosen."""

    presence: float = 0.0
    """Taken from each token that the answer has already."""
    frequency: float = 0.0
    """Taken from a token as often as the answer has it."""
    repetition: float = 1.0
    """Divides positive logits, and multiplies others, of tokens that prompt or answer have."""
    bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit), ascending."""

    def __post_init__(self) -> None:
        assert self.repetition > 0.0
        assert all(token >= 0 and abs(by) <= BIAS_MAX for token, by in self.bias)

    @property
    def none(self) -> bool:
        """Whether it changes nothing."""
        return self == Penalties()


class Penalised:
    """A decode rule that shows the wrapped one other logits than the model's.

    A verify block's row is changed by the tokens that stand before it, the drafts among them: it is
    looked at only when they were accepted. So what is drafted changes no token. Every token of the
    answer counts, also one that a monitor or an opening wrote: this rule stands outside of those.
    Repetition comes first, on the model's own logits, then what is taken off, then the bias.
    """

    def __init__(self, rule: Rule, penalties: Penalties) -> None:
        self._rule = rule
        self._penalties = penalties
        self._prompt: Ids = np.empty(0, np.int32)
        self._history: _History | None = None

    # a decode rule

    @property
    def key(self) -> Hashable | None:
        """The rule's own and the penalties; None when the rule has none."""
        own = self._rule.key
        return None if own is None else (own, self._penalties)

    def begin(self, ids: Ids) -> None:
        """The rule reads it; a picture's rows are no tokens that could be repeated."""
        self._rule.begin(ids)
        self._prompt = np.unique(ids[ids >= 0])
        self._history = None

    def first(self, logits: torch.Tensor) -> int:
        """The rule's first token, from what the prompt leaves of the logits."""
        row = logits.reshape(-1)
        self._history = history = _History(self._prompt, row, self._penalties)
        token = self._rule.first(history.changed(row))
        history.add(token)
        return token

    def drafts(self, engine: Engine, token: int) -> list[int]:
        """The rule's guesses."""
        return self._rule.drafts(engine, token)

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        """What the rule says of rows that are each changed by what stands before it."""
        history = self._history
        assert history is not None, "a block before the first token"
        rows = []
        for at, row in enumerate(logits):
            rows.append(history.changed(row))
            if at < len(drafts):
                history.add(drafts[at])
        history.drop(drafts)
        accepted, following = self._rule.judge(torch.stack(rows), drafts)
        for token in (*drafts[:accepted], following):
            history.add(token)
        return accepted, following


class _History:
    """What stands before a token, as tensors beside the logits."""

    def __init__(self, prompt: Ids, row: torch.Tensor, penalties: Penalties) -> None:
        self._penalties = penalties
        self._counts = torch.zeros(len(row), dtype=torch.float32, device=row.device)
        self._read = torch.zeros(len(row), dtype=torch.bool, device=row.device)
        self._read[torch.from_numpy(prompt).long().to(row.device)] = True
        bias = penalties.bias
        self._biased = torch.tensor([token for token, _ in bias], device=row.device).long()
        self._bias = torch.tensor([by for _, by in bias], dtype=torch.float32, device=row.device)

    def add(self, token: int) -> None:
        """The answer goes on with it."""
        self._counts[token] += 1.0

    def drop(self, tokens: Sequence[int]) -> None:
        """They were only guesses."""
        for token in tokens:
            self._counts[token] -= 1.0

    def changed(self, row: torch.Tensor) -> torch.Tensor:
        """The logits of the next token, float32, shape (vocab,)."""
        wanted, row = self._penalties, row.float()
        if wanted.repetition != 1.0:
            seen = self._read | (self._counts > 0)
            scaled = torch.where(row > 0, row / wanted.repetition, row * wanted.repetition)
            row = torch.where(seen, scaled, row)
        if wanted.frequency or wanted.presence:
            off = self._counts * wanted.frequency + (self._counts > 0) * wanted.presence
            row = row - off
        return row.index_add(0, self._biased, self._bias) if len(self._biased) else row
