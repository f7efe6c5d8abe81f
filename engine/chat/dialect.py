"""A model's chat format: how a prompt is written, and by which marks its answer is read"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from cache.types import Ids
from engine.chat.messages import Message
from engine.chat.rendered import Rendered
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from engine.pictures.leave_out import Cap

CallForm = Literal["xml", "json"]
"""`<function=NAME>` with `<parameter=KEY>` blocks, or `{"name": ..., "arguments": {...}}`."""

THINK, THINK_END, CALL, CALL_END = "<think>", "</think>", "<tool_call>", "</tool_call>"
"""The marks of an answer. A vocabulary may lack the token of one; then it is ordinary text."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Line ends that the template writes between the parts of an answer, and which are no text."""

    thought: str = "\n"
    """After `<think>`, and before `</think>`."""
    content: str = "\n\n"
    """Between `</think>` or `</tool_call>` and a text."""
    call: str = "\n\n"
    """Between a text and `<tool_call>`."""
    again: str = "\n"
    """Between a text and a further `<think>`."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Sampling that a checkpoint asks for where a request says nothing; None is no wish."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


class Dialect(Protocol):
    """What the server needs to know of a model's chat format."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back; `tokenizer.ids` has the marks that are tokens."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""

    @property
    def think_end(self) -> int | None:
        """The token that ends a thought; None for a model that has none."""

    @property
    def call_form(self) -> CallForm:
        """How the model writes a tool call."""

    @property
    def thinks(self) -> bool:
        """Whether the prompt opens a thought, so that an answer begins inside it."""

    @property
    def gaps(self) -> Gaps:
        """What stands between the parts of an answer."""

    @property
    def defaults(self) -> Defaults:
        """The sampling that the model's files ask for."""

    cap: Cap
    """Images that a prompt may have; may be set."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = True,
    ) -> Rendered:
        """The prompt; raises ChatError. Without `thinking`, the answer begins behind the thought,
        where the format has a way to say so."""


class Bundled:
    """The format of the bundled template, whatever the model."""

    call_form: CallForm = "xml"
    thinks = True

    def __init__(self, template: Template) -> None:
        self.template = template
        self.tokenizer = template.tokenizer
        ids = self.tokenizer.ids
        self.stop_ids = frozenset({ids["<|im_end|>"], ids["<|endoftext|>"]})
        self.think_end: int | None = ids[THINK_END]
        self.gaps = Gaps()
        self.defaults = Defaults()

    @property
    def cap(self) -> Cap:
        """Images that a prompt may have."""
        return self.template.cap

    @cap.setter
    def cap(self, cap: Cap) -> None:
        self.template.cap = cap

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = True,
    ) -> Rendered:
        """The prompt; without `thinking` it ends behind an empty thought."""
        prompt = self.template.render(messages, tools)
        if thinking or not inside_thought(self, prompt.ids):
            return prompt
        closed = close_thought(self)
        ids = np.concatenate([prompt.ids, closed])
        return replace(prompt, ids=ids, history=prompt.history + len(closed))


def inside_thought(dialect: Dialect, prompt: Ids) -> bool:
    """Whether an answer to the prompt begins inside a thought: that is what a Writer is told."""
    marks = dialect.tokenizer.ids
    opened, closed = (np.flatnonzero(prompt == marks.get(mark, -1)) for mark in (THINK, THINK_END))
    if not len(opened):
        return False
    return not len(closed) or bool(opened[-1] > closed[-1])


def close_thought(dialect: Dialect) -> Ids:
    """The tokens with which a thought is ended for the model, and its text begins."""
    text = f"{dialect.gaps.thought}{THINK_END}{dialect.gaps.content}"
    return dialect.tokenizer.encode(text, specials=True)


def open_call(dialect: Dialect, name: str) -> Ids:
    """The tokens of a call's beginning, up to where its arguments come."""
    encode = dialect.tokenizer.encode
    before, after = {"xml": ("<function=", ">\n"), "json": ('{"name": "', '", "arguments":')}[
        dialect.call_form
    ]
    parts = (f"{CALL}\n{before}", name, after)
    return np.concatenate([encode(p, specials=p is parts[0]) for p in parts])
