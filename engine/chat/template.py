"""The chat template: messages, tools and recorded answers to tokens, with content kept apart"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, NamedTuple

import jinja2
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cache.types import Ids, Valued
from engine.chat.arguments import value_text
from engine.chat.messages import Call, Message, Reply, Role, Say, Show
from engine.chat.omitted import within
from engine.chat.rendered import Answer, Rendered, Shown, moved
from engine.chat.tokenizer import Tokenizer
from engine.pictures.leave_out import Cap

CACHE_BYTES = 256 << 20
"""Default bound on the texts and ids of encoded messages that are kept."""

_SLOT = re.compile("\0([0-9]+)\0")
_SHOWN = "<|vision_start|>{}<|vision_end|>"
"""Template text around an image's rows."""


@dataclass(frozen=True, slots=True)
class Part:
    """A mark in the template: what the tokens after it belong to."""

    name: str


class Template:
    """Renders requests to token ids with the bundled template.

    The template's text and each piece of content are encoded apart: special tokens come from the
    template only, and equal messages give equal tokens wherever they stand. Encoded messages are
    kept (least recently used first out), so that a conversation that grew costs its new part.
    """

    def __init__(
        self, tokenizer: Tokenizer, cache_bytes: int = CACHE_BYTES, cap: Cap | None = None
    ) -> None:
        """A prompt has no more images than `cap` allows: the oldest are left out."""
        self.tokenizer = tokenizer
        self.cap = cap or Cap()
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_slot
        )
        source = files("engine.chat").joinpath("template.jinja").read_text(encoding="utf-8")
        self._template = sandbox.from_string(source)
        self._literals: dict[str, Ids] = {}
        self._kept: OrderedDict[_Key, _Block] = OrderedDict()
        self.kept_bytes = 0
        self.cache_bytes = cache_bytes
        self._end = tokenizer.ids["<|im_end|>"]
        self._think_end = tokenizer.ids["</think>"]
        self._call = tokenizer.ids["<tool_call>"], tokenizer.ids["</tool_call>"]

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Rendered:
        """The prompt of a request: tools, the client's system text, the messages, and the start
        of the answer. A last message of the assistant is continued instead of answered.
        """
        messages = within(messages, self.cap)
        start = 0
        while start < len(messages) and messages[start].role == "system":
            start += 1
        body = list(messages[start:])
        opening = last_open(messages)
        if body and body[-1].role == "assistant":
            body.pop()
        body.append(opening)
        blocks: list[_Block] = []
        if tools or start:
            schemas = tuple(value_text(tool) for tool in tools)
            blocks.append(self._block(_Key(None, heads=tuple(messages[:start]), tools=schemas)))
        for before, message, after in zip([None, *body], body, [*body[1:], None], strict=False):
            first = message.role == "tool" and (before is None or before.role != "tool")
            last = message.role == "tool" and (after is None or after.role != "tool")
            blocks.append(self._block(_Key(message, first, last)))
        roles = [message.role for message in body[:-1]]
        opened = len(self._block(_Key(Message("assistant", (), open=True))).ids)
        last_user, first_answer = _starts(blocks, roles, opened)
        return replace(_joined(blocks), last_user=last_user, first_answer=first_answer)

    def answer_ids(self, reply: Reply, messages: Sequence[Message] = ()) -> Answer:
        """The tokens an engine would have written for a recorded reply to `messages`.

        They follow the prompt's last token: what the history shows after it when the reply comes
        back unchanged. A reply that ended does so with <|im_end|>, a cut one with what it had.
        `messages` matter only when they end in a message of the assistant.

        Two things can't come back as the same tokens, because a client joins what was written in
        pieces: content or reasoning on both sides of something else, and a word or a run of
        blanks that the cut of an answer went through.
        """
        opening = last_open(messages)
        written = as_written(reply.message)
        whole = replace(written, pieces=(*opening.pieces, *written.pieces))
        before = self._block(_Key(opening)).ids
        block = self._block(_Key(whole))
        ids = block.ids
        assert np.array_equal(ids[: len(before)], before), "an answer changed its prompt"
        ids = ids[len(before) :]
        valued = tuple(span for span in moved(block.valued, -len(before)) if span.start >= 0)
        if reply.ended:  # the line end after the end token is the next prompt's
            ids = ids[: 1 + int(np.flatnonzero(ids == self._end)[-1])]
        return Answer(ids, self._thinking(written, ids), valued)

    def _thinking(self, written: Message, ids: Ids) -> int | None:
        """Where the thought that begins an answer ends."""
        first = written.pieces[0] if written.pieces else None
        if not isinstance(first, Say) or first.kind != "reasoning":
            return None
        ends = np.flatnonzero(ids == self._think_end)
        return 1 + int(ends[0]) if len(ends) else len(ids)

    def _block(self, key: _Key) -> _Block:
        """A block's ids, kept for the next request that has it."""
        block = self._kept.get(key)
        if block is not None:
            self._kept.move_to_end(key)
            return block
        block = self._kept[key] = self._encode(key)
        self.kept_bytes += block.cost_bytes
        while self.kept_bytes > self.cache_bytes:
            self.kept_bytes -= self._kept.popitem(last=False)[1].cost_bytes
        return block

    def _encode(self, key: _Key) -> _Block:
        """Render one block and encode its literals and its content apart."""
        slots: list[str | Part | Show] = []
        text = self._template.render(
            message=key.message,
            heads=key.heads,
            tools=key.tools,
            first_result=key.first_result,
            last_result=key.last_result,
            part=Part,
            slots=slots,
        )
        pieces: list[Ids] = [np.empty(0, np.int32)]
        sizes = dict.fromkeys(("system", "tools", "history", "images"), 0)
        shown: list[Shown] = []
        name = "history"
        for number, piece in enumerate(_SLOT.split(text)):
            slot = slots[int(piece)] if number % 2 else None
            if isinstance(slot, Part):
                name = slot.name
                continue
            if isinstance(slot, Show):
                shown.append(Shown(sum(map(len, pieces)), slot))
            ids = self._ids(piece if slot is None else slot, literal=slot is None)
            pieces.append(ids)
            sizes["images" if isinstance(slot, Show) else name] += len(ids)
        kept = [slot.url if isinstance(slot, Show) else slot for slot in slots]
        characters = len(text) + sum(len(slot) for slot in kept if isinstance(slot, str))
        ids = np.concatenate(pieces)
        return _Block(
            ids,
            sizes["system"],
            sizes["tools"],
            2 * characters + ids.nbytes,
            self._calls(key.message, ids),
            sizes["images"],
            tuple(shown),
        )

    def _ids(self, slot: str | Show, *, literal: bool) -> Ids:
        """Ids of template text, of content, or of an image."""
        if isinstance(slot, Show):
            return slot.picture.ids
        return self._literal(slot) if literal else self.tokenizer.encode(slot, specials=False)

    def _calls(self, message: Message | None, ids: Ids) -> tuple[Valued, ...]:
        """The spans of a message's closed tool calls, in order."""
        if message is None or not message.calls:
            return ()
        starts, ends = (np.flatnonzero(ids == token).tolist() for token in self._call)
        spans = zip(starts, ends, message.calls, strict=False)
        return tuple(
            Valued(start, end + 1, call.value)
            for start, end, call in spans
            if call.value is not None
        )

    def _literal(self, text: str) -> Ids:
        """Ids of a stretch of template text; there are only so many of them."""
        ids = self._literals.get(text)
        if ids is None:
            ids = self._literals[text] = self.tokenizer.encode(text, specials=True)
        return ids


