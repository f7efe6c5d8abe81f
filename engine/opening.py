"""An opening: what an answer must begin with, once its thinking is over"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch

from cache.types import Ids
from engine.adapter import Engine
from engine.decode import Rule


class Opening:
    """A decode rule for an answer that opens with one of several runs of tokens.

    It waits until the wrapped rule, a monitor perhaps, gives `after_id`, the end of the thinking;
    without one it begins at once. From there the tokens follow whatever the logits say. Where the
    runs part, the wrapped rule chooses, of the tokens that go on with one of them. That is how a
    client makes an answer call a tool: one of those it has, or the one it names.

    As with a monitor, the wrapped rule is never asked for a token that is then thrown away.
    """

    def __init__(self, rule: Rule, after_id: int | None, runs: Sequence[Sequence[int]]) -> None:
        self._rule = rule
        self._after_id = after_id
        self._runs = tuple(sorted({tuple(run) for run in runs}))
        assert self._runs and all(self._runs), "an opening has tokens"
        pairs = zip(self._runs, self._runs[1:], strict=False)
        assert all(b[: len(a)] != a for a, b in pairs), "a run must not begin with another"
        self._waits = after_id is not None
        self._begun = False
        """Whether the wrapped rule has given its first token."""
        self._left = self._runs
        """The runs that the opening may still become."""
        self._at = 0
        """How many of its tokens are written."""

    # a decode rule

    @property
    def key(self) -> Hashable | None:
        """The rule's own and the opening; None when the rule has none."""
        own = self._rule.key
        return None if own is None else (own, "opening", self._after_id, self._runs)

    def begin(self, ids: Ids) -> None:
        """The rule reads it."""
        self._rule.begin(ids)

    def first(self, logits: torch.Tensor) -> int:
        """The rule's first token, or the opening's."""
        return self._next(logits.reshape(-1))

    def drafts(self, engine: Engine, token: int) -> list[int]:
        """What must follow, else the rule's guesses, as far as none ends the wait."""
        if not self._waits and not self._done:
            return self._certain()
        if not self._begun:
            return []
        guesses = self._rule.drafts(engine, token)
        if self._waits and self._after_id in guesses:
            # After it the rule is not asked; before it a block ends, perhaps with that very token.
            return guesses[: guesses.index(self._after_id)]
        return guesses

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        """All of what must follow; else what the rule says."""
        if self._waits:
            accepted, token = self._rule.judge(logits, drafts)
            self._waits = token != self._after_id
            return accepted, token
        if self._done and self._begun:
            return self._rule.judge(logits, drafts)
        # A window that is nearly full has no room for all of them in one block.
        assert self._certain()[: len(drafts)] == list(drafts), "these are not the drafts proposed"
        for token in drafts:
            self._write(token)
        return len(drafts), self._next(logits[len(drafts)])

    # steps

    @property
    def _done(self) -> bool:
        return self._at == len(self._left[0])

    def _certain(self) -> list[int]:
        """The opening's next tokens, as far as there is no choice."""
        shortest = min(self._left, key=len)
        at = self._at
        while at < len(shortest) and len({run[at] for run in self._left}) == 1:
            at += 1
        return list(shortest[self._at : at])

    def _write(self, token: int) -> None:
        self._left = tuple(run for run in self._left if run[self._at] == token)
        self._at += 1

    def _next(self, row: torch.Tensor) -> int:
        """The token of one position's logits, shape (vocab,)."""
        if self._waits:
            token = self._own(row)
            self._waits = token != self._after_id
            return token
        if self._done:
            return self._own(row)
        choices = sorted({run[self._at] for run in self._left})
        token = choices[0] if len(choices) == 1 else self._own(_only(row, choices))
        self._write(token)
        return token

    def _own(self, row: torch.Tensor) -> int:
        """The wrapped rule's token."""
        if self._begun:
            return self._rule.judge(row.reshape(1, -1), [])[1]
        self._begun = True
        return self._rule.first(row)


def _only(row: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """The logits with no token possible but these."""
    kept = torch.full_like(row, -math.inf)
    kept[tokens] = row[tokens]
    return kept
