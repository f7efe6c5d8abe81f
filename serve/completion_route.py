"""POST /v1/completions: text that goes on, whole or as it is written"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from cache.types import Ids
from engine.chat.rendered import Rendered
from serve.answering import Answering, Usage
from serve.answers import TextChoice, TextFrames, text_answer
from serve.body import read_json
from serve.chat.deltas import whole
from serve.hearing import Hearing
from serve.logprobs import TextLogprobs
from serve.openapi import body_of
from serve.service import Service
from serve.speech import Piece
from serve.wire_completion import CompletionBody, Text
from serve.wish import Wish


def routes(service: Service) -> APIRouter:
    """The route, over one service."""
    router = APIRouter(tags=["completions"])

    @router.post("/v1/completions", openapi_extra=body_of(CompletionBody))
    async def completions(request: Request) -> Response:
        """Go on with a text, or with token ids."""
        defaults = service.defaults()
        body = CompletionBody.of(read_json(await request.body()))
        wish = body.wish(defaults)
        service.check_model(wish.model)
        return await Texts(service, wish, body.prompts(defaults.vocab)).answer(request)

    return router


class Texts(Answering[TextFrames]):
    """Every prompt's choices, one prompt after another."""

    def __init__(self, service: Service, wish: Wish, prompts: tuple[Text, ...]) -> None:
        super().__init__(service, wish, f"cmpl-{secrets.token_hex(12)}")
        self.prompts = len(prompts)
        self._prompts = prompts
        self._of: TextLogprobs | None = None
        """The logprobs of the choice that is streamed."""

    def _ids(self, number: int) -> Ids:
        """The prompt of a choice. Its text can't name structure; ids may."""
        text = self._prompts[number // self.wish.n]
        if isinstance(text, str):
            return self.service.house.dialect.tokenizer.encode(text, specials=False)
        return np.array(text, np.int32)

    def _echo(self, number: int) -> str:
        """The prompt in front of its answer, where that is wanted."""
        if not self.wish.echo:
            return ""
        return self.service.house.dialect.tokenizer.decode(self._ids(number))

    async def order(self, number: int) -> tuple[Hearing, Rendered]:
        """All of a text is history."""
        ids = self._ids(number)
        hearing = await self.service.order_text(ids, self.wish, number % self.wish.n)
        return hearing, Rendered(ids, 0, 0, len(ids))

    def choice(self, number: int, pieces: list[Piece], finish: str) -> TextChoice:
        """One text."""
        said = whole(delta for piece in pieces for delta in piece.deltas).content
        scores = [score for piece in pieces for score in piece.scores]
        logprobs = None
        if self.wish.logprobs is not None:
            logprobs = self._logprobs(number).of(scores)
        return TextChoice(self._echo(number) + said, finish, logprobs)

    def object(self, choices: list[Any], usage: Usage) -> dict[str, Any]:
        """The answer."""
        return text_answer(self.head, choices, usage)

    def shape(self) -> TextFrames:
        """Chunks of text."""
        return TextFrames(self.head, include_usage=self.wish.include_usage)

    def opening(self, frames: TextFrames, number: int) -> Iterator[bytes]:
        """The prompt, where it is wanted."""
        self._of = self._logprobs(number)
        if self.wish.echo:
            yield frames.said(number, self._echo(number))

    def said(self, frames: TextFrames, number: int, piece: Piece) -> Iterator[bytes]:
        """One frame a piece."""
        assert self._of is not None
        logprobs = self._of.of(piece.scores) if piece.scores else None
        text = whole(piece.deltas).content
        if text or logprobs is not None:
            yield frames.said(number, text, logprobs)

    def closing(self, frames: TextFrames, number: int, finish: str) -> bytes:
        """Why it ended."""
        return frames.finished(number, finish)

    def _logprobs(self, number: int) -> TextLogprobs:
        return TextLogprobs(self.service.bytes_of, len(self._echo(number)))
