"""One answer's tokens to what a client is sent, as they come"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cache.account import Answer
from cache.types import Valued
from engine.chat.arguments import canonical
from engine.chat.dialect import CALL, CALL_END, THINK, THINK_END, Dialect
from serve.chat.calls import CallText, call_text
from serve.chat.deltas import CallArguments, CallBegins, Content, Delta, Reasoning, joined
from serve.chat.marks import Mark, Marked
from serve.chat.seeker import Seeker
from serve.chat.tail import Tail

State = Literal["thought", "content", "call"]


@dataclass(slots=True)
class _Open:
    """The call that is being written."""

    start: int
    reader: CallText | None = None
    held: str = ""
    """What it begins with, while that does not say in which form it is."""
    index: int | None = None
    arguments: list[str] = field(default_factory=list)


class Writer:
    """Reads one answer: thoughts, text and calls, with no more held back than may be structure.

    The line ends that the template writes between the parts belong to none of them, so that what a
    client sends back is rendered to the tokens that are in the rows. Nothing a model writes raises:
    a call that breaks off has its arguments as far as they go, and what is no call is text.

    Stop strings are looked for in the text alone, and what is in a thought or a call is not cut by
    them: so does OpenAI, whose thoughts nobody sees. (vLLM and llama.cpp search all that the model
    writes, where a stop string inside an edited file ends the edit.)
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        stop: Sequence[str] = (),
        parse_calls: bool = True,
        one_call: bool = False,
        new_id: Callable[[], str],
        inside: bool | None = None,
    ) -> None:
        """`tools` are parameter schemas by name (schemas.py); `new_id` names a call. `inside` says
        whether this answer begins in a thought, where that is not the dialect's habit.
        """
        marks = dialect.tokenizer.ids
        self._gaps = dialect.gaps
        self._enders = {name for name, id in marks.items() if id in dialect.stop_ids}
        self._call_ids = CALL in marks and CALL_END in marks
        self._tools = tools or {}
        self._parse_calls, self._one_call = parse_calls, one_call
        self._new_id = new_id
        self._marked = Marked(dialect.tokenizer)
        self._stops = Seeker(stop)
        self._tail = Tail(max(map(len, (self._gaps.thought, self._gaps.call, self._gaps.again))))
        self._lead = ""
        """Line ends that the template writes next."""
        thinks = dialect.thinks if inside is None else inside
        self._state: State = "thought" if thinks else "content"
        self._out: list[Delta] = []
        self._call: _Open | None = None
        self._hidden: list[tuple[int, int]] = []
        self._muted = False
        self._valued: list[Valued] = []
        self._thinking: int | None = None
        """Tokens of the thought that the answer begins with, once it has ended."""
        self._thought_from, self._thought_said = 0, False
        self._thought_tokens = 0
        self.size = 0
        """Tokens that were read."""
        self.calls = 0
        """Calls that have begun."""
        self.stopped_at: int | None = None
        """Tokens up to and with the one that completed a stop string, or the `one_call` that is
        wanted; later ones are not read."""

    def wrote(self, ids: Iterable[int], hidden: Iterable[tuple[int, int]] = ()) -> list[Delta]:
        """The next tokens of the answer; `hidden` are (start, length) spans of the answer that the
        client is not sent, at the latest with their tokens. Marks count in them too.
        """
        self._hidden += hidden
        for id in ids:
            if self.stopped_at is not None:
                break
            self._token(int(id))
        return self._taken()

    def end(self) -> list[Delta]:
        """Nothing more comes: what was held back."""
        if self.stopped_at is None:
            self._pieces(self._marked.end())
            if self._call is not None:
                self._call_ends(closed=False)
            self._flush(0)
        return self._taken()

    def answer(self, size: int) -> Answer:
        """What the caches are told of the answer's first `size` tokens."""
        thinking = self._thinking
        if thinking is None:
            first = self._state == "thought" and self._thought_from == 0
            thinking = size if first and self._thought_said else 0
        hidden = ((start, min(length, size - start)) for start, length in sorted(self._hidden))
        return Answer(
            min(thinking, size),
            tuple(span for span in hidden if span[1] > 0),
            tuple(span for span in self._valued if span.stop <= size),
        )

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thoughts that say anything, with the marks that end them."""
        current = self._state == "thought" and self._thought_said
        return self._thought_tokens + (self.size - self._thought_from if current else 0)

    def _taken(self) -> list[Delta]:
        out, self._out = joined(self._out), []
        return out

    def _token(self, id: int) -> None:
        muted = any(start <= self.size < start + length for start, length in self._hidden)
        if muted != self._muted:
            self._pieces(self._marked.end())
            self._muted = muted
        self.size += 1
        self._pieces(self._marked.feed(id))

    def _pieces(self, pieces: Iterable[str | Mark]) -> None:
        for piece in pieces:
            if self.stopped_at is not None:
                return
            if isinstance(piece, str):
                self._text(piece)
            elif self._parse_calls or piece.text not in (CALL, CALL_END):
                self._mark(piece.text)
            else:
                self._text(piece.text)

    def _text(self, text: str) -> None:
        while text and self._lead:
            if text[0] != self._lead[0]:
                self._lead = ""
                break
            text, self._lead = text[1:], self._lead[1:]
        if not text:
            return
        if self._muted:
            self._thought_said = self._thought_said or bool(text.strip())
            if self._state != "call":  # line ends before what is not seen are no layout
                self._say(self._tail.end())
        elif self._state == "call":
            self._call_goes_on(text)
        elif self._state == "thought":
            self._say(self._tail.feed(text))
        else:
            before, stop, _ = self._stops.feed(text)
            self._say(self._tail.feed(before))
            if stop is not None:
                self._say(self._tail.end())
                self.stopped_at = self.size

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._state == "thought":
            self._thought_said = True
        self._out.append(Reasoning(text) if self._state == "thought" else Content(text))

    def _flush(self, gap: int) -> None:
        """A text or a thought ends; its last `gap` line ends are the template's."""
        self._say(self._tail.feed(self._stops.end()))
        self._say(self._tail.end(gap))

    def _mark(self, mark: str) -> None:
        if self._state == "call":
            self._mark_in_call(mark)
        elif mark == CALL:
            self._flush(len(self._gaps.call))
            if self._state == "thought":  # a call that is meant ends the thought it was made in
                self._thought_ends(self.size - 1)
            self._call_begins()
        elif mark == THINK_END and self._state == "thought":
            self._flush(len(self._gaps.thought))
            self._thought_ends(self.size)
            self._state, self._lead = "content", self._gaps.content
        elif mark == THINK and self._state == "content":
            self._flush(len(self._gaps.again))
            self._state, self._lead = "thought", self._gaps.thought
            self._thought_from, self._thought_said = self.size - 1, False

    def _thought_ends(self, size: int) -> None:
        tokens = size - self._thought_from if self._thought_said else 0
        if self._thought_from == 0:
            self._thinking = tokens
        self._thought_tokens += tokens

    def _mark_in_call(self, mark: str) -> None:
        """Inside a call only its own marks are marks: a file may be about the others."""
        if mark == CALL_END:
            self._call_ends(closed=True)
        elif mark == CALL:
            self._call_ends(closed=False)
            self._lead = ""
            self._call_begins()
        elif mark not in self._enders and not self._muted:
            self._call_goes_on(mark)

    def _call_begins(self) -> None:
        self._call = _Open(self.size - 1)
        self._state, self._lead = "call", ""

    def _call_goes_on(self, text: str) -> None:
        call = self._call
        assert call is not None
        if call.reader is None:
            call.held += text
            call.reader = call_text(call.held, self._tools)
            text = call.held
        if call.reader is None:
            return
        self._call_said(call, call.reader.feed(text))
        if call.reader.stray:
            self._stray(call.reader.rest)

    def _call_said(self, call: _Open, text: str) -> None:
        assert call.reader is not None
        if call.reader.name is None:
            return
        if call.index is None:
            call.index, self.calls = self.calls, self.calls + 1
            self._out.append(CallBegins(call.index, self._new_id(), call.reader.name))
        if text:
            call.arguments.append(text)
            self._out.append(CallArguments(call.index, text))

    def _call_ends(self, *, closed: bool) -> None:
        call, self._call = self._call, None
        self._state, self._lead = "content", self._gaps.content
        if call is None or call.reader is None:
            return
        self._call_said(call, call.reader.end(closed=closed))
        if call.reader.stray:
            self._stray(call.reader.rest)
            return
        if closed and self._one_call:
            self.stopped_at = self.size
        if closed and self._call_ids:
            arguments = canonical("".join(call.arguments))
            if arguments is not None:
                value = (call.reader.name or "", arguments)
                self._valued.append(Valued(call.start, self.size, value))

    def _stray(self, text: str) -> None:
        """What stood between the marks of a call is none: it is said as text."""
        self._call = None
        self._state, self._lead = "content", ""
        self._text(text)
