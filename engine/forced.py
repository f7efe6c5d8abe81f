"""Forced decoding: the sampler is the recording, so that any model leaves the recorded night."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Sequence

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

    key: Hashable | None = None
    """The recording answers: the same prompt may have got another answer the next time."""

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
        draw = random.Random(seed)
        past = [draw.randrange(vocab) for _ in range(drafts + 1)]
        self._script: list[int] = [*output.tolist(), *past]
        self._vocab = vocab
        self._drafts = drafts
        self._at = 0
        self._right = 0
        self._rights = self._rounds(draw, accepted, accepts)

    def _rounds(
        self, draw: random.Random, accepted: float, accepts: Sequence[int]
    ) -> Iterator[int]:
        """How many drafts each round accepts: as recorded, then as the seed says."""
        for count in accepts:
            yield min(count, self._drafts)
        while True:
            right = 0
            while right < self._drafts and draw.random() < accepted:
                right += 1
            yield right

    def begin(self, ids: Ids) -> None:
        """The recording knows the answer."""

    def first(self, logits: torch.Tensor) -> int:
        """The output's first token."""
        return self._script[0]

    def drafts(self, engine: Engine, token: int) -> list[int]:
        """The recorded tokens that this round will accept, then wrong guesses."""
        start = self._at + 1
        proposed = self._script[start : start + self._drafts]
        # The token after the accepted ones must be in the script as well.
        self._right = min(next(self._rights), len(self._script) - 1 - start)
        for at in range(self._right, len(proposed)):
            proposed[at] = (proposed[at] + 1) % self._vocab
        return proposed

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        """What the recording says; the logits are not looked at."""
        accepted = min(self._right, len(drafts))
        self._at += accepted + 1
        return accepted, self._script[self._at]
