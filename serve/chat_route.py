"""POST /v1/chat/completions: an answer to a conversation, whole or as it is written"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.scored import Score
from serve.answers import (
    ChatChoice,
    ChatFrames,
    Head,
    chat_answer,
    comment,
    encoded,
    error_frame,
)
from serve.asked import Asked, headers_of
from serve.chat.deltas import Delta, whole
from serve.errors import ApiError
from serve.logprobs import chat_logprobs
from serve.openapi import body_of
from serve.service import Service
from serve.speech import Speech
from serve.stream import EventStream, unless_gone
from serve.usage import summed
from serve.wire_chat import ChatBody
from serve.wish import Wish

CLIENT_LEFT = 499
"""Nobody reads it."""


def routes(service: Service) -> APIRouter:
    """The route, over one service."""
    router = APIRouter(tags=["chat"])

    @router.post("/v1/chat/completions", openapi_extra=body_of(ChatBody))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation. With `stream` the answer comes as server-sent events; comments in
        between keep the connection alive and say how far the prompt was read."""
        sent, body, wish = service.chat(await request.body())
        asked = await service.ask(headers_of(request), sent, body, wish)
        answer = Answer(service, asked, wish)
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
class Answer:
    """One request's choices, one after another."""

    service: Service
    asked: Asked
    wish: Wish
    head: Head = field(init=False)
    _speech: Speech | None = None

    def __post_init__(self) -> None:
        created_s = int(self.service.house.clock.wall_s())
        id = f"chatcmpl-{secrets.token_hex(12)}"
        self.head = Head(id, created_s, self.service.about.model)

    async def begin(self, number: int) -> Speech:
        """Order a choice, and wait until it begins; raises ApiError."""
        house = self.service.house
        hearing = await self.service.order(self.asked, self.wish, number)
        keepalive_s = house.settings.serving.keepalive_s
        tokenizer = house.dialect.tokenizer
        speech = self._speech = Speech(hearing, self.asked.rendered, tokenizer, keepalive_s)
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

    async def whole(self) -> bytes:
        """All choices in one object; raises ApiError."""
        choices, usages = [], []
        try:
            for number in range(self.wish.n):
                speech = self._speech if not number else await self.begin(number)
                assert speech is not None
                deltas: list[Delta] = []
                scores: list[Score] = []
                async for piece in speech.pieces():
                    deltas += piece.deltas
                    scores += piece.scores
                logprobs = self._logprobs(scores) if self.wish.logprobs is not None else None
                choices.append(ChatChoice(whole(deltas), speech.finish, logprobs))
                usages.append(speech.usage())
        finally:
            self.leave()
        return encoded(chat_answer(self.head, choices, summed(usages)))

    async def frames(self) -> AsyncIterator[bytes]:
        """All choices as the frames of a stream."""
        frames = ChatFrames(self.head, include_usage=self.wish.include_usage)
        usages = []
        try:
            for number in range(self.wish.n):
                speech = self._speech if not number else await self.begin(number)
                assert speech is not None
                yield frames.first(number)
                async for piece in speech.pieces():
                    for frame in self._said(frames, number, piece.deltas, piece.scores):
                        yield frame
                    if piece.comment:
                        yield comment(piece.comment)
                yield frames.finished(number, speech.finish)
                usages.append(speech.usage())
            yield frames.end(summed(usages))
        except ApiError as error:
            yield error_frame(error)
        finally:
            self.leave()

    def _said(
        self, frames: ChatFrames, number: int, deltas: tuple[Delta, ...], scores: tuple[Score, ...]
    ) -> list[bytes]:
        """The frames of a piece; its scores come with the first."""
        logprobs = self._logprobs(scores) if scores else None
        if not deltas:
            return [frames.scored(number, logprobs)] if logprobs is not None else []
        first, *others = deltas
        rest = [frames.said(number, delta) for delta in others]
        return [frames.said(number, first, logprobs), *rest]

    def _logprobs(self, scores: list[Score] | tuple[Score, ...]) -> dict:
        return chat_logprobs(scores, self.service.bytes_of)
