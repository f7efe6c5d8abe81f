"""The tokens of a raw recording as they were: rendered again when they are asked for"""

from __future__ import annotations

from collections.abc import Sequence

from cache.types import Ids, Valued
from engine.chat.gallery import Gallery
from engine.chat.rendered import Answer, Rendered
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from engine.pictures.picture import Picture
from replay.readers.exchange import Exchange
from replay.source import Marks


class LiveTokens:
    """Prompts and outputs of recorded exchanges; number n is the n-th of them."""

    def __init__(self, exchanges: Sequence[Exchange], template: Template, gallery: Gallery) -> None:
        """`gallery` is the one that read their images."""
        self._exchanges = exchanges
        self._template = template
        self._gallery = gallery
        self._prompt: tuple[int, Rendered] | None = None
        self._output: tuple[int, Answer] | None = None

    @property
    def pieces(self) -> Tokenizer:
        """The tokenizer knows."""
        return self._template.tokenizer

    def prompt(self, number: int) -> Ids:
        """Ids of a request's prompt, shape (prompt tokens,)."""
        return self._rendered(number).ids

    def output(self, number: int) -> Ids:
        """Ids of a request's output, shape (output tokens,)."""
        return self._answered(number).ids

    def prompt_values(self, number: int) -> tuple[Valued, ...]:
        """Spans of the prompt that stand for values."""
        return self._rendered(number).valued

    def output_values(self, number: int) -> tuple[Valued, ...]:
        """The same of the output, counted from its start."""
        return self._answered(number).valued

    def pictures(self, number: int) -> tuple[Picture, ...]:
        """Pictures of the prompt, in the order of their rows, with their patches."""
        return tuple(self._gallery.picture(image) for _, image in self._rendered(number).shown)

    def marks(self, number: int) -> Marks:
        """Where in the prompt its last user message and the first answer start."""
        rendered = self._rendered(number)
        return Marks(rendered.last_user, rendered.first_answer)

    def _rendered(self, number: int) -> Rendered:
        """The last one is kept: a request asks several times."""
        if self._prompt is None or self._prompt[0] != number:
            exchange = self._exchanges[number]
            rendered = self._template.render(exchange.messages, exchange.tools)
            self._prompt = number, rendered
        return self._prompt[1]

    def _answered(self, number: int) -> Answer:
        if self._output is None or self._output[0] != number:
            exchange = self._exchanges[number]
            answer = self._template.answer_ids(exchange.reply, exchange.messages)
            self._output = number, answer
        return self._output[1]
