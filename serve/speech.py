"""Speech: what is heard of one choice as pieces for its client, whatever shape they are sent in"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from cache.journal import TurnRow
from engine.chat.rendered import Rendered
from engine.chat.tokenizer import Tokenizer
from engine.scored import Score
from serve.answers import finish_of
from serve.chat.deltas import Delta
from serve.errors import failed, no_room, stopping
from serve.heard import Ended, Heard, NoRoom, Reading, Said
from serve.hearing import Hearing
from serve.logprobs import seen
from serve.usage import usage_of


@dataclass(frozen=True, slots=True)
class Piece:
    """For the client: pieces of the answer, scores of their tokens, or a comment alone."""

    deltas: tuple[Delta, ...] = ()
    scores: tuple[Score, ...] = ()
    comment: str = ""


@dataclass(slots=True)
class Speech:
    """One choice: iterate over its pieces, then ask how it ended."""

    hearing: Hearing
    rendered: Rendered
    tokenizer: Tokenizer
    keepalive_s: float
    row: TurnRow | None = None
    finish: str = ""
    _scored: int = 0
    _size: int = 0
    _silent_s: float = 0.0
    _status: str = "waiting for the engine"
    _first: list[Heard] = field(default_factory=list)

    async def begins(self) -> None:
        """Wait for the first thing that is heard, but not much longer than a silence may be.

        Raises ApiError for an answer that never begins: then nothing was sent yet.
        """
        heard = await self.hearing.next(self.keepalive_s)
        if heard is not None:
            self._first.append(heard)
            self._check(heard)

    async def pieces(self) -> AsyncIterator[Piece]:
        """All that is said, to its end; raises ApiError when it has none."""
        clock = self.hearing.clock
        self._silent_s = clock.mono_s()
        while self.row is None:
            heard = self._first.pop() if self._first else await self.hearing.next(self.keepalive_s)
            self._check(heard)
            piece = self._piece(heard)
            now_s = clock.mono_s()
            if piece is None and now_s - self._silent_s >= self.keepalive_s:
                piece = Piece(comment=self._status)
            if piece is not None:
                self._silent_s = now_s
                yield piece

    def _check(self, heard: Heard | None) -> None:
        """Raise ApiError for what ends a choice that has no end of its own."""
        match heard:
            case NoRoom(why, retry_after_s):
                raise no_room(f"There is no memory to read this prompt now: {why}.", retry_after_s)
            case Ended(row) if row.finish == "cancelled":
                raise stopping()
            case None | Reading() | Said() | Ended():
                return
            case _:
                raise stopping() if heard.stops else failed()

    def _piece(self, heard: Heard | None) -> Piece | None:
        match heard:
            case Reading(done, size):
                self._status = f"read {done:,} of {size:,} tokens"
            case Said(deltas, tokens):
                self._size += tokens
                self._status = f"wrote {self._size:,} tokens"
                scores = self._scores()
                if deltas or scores:
                    return Piece(deltas, scores)
            case Ended(row):
                self.row = row
                voice = self.hearing.order.voice
                deltas = tuple(voice.end())
                self.finish = finish_of(row.finish == "stop", voice.writer.calls)
                scores = self._scores()
                if deltas or scores:
                    return Piece(deltas, scores)
        return None

    def _scores(self) -> tuple[Score, ...]:
        """Scores of the tokens of text that were said since the last call."""
        order = self.hearing.order
        if order.scored is None:
            return ()
        start, self._scored = self._scored, self._size
        answer = order.answer[: self._size]
        thought = order.voice.read(answer).thinking
        found = seen(
            order.scored.scores, order.voice.hidden(answer), max(start, thought), self._size
        )
        structure = self.tokenizer.ids.values()
        return tuple(score for score in found if score.token not in structure)

    def usage(self) -> dict[str, Any]:
        """What the choice used, once it has ended."""
        assert self.row is not None
        order, voice = self.hearing.order, self.hearing.order.voice
        hidden = sum(n for _, n in voice.hidden(order.answer))
        written = self.row.output - hidden
        # What is hidden stands in the thought that it closes.
        thought = max(0, voice.writer.reasoning_tokens - hidden)
        return usage_of(self.rendered, self.row, written, thought, order.source)