class _Key(NamedTuple):
    """What a block's tokens depend on; without a message it is the head of a prompt."""

    message: Message | None
    first_result: bool = False
    last_result: bool = False
    heads: tuple[Message, ...] = ()
    tools: tuple[str, ...] = ()


class _Block(NamedTuple):
    """An encoded block; what is neither system nor tools nor an image is history."""

    ids: Ids
    system: int
    tools: int
    cost_bytes: int
    """What keeping it costs, within a small factor."""
    valued: tuple[Valued, ...] = ()
    images: int = 0
    shown: tuple[Shown, ...] = ()


@jinja2.pass_context
def _slot(context: jinja2.runtime.Context, value: Any) -> str:
    """What an expression prints: the numbers of slots, so that content is never in the text."""
    slots: list[str | Part | Show] = context["slots"]
    values = value if isinstance(value, tuple) else (value,)
    out = []
    for value in values:
        slot = f"\0{len(slots)}\0"
        slots.append(value)
        out.append(_SHOWN.format(slot) if isinstance(value, Show) else slot)
    return "".join(out)


def _joined(blocks: Sequence[_Block]) -> Rendered:
    """Blocks one after another."""
    ids = np.concatenate([block.ids for block in blocks])
    starts = np.cumsum([0, *(len(block.ids) for block in blocks)]).tolist()
    placed = list(zip(starts, blocks, strict=False))
    system, tools = sum(b.system for b in blocks), sum(b.tools for b in blocks)
    images = sum(b.images for b in blocks)
    return Rendered(
        ids,
        system,
        tools,
        len(ids) - system - tools - images,
        tuple(span for start, block in placed for span in moved(block.valued, start)),
        images,
        tuple(
            Shown(start + shown.start, shown.image)
            for start, block in placed
            for shown in block.shown
        ),
    )


def _starts(blocks: Sequence[_Block], roles: Sequence[Role], opened: int) -> tuple[int, int]:
    """Where the last message of a user and the first answer start; 0 without one.

    `roles` are those of the messages before the last block, which is what the engine goes on with;
    the template opens an answer with so many tokens.
    """
    starts = np.cumsum([0, *(len(block.ids) for block in blocks)]).tolist()
    placed = list(zip(starts[-2 - len(roles) :], roles, strict=False))
    users = [start for start, role in placed if role == "user"]
    answers = [start + opened for start, role in placed if role == "assistant"]
    return max(users, default=0), min(answers, default=0)


def as_written(message: Message) -> Message:
    """A message whose calls are the model's own text."""
    pieces = (
        replace(piece, as_written=True) if isinstance(piece, Call) else piece
        for piece in message.pieces
    )
    return replace(message, pieces=tuple(pieces))


def last_open(messages: Sequence[Message]) -> Message:
    """The message an answer is written into: a last one of the assistant, else an empty one."""
    if messages and messages[-1].role == "assistant":
        return replace(messages[-1], open=True)
    return Message("assistant", (), open=True)
