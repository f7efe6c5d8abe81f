"""Decode by verify blocks: the rule proposes and judges, the engine keeps the commit pending."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from cache.types import Ids
from engine.adapter import Engine


class Rule(Protocol):
    """How the next tokens are chosen: greedy, sampled, or forced by a recording."""

    @property
    def key(self) -> Hashable | None:
        """What decides its tokens beside the logits; None when chance or a recording does too.

        Rules of equal keys write equal answers to equal prompts.
        """

    def begin(self, ids: Ids) -> None:
        """The prompt as it was served, before anything is asked; negative ids are pictures'."""

    def first(self, logits: torch.Tensor) -> int:
        """The token after the prompt, from its last position's logits (vocab,)."""

    def drafts(self, engine: Engine, token: int) -> list[int]:
        """Guesses of what follows `token`; may be empty."""

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        """(drafts accepted, the token after them), from the block's logits (1 + drafts, vocab)."""


def decode(
    engine: Engine, logits: torch.Tensor, rule: Rule, limit: int, stop_ids: frozenset[int]
) -> Iterator[list[int]]:
    """Yield the new tokens of each round, at most `limit` in all, a stop token being the last.

    The first round is the token the prefill gave. The last token yielded has usually not been
    forwarded; when a round is cut short by the limit or a stop, the engine is ahead of the tokens.
    """
    assert limit > 0
    token = rule.first(logits)
    emitted = 1
    yield [token]
    while emitted < limit and token not in stop_ids:
        room = engine.window - engine.length
        if room == 0:
            return
        drafts = rule.drafts(engine, token)[: room - 1]
        logits = engine.verify(np.array([token, *drafts], np.int32))
        accepted, following = rule.judge(logits, drafts)
        engine.accept(1 + accepted)
        new = [*drafts[:accepted], following][: limit - emitted]
        if stop_ids:
            stops = [at for at, candidate in enumerate(new) if candidate in stop_ids]
            new = new[: stops[0] + 1] if stops else new
        emitted += len(new)
        token = new[-1]
        yield new
