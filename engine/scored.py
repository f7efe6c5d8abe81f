"""Log probabilities of the tokens a rule gives, and of what the model had beside them"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from cache.types import Ids
from engine.adapter import Engine
from engine.decode import Rule


@dataclass(frozen=True, slots=True)
class Score:
    """How likely the model had a token of the answer."""

    token: int
    logprob: float
    """Natural logarithm of its probability, before temperature, penalties and biases."""
    top: tuple[tuple[int, float], ...] = ()
    """(token, logprob) of the likeliest, in order; the token itself need not be one of them."""


class Scored:
    """A decode rule that only watches: the outermost one, so that it sees what the model gave.

    Tokens that were written whatever the logits said have a score as well, the model's own.
    `scores` may run past the answer: a limit or a stop cut the block it ends in.
    """

    key: Hashable | None = None
    """An answer that is remembered brings no logits, and the caller wants their scores."""

    def __init__(self, rule: Rule, top: int) -> None:
        """`top` is how many alternatives are kept for each token."""
        assert top >= 0
        self._rule = rule
        self._top = top
        self.scores: list[Score] = []
        """Of the answer's tokens, in order."""

    def begin(self, ids: Ids) -> None:
        """The rule reads it."""
        self._rule.begin(ids)

    def first(self, logits: torch.Tensor) -> int:
        """The rule's first token."""
        token = self._rule.first(logits)
        self._score(logits, token)
        return token

    def drafts(self, engine: Engine, token: int) -> list[int]:
        """The rule's guesses."""
        return self._rule.drafts(engine, token)

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        """What the rule says; row i is what the model had for the block's i-th token."""
        accepted, following = self._rule.judge(logits, drafts)
        for row, token in zip(logits, (*drafts[:accepted], following), strict=False):
            self._score(row, token)
        return accepted, following

    def _score(self, row: torch.Tensor, token: int) -> None:
        # A row by itself, so that the size of the block it came in changes no bit.
        logprobs = torch.log_softmax(row.reshape(-1).float(), dim=-1)
        best = logprobs.topk(min(self._top, len(logprobs)))
        top = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        self.scores.append(Score(token, float(logprobs[token]), tuple(top)))
