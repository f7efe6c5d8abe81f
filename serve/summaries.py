"""Summaries: compactions served as their conversation's next turn, and written while nobody asks"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from cache.journal import CacheEvent, TurnRow
from cache.types import GOES_ON
from engine.chat.gallery import Gallery
from engine.decode import Rule
from engine.prompt import Prompt
from engine.sampling import Greedy, Sampled, Sampling
from serve.asked import Asked
from serve.box_lock import BoxLock, gpu_is_used
from serve.chat.deltas import whole
from serve.chat.writer import Writer
from serve.choice import DRAFTS, Choice
from serve.compaction import CompactionConfig, Continued, Miss, continuation
from serve.house import House
from serve.order import Order, Rewrite
from serve.prepare import SOURCE as PREPARED
from serve.prepare import Preparer, Told
from serve.record_parts import CompactionParts, parts_of
from serve.wish import Wish

NAME = "compaction"
"""In the journal."""

Choose = Callable[[Continued], Choice]
"""What writes the answer to a continuation, and what reads it."""


@dataclass(frozen=True, slots=True)
class Instead:
    """What is served in place of a compaction's own prompt."""

    prompt: Prompt
    source: str
    """`prepared` when the answer is there already."""


class Summaries:
    """What the desk knows of compactions. All but `rewrite` is called on the engine's thread."""

    def __init__(self, house: House, gallery: Gallery, lock: BoxLock | None = None) -> None:
        """With a lock nothing is written ahead while another process holds it."""
        self._house = house
        self._gallery = gallery
        self._preparer = Preparer(
            house.box, house.dialect, self._config, _rule, gallery.kept, lock, gpu_is_used
        )

    @property
    def _config(self) -> CompactionConfig:
        """The settings in force."""
        section = self._house.settings.compaction
        return CompactionConfig(
            section.mode, section.prepare, section.idle_s, section.tokens_min, section.tail
        )

    # a request

    def rewrite(self, asked: Asked, wish: Wish, choose: Choose) -> Rewrite | None:
        """What to do when a request's turn comes; None for one that is no compaction."""
        parts = self._parts(asked)
        if parts is None:
            return None
        how = _how(asked, wish)
        return lambda order: self._continue(order, parts, choose, how)

    def instead(self, asked: Asked, wish: Wish, sent: Prompt) -> Instead | None:
        """What would be served in place of a request's prompt, None for that. Changes nothing."""
        parts = self._parts(asked)
        found = self._found(parts, sent) if parts is not None else None
        if not isinstance(found, Continued):
            return None
        prompt, how = found.prompt, _how(asked, wish)
        room = min(prompt.answer_max, self._house.engine.window - len(prompt.ids))
        ready = self._preparer.find(found, how, room) if how is not None else None
        return Instead(prompt, PREPARED if ready is not None else found.source)

    def _parts(self, asked: Asked) -> CompactionParts | None:
        """The parts of a compaction that may be continued."""
        if asked.who.kind != NAME or self._house.settings.compaction.mode != "continue":
            return None
        return parts_of(asked.messages) if asked.session is not None else None

    def _found(self, parts: CompactionParts, sent: Prompt) -> Continued | Miss:
        """The continuation, if the record is of what the caches hold."""
        house, tail = self._house, self._config.tail
        return continuation(house.box, house.dialect, sent, parts, self._gallery.kept, tail=tail)

    def _continue(
        self, order: Order, parts: CompactionParts, choose: Choose, how: Hashable | None
    ) -> bool:
        """Put the continuation in the order; whether there is one."""
        sent = order.prompt
        found = self._found(parts, sent)
        if isinstance(found, Miss):
            self._note("miss", sent.session, len(sent.ids), found.why)
            return False
        choice = choose(found)
        if how is not None:
            told = Told(parts, how, sent.answer_max, found.whole)
            self._preparer.heard(sent.client, told)
            ready = self._preparer.find(found, how, choice.limit)
            if ready is not None:
                order.known, order.source = ready.tokens, PREPARED
                self._preparer.used(ready)
        order.source = order.source or found.source
        order.prompt = replace(found.prompt, sent=len(sent.ids), via=found.source)
        order.rule, order.voice = choice.rule, choice.voice
        order.limit, order.scored = choice.limit, choice.scored
        self._note(order.source, sent.session, len(found.prompt.ids), "")
        return True

    def ended(self, row: TurnRow, order: Order) -> None:
        """A turn is over."""
        if row.finish == "cancelled":
            return
        if row.kind in GOES_ON:
            self._preparer.served(row.client, row.session)
        if order.source is not None:
            writer = Writer(self._house.dialect, new_id=lambda: "", inside=False)
            text = whole([*writer.wrote(order.answer), *writer.end()]).content
            self._preparer.summarised(row.session, text)

    # while nobody asks

    def step(self, rested_s: float) -> bool:
        """Write a chunk or a block of a summary; whether there was anything to do."""
        self._preparer.config = self._config
        return self._preparer.step(rested_s)

    def stop(self) -> None:
        """Somebody wants the engine: it is as it was."""
        self._preparer.stop()

    def _note(self, event: str, session: str | None, tokens: int, why: str) -> None:
        house = self._house
        note = CacheEvent(NAME, event, session, tokens, why=why)
        house.journal.note(note, house.clock.wall_s(), house.jobs)


def _how(asked: Asked, wish: Wish) -> Hashable | None:
    """All that decides a summary's tokens beside the prompt; None when it is not written ahead."""
    if not wish.penalties.none or wish.stop or wish.logprobs is not None:
        return None
    # A seed that the server drew says nothing of what the client wants.
    sampling = wish.sampling if asked.seeded else replace(wish.sampling, seed=0)
    return "greedy" if wish.greedy else sampling


def _rule(how: Hashable) -> Rule:
    """The rule of a summary that nobody has asked for yet, as its request will have it."""
    return Sampled(how, DRAFTS) if isinstance(how, Sampling) else Greedy(DRAFTS)
