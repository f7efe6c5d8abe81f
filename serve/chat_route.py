"""POST /v1/chat/completions: an answer to a conversation, whole or as it is written"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.chat.rendered import Rendered
from engine.scored import Score
from serve.answering import Answering, Usage
from serve.answers import ChatChoice, ChatFrames, chat_answer
from serve.asked import Asked, headers_of
from serve.chat.deltas import whole
from serve.hearing import Hearing
from serve.logprobs import chat_logprobs
from serve.openapi import body_of
from serve.service import Service
from serve.speech import Piece
from serve.wire_chat import ChatBody
from serve.wish import Wish


def routes(service: Service) -> APIRouter:
    """The route, over one service."""
    router = APIRouter(tags=["chat"])

    @router.post("/v1/chat/completions", openapi_extra=body_of(ChatBody))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation. With `stream` the answer comes as server-sent events; comments in
        between keep the connection alive and say how far the prompt was read."""
        sent, body, wish = await service.chat(await request.body())
        asked = await service.ask(headers_of(request), sent, body, wish)
        return await Chat(service, wish, asked).answer(request)

    return router


class Chat(Answering[ChatFrames]):
    """A chat's choices."""

    def __init__(self, service: Service, wish: Wish, asked: Asked) -> None:
        super().__init__(service, wish, f"chatcmpl-{secrets.token_hex(12)}")
        self._asked = asked

    async def order(self, number: int) -> tuple[Hearing, Rendered]:
        """Every choice is of the same prompt."""
        return await self.service.order(self._asked, self.wish, number), self._asked.rendered

    def choice(self, number: int, pieces: list[Piece], finish: str) -> ChatChoice:
        """One message."""
        said = whole(delta for piece in pieces for delta in piece.deltas)
        scores = [score for piece in pieces for score in piece.scores]
        logprobs = self._logprobs(scores) if self.wish.logprobs is not None else None
        return ChatChoice(said, finish, logprobs)

    def object(self, choices: list[Any], usage: Usage) -> dict[str, Any]:
        """The answer."""
        return chat_answer(self.head, choices, usage)

    def shape(self) -> ChatFrames:
        """Chunks."""
        return ChatFrames(self.head, include_usage=self.wish.include_usage)

    def opening(self, frames: ChatFrames, number: int) -> Iterator[bytes]:
        """Whose message it is."""
        yield frames.first(number)

    def said(self, frames: ChatFrames, number: int, piece: Piece) -> Iterator[bytes]:
        """A frame a delta; the scores of all come with the first."""
        logprobs = self._logprobs(piece.scores) if piece.scores else None
        if logprobs is not None and not piece.deltas:
            yield frames.scored(number, logprobs)
        for delta in piece.deltas:
            yield frames.said(number, delta, logprobs)
            logprobs = None

    def closing(self, frames: ChatFrames, number: int, finish: str) -> bytes:
        """Why it ended."""
        return frames.finished(number, finish)

    def _logprobs(self, scores: Sequence[Score]) -> dict[str, Any]:
        return chat_logprobs(scores, self.service.bytes_of)
