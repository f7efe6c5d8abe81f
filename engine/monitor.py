"""A reasoning budget: past it, a hidden phrase and the end of the thinking are written.

The monitor stands between decode and the request's own rule, greedy, sampled or forced, and is a
rule itself, so that decode and the turn need not know of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from cache.account import Answer
from cache.types import Ids
from engine.adapter import Engine
from engine.decode import Rule


@dataclass(frozen=True, slots=True)
class Budget:
    """What a client allows, and what is written when it is used up."""

    thinking_max: int
    """Tokens the model may think; 0 closes the thinking at once."""
    end_id: int
    """The token that ends the thinking. The client sees it, whoever wrote it."""
    phrase: tuple[int, ...] = ()
    """Written before it when the budget is used up; the client never sees these tokens."""

    after: tuple[int, ...] = ()
    """Written behind it: what the chat format has between a thought and a text. The client's copy
    has it too, whether it is sent or not."""

    def __post_init__(self) -> None:
        assert self.thinking_max >= 0 and self.end_id not in self.phrase


class Monitor:
    """A decode rule for one answer that begins inside the thinking.

    Tokens are the wrapped rule's until the budget is used up with the thinking still open. Then the
    phrase and the end token follow, proposed as drafts and accepted whatever the logits say, and
    the wrapped rule goes on after them, from the logits that they led to. It is never asked for a
    token that is then thrown away: a rule that counts its tokens, or draws them, stays in step.
    """

    def __init__(self, rule: Rule, budget: Budget) -> None:
        self._rule = rule
        self._budget = budget
        self._begun = False
        """Whether the wrapped rule has given its first token."""
        self._open = True
        self._thought = 0
        self._written = 0
        self._forced: list[int] = []
        """Still to be written, whatever the rule says."""
        self._forced_at: int | None = None
        """Tokens of the answer before the phrase."""

    # a decode rule

    def begin(self, ids: Ids) -> None:
        """The rule reads it."""
        self._rule.begin(ids)

    @property
    def key(self) -> Hashable | None:
        """The rule's own and the budget; None when the rule has none."""
        own = self._rule.key
        return None if own is None else (own, self._budget)

    def first(self, logits: torch.Tensor) -> int:
        """The rule's first token, or the phrase's when nothing may be thought."""
        self._note([])
        if self._forced:
            return self._take(1)[0]
        return self._noted(0, self._rule_first(logits), [])[1]

    def drafts(self, engine: Engine, token: int) -> list[int]:
        """What must follow, or as many of the rule's guesses as the budget has room for."""
        if self._forced:
            return list(self._forced)
        if not self._begun:
            return []
        guesses = self._rule.drafts(engine, token)
        # The token after the accepted guesses counts as well.
        return guesses[: self._most() - 1] if self._open else guesses

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        """All of what must follow; else what the rule says."""
        if self._forced:
            # A window that is nearly full has no room for all of them in one block.
            taken = self._take(len(drafts))
            assert taken == list(drafts), "these drafts are not the ones proposed"
            if self._forced:
                return len(drafts), self._take(1)[0]
            return len(drafts), self._noted(0, self._rule_next(logits[len(drafts) :]), [])[1]
        if not self._begun:
            return self._noted(0, self._rule_first(logits), drafts)
        return self._noted(*self._rule.judge(logits, drafts), drafts)

    # what it says of an answer

    def read(self, answer: Sequence[int]) -> Answer:
        """How much of the answer so far is thinking, and which of its tokens are hidden.

        The answer may be shorter than what this rule gave: a limit or a stop cut it, perhaps in the
        middle of the phrase.
        """
        size, end_id = len(answer), self._budget.end_id
        thinking = answer.index(end_id) + 1 if end_id in answer else size
        return Answer(thinking, self.hidden(size))

    def hidden(self, size: int) -> tuple[tuple[int, int], ...]:
        """Which of the answer's first `size` tokens are the phrase: (start, length)."""
        at = self._forced_at
        length = 0 if at is None else min(len(self._budget.phrase), size - at)
        return ((at, length),) if at is not None and length > 0 else ()

    # steps

    def _rule_first(self, logits: torch.Tensor) -> int:
        self._begun = True
        return self._rule.first(logits.reshape(-1))

    def _rule_next(self, logits: torch.Tensor) -> int:
        """The rule's token from one position's logits, shape (1, vocab)."""
        return self._rule.judge(logits, [])[1] if self._begun else self._rule_first(logits)

    def _most(self) -> int:
        """Tokens the rule may give before the budget is used up."""
        return self._budget.thinking_max - self._thought

    def _take(self, count: int) -> list[int]:
        """The next of the tokens that must follow."""
        taken, self._forced = self._forced[:count], self._forced[count:]
        self._written += count
        if not self._forced:
            self._open = False
        return taken

    def _noted(self, accepted: int, token: int, drafts: Sequence[int]) -> tuple[int, int]:
        """Count what the rule gave, and pass it on."""
        self._note([*drafts[:accepted], token])
        return accepted, token

    def _note(self, tokens: Sequence[int]) -> None:
        self._written += len(tokens)
        if not self._open:
            return
        if self._budget.end_id in tokens:
            self._open = False
            return
        self._thought += len(tokens)
        if self._thought >= self._budget.thinking_max:
            budget = self._budget
            self._forced = [*budget.phrase, budget.end_id, *budget.after]
            self._forced_at = self._written
