"""One choice of an answer: which rule writes it, who reads it, and what is ordered of the desk"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cache.suffix_store import SuffixStore
from cache.types import Ids
from engine.chat.dialect import Dialect, inside_thought, open_call
from engine.decode import Rule
from engine.forced import Forced
from engine.lookup import Lookup
from engine.monitor import Budget, Monitor
from engine.opening import Opening
from engine.penalties import Penalised
from engine.sampling import Greedy, Sampled
from engine.scored import Scored
from serve.chat.plain import Plain
from serve.chat.schemas import schemas_of
from serve.chat.writer import Writer
from serve.voice import Speaking
from serve.wish import Wish

DRAFTS = 3
"""Guesses of a verify block."""
ACCEPTED = 0.6
"""Of a script's tokens, the share that a round takes as accepted drafts; a script has no model."""


@dataclass(frozen=True, slots=True)
class Given:
    """An answer that a script gives."""

    ids: Ids
    round_s: float
    """Seconds from one round to the next."""
    seed: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What writes one answer and what reads it."""

    rule: Rule
    voice: Speaking
    scored: Scored | None
    limit: int


class Choosing:
    """Makes choices for requests; knows the model's format and what the server was started with."""

    def __init__(
        self,
        dialect: Dialect,
        vocab: int,
        suffixes: SuffixStore | None,
        phrase: Callable[[], str],
        ends_after: int | None = None,
    ) -> None:
        """`phrase` closes a thought that is too long; `ends_after` so many tokens every answer is
        ended for a model that never does."""
        self._dialect, self._vocab, self._ends_after = dialect, vocab, ends_after
        self._suffixes, self._phrase = suffixes, phrase

    def make(
        self,
        wish: Wish,
        number: int,
        prompt: Ids,
        tools: Sequence[Mapping[str, Any]],
        room: int,
        new_id: Callable[[], str],
        given: Given | None = None,
    ) -> Choice:
        """Choice `number` of a request, whose answer may have `room` tokens."""
        inside = inside_thought(self._dialect, prompt)
        limit = room
        rule: Rule
        monitor = None
        if given is not None:
            limit = min(room, len(given.ids))
            rule = Forced(
                given.ids, seed=given.seed, vocab=self._vocab, drafts=DRAFTS, accepted=ACCEPTED
            )
        else:
            rule = self._written(wish, number)
            end_id = self._dialect.think_end
            if inside and wish.thinking_max is not None and end_id is not None:
                phrase = tuple(self._encoded(self._phrase()))
                # An opening begins with the gap itself.
                gap = () if wish.must_call else self._encoded(self._dialect.gaps.content)
                budget = Budget(wish.thinking_max, end_id, phrase, tuple(gap))
                rule = monitor = Monitor(rule, budget)
            rule = _penalised(self._ended(self._opened(wish, rule, tools, inside)), wish)
        scored = Scored(rule, wish.logprobs) if wish.logprobs is not None else None
        writer = Writer(
            self._dialect,
            tools=schemas_of(tools),
            stop=wish.stop,
            one_call=not wish.parallel_tool_calls,
            parse_calls=bool(tools) and wish.tool_choice != "none",
            new_id=new_id,
            inside=inside,
        )
        stops = bool(wish.stop) or not wish.parallel_tool_calls
        return Choice(scored or rule, Speaking(writer, monitor, stops=stops), scored, limit)

    def text(self, wish: Wish, number: int, room: int) -> Choice:
        """Choice `number` of a text that goes on: all that is written is text."""
        rule = _penalised(self._ended(self._written(wish, number)), wish)
        scored = Scored(rule, wish.logprobs) if wish.logprobs is not None else None
        voice = Speaking(Plain(self._dialect.tokenizer, wish.stop), None, stops=bool(wish.stop))
        return Choice(scored or rule, voice, scored, room)

    def _written(self, wish: Wish, number: int) -> Rule:
        """The request's own rule: greedy or sampled."""
        lookup = Lookup(self._suffixes)
        sampling = wish.sampling_of(number)
        return Greedy(DRAFTS, lookup) if wish.greedy else Sampled(sampling, DRAFTS, lookup)

    def _ended(self, rule: Rule) -> Rule:
        """An answer is a thought that ends with the end token, as far as a budget is concerned."""
        if self._ends_after is None:
            return rule
        ids = self._dialect.tokenizer.ids
        end_id = ids.get("<|im_end|>", min(self._dialect.stop_ids))
        return Monitor(rule, Budget(self._ends_after, end_id))

    def _opened(self, wish: Wish, rule: Rule, tools: Sequence[Any], inside: bool) -> Rule:
        """A call is what the answer begins with, where the request wants one."""
        if not wish.must_call:
            return rule
        names = [wish.tool_choice] if wish.tool_named else sorted(schemas_of(tools))
        gap = self._encoded(self._dialect.gaps.content) if inside else []
        runs = [[*gap, *open_call(self._dialect, name).tolist()] for name in names]
        return Opening(rule, self._dialect.think_end if inside else None, runs)

    def _encoded(self, text: str) -> list[int]:
        return self._dialect.tokenizer.encode(text, specials=False).tolist()


def _penalised(rule: Rule, wish: Wish) -> Rule:
    """Penalties count every token of the answer, whoever wrote it: they wrap all but the scores."""
    return rule if wish.penalties.none else Penalised(rule, wish.penalties)
