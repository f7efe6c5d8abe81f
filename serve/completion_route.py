"""POST /v1/completions: text that goes on, whole or as it is written"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from cache.types import Ids
from engine.chat.rendered import Rendered
from engine.scored import Score
from serve.answers import Head, TextChoice, TextFrames, comment, encoded, error_frame, text_answer
from serve.body import read_json
from serve.chat.deltas import whole
from serve.chat_route import CLIENT_LEFT
from serve.errors import ApiError
from serve.logprobs import TextLogprobs
from serve.openapi import body_of
from serve.service import Service
from serve.speech import Speech
from serve.stream import EventStream, unless_gone
from serve.usage import summed
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
        answer = Texts(service, body.prompts(defaults.vocab), wish)
        await answer.begin(0)
        if wish.stream:
            return EventStream(answer.frames())
        work = asyncio.ensure_future(answer.whole())
        if not await unless_gone(request, work, answer.leave):
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return Response(status_code=CLIENT_LEFT)
        return Response(work.result(), media_type="application/json")

    return router


@dataclass(slots=True)
class Texts:
    """One request's choices: every prompt's, one after another."""

    service: Service
    prompts: tuple[Text, ...]
    wish: Wish
    head: Head = field(init=False)
    _speech: Speech | None = None

    def __post_init__(self) -> None:
        created_s = int(self.service.house.clock.wall_s())
        id = f"cmpl-{secrets.token_hex(12)}"
        self.head = Head(id, created_s, self.service.about.model)

    @property
    def count(self) -> int:
        """Choices in all."""
        return len(self.prompts) * self.wish.n

    def _ids(self, number: int) -> Ids:
        """The prompt of a choice. Its text can't name structure; ids may."""
        text = self.prompts[number // self.wish.n]
        if isinstance(text, str):
            return self.service.house.dialect.tokenizer.encode(text, specials=False)
        return np.array(text, np.int32)

    def _echo(self, number: int) -> str:
        """The prompt in front of its answer, where that is wanted."""
        return self.service.house.dialect.tokenizer.decode(self._ids(number))

    async def begin(self, number: int) -> Speech:
        """Order a choice, and wait until it begins; raises ApiError."""
        house, ids = self.service.house, self._ids(number)
        hearing = await self.service.order_text(ids, self.wish, number % self.wish.n)
        rendered = Rendered(ids, 0, 0, len(ids))
        keepalive_s = house.settings.serving.keepalive_s
        speech = self._speech = Speech(hearing, rendered, house.dialect.tokenizer, keepalive_s)
        begun = False
        try:
            await speech.begins()
            begun = True
        finally:
            if not begun:
                self.leave()
        return speech

    def leave(self) -> None:
        """The client is gone."""
        if self._speech is not None:
            self._speech.hearing.leave()

    def _logprobs(self, number: int) -> TextLogprobs:
        offset = len(self._echo(number)) if self.wish.echo else 0
        return TextLogprobs(self.service.bytes_of, offset)

    async def whole(self) -> bytes:
        """All choices in one object; raises ApiError."""
        choices, usages = [], []
        try:
            for number in range(self.count):
                speech = self._speech if not number else await self.begin(number)
                assert speech is not None
                text = self._echo(number) if self.wish.echo else ""
                scores: list[Score] = []
                async for piece in speech.pieces():
                    text += whole(piece.deltas).content
                    scores += piece.scores
                wanted = self.wish.logprobs is not None
                logprobs = self._logprobs(number).of(scores) if wanted else None
                choices.append(TextChoice(text, speech.finish, logprobs))
                usages.append(speech.usage())
        finally:
            self.leave()
        return encoded(text_answer(self.head, choices, summed(usages, self.wish.n)))

    async def frames(self) -> AsyncIterator[bytes]:
        """All choices as the frames of a stream."""
        frames = TextFrames(self.head, include_usage=self.wish.include_usage)
        usages = []
        try:
            for number in range(self.count):
                speech = self._speech if not number else await self.begin(number)
                assert speech is not None
                of = self._logprobs(number)
                if self.wish.echo:
                    yield frames.said(number, self._echo(number))
                async for piece in speech.pieces():
                    logprobs = of.of(piece.scores) if piece.scores else None
                    text = whole(piece.deltas).content
                    if text or logprobs is not None:
                        yield frames.said(number, text, logprobs)
                    if piece.comment:
                        yield comment(piece.comment)
                yield frames.finished(number, speech.finish)
                usages.append(speech.usage())
            yield frames.end(summed(usages, self.wish.n))
        except ApiError as error:
            yield error_frame(error)
        finally:
            self.leave()
