"""One answer's tokens as text alone, for completions: no thought, no calls, only stop strings"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cache.account import Answer
from engine.chat.tokenizer import Tokenizer
from serve.chat.deltas import Content, Delta, joined
from serve.chat.detokenizer import Detokenizer
from serve.chat.seeker import Seeker


class Plain:
    """What a Writer is for chat. Tokens that stand for structure are no text."""

    calls = 0
    reasoning_tokens = 0

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._structure = frozenset(tokenizer.ids.values())
        self._text = Detokenizer(tokenizer)
        self._stops = Seeker(stop)
        self.size = 0
        """Tokens that were read."""
        self.stopped_at: int | None = None
        """Tokens up to and with the one that completed a stop string."""

    def wrote(self, ids: Iterable[int], hidden: Iterable[tuple[int, int]] = ()) -> list[Delta]:
        """The answer goes on with these tokens."""
        out: list[Delta] = []
        for token in ids:
            self.size += 1
            if self.stopped_at is not None or token in self._structure:
                continue
            before, needle, _ = self._stops.feed(self._text.text(token))
            out.append(Content(before))
            if needle is not None:
                self.stopped_at = self.size
        return joined(out)

    def end(self) -> list[Delta]:
        """The answer is over: what was held back."""
        if self.stopped_at is not None:
            return []
        before, needle, _ = self._stops.feed(self._text.end())
        if needle is not None:
            self.stopped_at = self.size
            return joined([Content(before)])
        return joined([Content(before + self._stops.end())])

    def answer(self, size: int) -> Answer:
        """All of it is answer."""
        return Answer()
