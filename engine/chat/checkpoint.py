"""A checkpoint directory's own chat format: its tokenizer, its chat template, its stop tokens"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from cache.types import Ids, Valued
from engine.bad import BadInput
from engine.chat.checkpoint_files import Files, read_files
from engine.chat.dialect import CALL, CALL_END, THINK, THINK_END, CallForm, Gaps, inside_thought
from engine.chat.dicts import dicts
from engine.chat.messages import Call, ChatError, Message, Say
from engine.chat.omitted import within
from engine.chat.placed import PAD, Encoder, Placed
from engine.chat.rendered import Rendered
from engine.chat.sandbox import compiled
from engine.chat.sealed import MARK, START, STOP, Seals
from engine.chat.template import CACHE_BYTES
from engine.pictures.leave_out import Cap

_GOES_ON = f"{MARK}t0{MARK}"
"""Where a message that is continued ends."""
_RESPONSE = "<tool_response>"
_WORD = "zxqzx"
"""A text that no template writes by itself."""


def load_dialect(
    directory: Path | str,
    *,
    call_form: CallForm | None = None,
    cap: Cap | None = None,
    now: Callable[[], datetime] = datetime.now,
) -> Checkpoint:
    """The chat format of a checkpoint directory; raises BadInput in one line.

    The template's text says how calls are written, unless `call_form` does. `now` is the clock of
    templates that write the date.
    """
    files = read_files(Path(directory))
    try:
        template = compiled(files.template, now, MARK)
    except jinja2.TemplateSyntaxError as error:
        what = f"the chat template is broken: {error.message}"
        raise BadInput(files.template_file, error.lineno, what) from error
    form: CallForm = "xml" if "<function=" in files.template else "json"
    try:
        return Checkpoint(files, template, call_form or form, cap or Cap())
    except ChatError as error:
        raise BadInput(files.template_file, None, str(error)) from error


@dataclass(frozen=True, slots=True)
class _Openings:
    """How the template begins a message of the user, and an answer."""

    user: str = ""
    answer: str = ""


class Checkpoint:
    """The chat format that a published model came with, as engine/chat/dialect.py wants it.

    Ordinary requests give the very ids of transformers' apply_chat_template. What stands in
    messages, tools and calls never becomes a special token, other than there.
    """

    def __init__(
        self, files: Files, template: jinja2.Template, call_form: CallForm, cap: Cap
    ) -> None:
        """Raises ChatError when the template can't render a question."""
        self.tokenizer = files.tokenizer
        self.stop_ids, self.defaults = files.stop_ids, files.defaults
        self.call_form = call_form
        self.think_end = self.tokenizer.ids.get(THINK_END)
        self._template, self._named, self.cap = template, files.named, cap
        self._seals = Seals(list(self.tokenizer.ids))
        self._encoder = Encoder(self.tokenizer, self._seals, CACHE_BYTES)
        question = self._text([_user()], (), True)
        if _WORD not in question:
            raise ChatError("the chat template does not show what the user says")
        self.thinks = inside_thought(self, self._encoder.encode(question).ids)
        self._openings = self._probe_openings(question)
        self.gaps = self._probe_gaps()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = True,
    ) -> Rendered:
        """The prompt of a request; raises ChatError with what the template says against it.

        A last message of the assistant is continued. The tools count apart from the system text,
        whichever comes first.
        """
        messages = within(messages, self.cap)
        if messages and messages[-1].role == "assistant" and not messages[-1].pieces:
            messages = messages[:-1]
        text = self._text(messages, tools, thinking)
        placed = self._encoder.encode(text, [image for m in messages for image in m.images])
        ids = placed.ids
        system, tool_rows = self._head(text, placed, bool(tools))
        images = sum(len(shown.image.picture.ids) for shown in placed.shown)
        last_user, first_answer = self._starts(text, placed, messages)
        return Rendered(
            ids,
            system,
            tool_rows,
            len(ids) - system - tool_rows - images,
            self._calls(ids, system + tool_rows, messages),
            images,
            tuple(placed.shown),
            last_user,
            first_answer,
        )

    def _text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], thinking: bool
    ) -> str:
        """The rendered text, in which content is sealed."""
        goes_on = bool(messages) and messages[-1].role == "assistant"
        try:
            given = dicts(messages, self._seals, images=PAD in self.tokenizer.ids)
            if goes_on and not messages[-1].calls:
                _append(given[-1])
            text = self._template.render(
                messages=given,
                tools=self._seals.value(list(tools)) or None,
                documents=None,
                add_generation_prompt=not goes_on,
                enable_thinking=thinking,
                **self._named,
            )
        except ChatError:
            raise
        except Exception as error:
            # Whatever a template does with what it does not expect; arguments nested too deep.
            what = " ".join(str(error).split()) or type(error).__name__
            raise ChatError(f"the model's chat template: {what}") from error
        if not goes_on:
            return text
        end = CALL_END if messages[-1].calls else _GOES_ON
        before, found, _ = text.rpartition(end)
        if not found:
            raise ChatError("the model's chat template can't continue a message of this form")
        return before + (CALL_END if messages[-1].calls else "")

    def _head(self, text: str, placed: Placed, tools: bool) -> tuple[int, int]:
        """Tokens of the system text and of the tools, which both stand before the first message."""
        openings = (self._openings.user, self._openings.answer)
        firsts = [at for opening in openings if opening and (at := text.find(opening)) >= 0]
        stop = min(firsts, default=0)
        head = placed.token(stop)
        start = text.find(START, 0, stop)
        if not tools or start < 0:
            return (0, head) if tools else (head, 0)
        end = text.find(STOP, start)
        if start > stop - end:  # the longer part is the tools'
            begins = text.rfind(MARK, 0, start - 1) if text[start - 1] == MARK else start - 1
            size = placed.token(begins)
            return head - size, size
        size = placed.token(end + len(STOP) + 1)
        return size, head - size

    def _starts(self, text: str, placed: Placed, messages: Sequence[Message]) -> tuple[int, int]:
        """Where the last message of a user and the first answer start; 0 without one."""
        opened, last_user, first_answer = self._openings, 0, 0
        if opened.user and any(message.role == "user" for message in messages):
            at = text.rfind(opened.user)
            while at > 0 and text.startswith(_RESPONSE, at + len(opened.user)):
                at = text.rfind(opened.user, 0, at)
            last_user = placed.token(max(at, 0))
        if opened.answer and any(message.role == "assistant" for message in messages[:-1]):
            at = text.find(opened.answer) + len(opened.answer)
            thought = THINK + self.gaps.thought
            first_answer = placed.token(at + len(thought) * text.startswith(thought, at))
        return last_user, first_answer

    def _calls(self, ids: Ids, head: int, messages: Sequence[Message]) -> tuple[Valued, ...]:
        """The spans of the tool calls, where the template shows every one of them."""
        calls = [call for message in messages for call in message.calls]
        marks = (self.tokenizer.ids.get(mark, -1) for mark in (CALL, CALL_END))
        starts, ends = ((head + np.flatnonzero(ids[head:] == mark)).tolist() for mark in marks)
        if not len(starts) == len(ends) == len(calls):
            return ()
        return tuple(
            Valued(start, end + 1, call.value)
            for start, end, call in zip(starts, ends, calls, strict=True)
            if call.value is not None and start < end
        )

    def _probe_openings(self, question: str) -> _Openings:
        """What stands before a user's text, and what an answer's prompt ends with."""
        before, found, after = question.partition(_WORD)
        if not found:
            return _Openings()
        return _Openings(self._last_of(before), self._last_of(after).split(THINK)[0])

    def _last_of(self, text: str) -> str:
        """The last special tokens of a text, from one that a word follows on."""
        out, word = "", False
        for piece, special in reversed(list(self._seals.pieces(text))):
            out = piece + out
            word = word or (not special and any(map(str.isalpha, piece)))
            if special and word:
                return out
        return ""

    def _probe_gaps(self) -> Gaps:
        """The line ends that the template writes between the parts of an answer."""
        said = Say("content", _WORD)
        usual = Gaps()
        called = self._probe(said, Call(_WORD, "{}"))
        call = _gap(rf"{_WORD}(\n*){re.escape(CALL)}", called, usual.call)
        thought = self._probe(Say("reasoning", _WORD), said)
        end = re.escape(THINK_END)
        return Gaps(
            _gap(rf"{_WORD}(\n*){end}", thought, usual.thought),
            _gap(rf"{end}(\n*){_WORD}", thought, usual.content),
            call,
            usual.again,
        )

    def _probe(self, *pieces: Say | Call) -> str:
        """An answer to a question as the template writes it; empty when it doesn't. It comes last:
        templates leave the thoughts of earlier answers out."""
        try:
            return self._text([_user(), Message("assistant", pieces)], (), True)
        except ChatError:
            return ""


def _user() -> Message:
    return Message("user", (Say("content", _WORD),))


def _gap(pattern: str, text: str, usual: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else usual


def _append(message: dict[str, Any]) -> None:
    """Mark where a message that is continued ends."""
    content = message["content"]
    if isinstance(content, list):
        content.append({"type": "text", "text": _GOES_ON})
    elif content or "thinking" not in message:
        message["content"] = content + _GOES_ON
    else:
        for name in ("thinking", "reasoning_content"):
            message[name] += _GOES_ON
