"""Forced decoding: the sampler is the recording, so that any model leaves the recorded night."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from cache.types import Ids
from engine.adapter import Engine


class Forced:
    """A decode rule whose tokens are an output as recorded, and whose accepted drafts are too.

    Each round proposes the next recorded tokens as far as that round accepts, then wrong ones. How
    many a round accepts comes from the trace, else from a seed, never from the model: every model
    leaves the same blocks. Past the output's end the rule goes on with tokens of its own, because a
    real block does not stop at an end token either: the engine may end up ahead of what counts.
    """

    def __init__(
        self,
        output: Ids,
        *,
        seed: str,
        vocab: int,
        drafts: int,
        accepted: float,
        accepts: Sequence[int] = (),
    ) -> None:
        self._random = random.Random(seed)
        past = [self._random.randrange(vocab) for _ in range(drafts + 1)]
        self._script: list[int] = [*output.tolist(), *past]
        self._vocab = vocab
        self._drafts = drafts
        self._chance = accepted
        self._accepts = accepts
        self._at = 0
        self._round = 0
        self._right = 0

    def first(self, logits: torch.Tensor) -> int:
        """The output's first token."""
        return self._script[0]

    def drafts(self, engine: Engine, token: int) -> list[int]:
        """The recorded tokens that this round will accept, then wrong guesses."""
        if self._round < len(self._accepts):
            right = min(self._accepts[self._round], self._drafts)
        else:
            right = 0
            while right < self._drafts and self._random.random() < self._chance:
                right += 1
        self._round += 1
        # The token after the accepted ones must be in the script as well.
        self._right = right = min(right, len(self._script) - 2 - self._at)
        start = self._at + 1
        wrong = [
            (token + 1) % self._vocab
            for token in self._script[start + right : start + self._drafts]
        ]
        wrong += [0] * (self._drafts - right - len(wrong))
        return self._script[start : start + right] + wrong

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        """What the recording says; the logits are not looked at."""
        accepted = min(self._right, len(drafts))
        self._at += accepted + 1
        return accepted, self._script[self._at]
