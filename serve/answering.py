"""Answering: a request's choices, one after another, in whatever shape it wants them"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Generic, TypeVar

from fastapi import Request
from starlette.responses import Response

from engine.chat.rendered import Rendered
from serve.answers import Frames, Head, comment, encoded, error_frame
from serve.errors import ApiError
from serve.hearing import Hearing
from serve.service import Service
from serve.speech import Piece, Speech
from serve.stream import EventStream, unless_gone
from serve.usage import summed
from serve.wish import Wish

CLIENT_LEFT = 499
"""Nobody reads it."""

Shape = TypeVar("Shape", bound=Frames)
Usage = Mapping[str, Any]


class Answering(ABC, Generic[Shape]):
    """One request on its way. A shape says how its prompts, choices and frames look."""

    prompts = 1

    def __init__(self, service: Service, wish: Wish, id: str) -> None:
        self.service, self.wish = service, wish
        self.head = Head(id, int(service.house.clock.wall_s()), service.about.model)
        self._speech: Speech | None = None

    async def answer(self, request: Request) -> Response:
        """The response; raises ApiError as long as nothing was sent."""
        await self._begin(0)
        if self.wish.stream:
            return EventStream(self._frames())
        work = asyncio.ensure_future(self._whole())
        if not await unless_gone(request, work, self._leave):
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return Response(status_code=CLIENT_LEFT)
        return Response(work.result(), media_type="application/json")

    # what a shape fills in

    @abstractmethod
    async def order(self, number: int) -> tuple[Hearing, Rendered]:
        """Order a choice; raises ApiError."""

    @abstractmethod
    def choice(self, number: int, pieces: list[Piece], finish: str) -> Any:
        """A choice that has ended, for `object`."""

    @abstractmethod
    def object(self, choices: list[Any], usage: Usage) -> dict[str, Any]:
        """All of it as one JSON object."""

    @abstractmethod
    def shape(self) -> Shape:
        """The frames of its stream."""

    @abstractmethod
    def opening(self, frames: Shape, number: int) -> Iterator[bytes]:
        """What a choice's frames begin with."""

    @abstractmethod
    def said(self, frames: Shape, number: int, piece: Piece) -> Iterator[bytes]:
        """A piece's frames."""

    @abstractmethod
    def closing(self, frames: Shape, number: int, finish: str) -> bytes:
        """The last frame of a choice."""

    # its way

    async def _begin(self, number: int) -> Speech:
        """Order a choice, and wait until it begins; raises ApiError."""
        house = self.service.house
        hearing, rendered = await self.order(number)
        keepalive_s = house.settings.serving.keepalive_s
        speech = self._speech = Speech(hearing, rendered, house.dialect.tokenizer, keepalive_s)
        begun = False
        try:
            await speech.begins()
            begun = True
        finally:
            if not begun:
                self._leave()
        return speech

    def _leave(self) -> None:
        """The client is gone, or has all of it."""
        if self._speech is not None:
            self._speech.hearing.leave()

    async def _speeches(self) -> AsyncIterator[tuple[int, Speech]]:
        """Every choice in its turn; the first was ordered before."""
        for number in range(self.prompts * self.wish.n):
            speech = self._speech if not number else await self._begin(number)
            assert speech is not None
            yield number, speech

    async def _whole(self) -> bytes:
        """All choices in one object; raises ApiError."""
        choices, usages = [], []
        try:
            async for number, speech in self._speeches():
                pieces = [piece async for piece in speech.pieces()]
                choices.append(self.choice(number, pieces, speech.finish))
                usages.append(speech.usage())
        finally:
            self._leave()
        return encoded(self.object(choices, summed(usages, self.wish.n)))

    async def _frames(self) -> AsyncIterator[bytes]:
        """All choices as the frames of a stream."""
        frames, usages = self.shape(), []
        try:
            async for number, speech in self._speeches():
                for frame in self.opening(frames, number):
                    yield frame
                async for piece in speech.pieces():
                    for frame in self.said(frames, number, piece):
                        yield frame
                    if piece.comment:
                        yield comment(piece.comment)
                yield self.closing(frames, number, speech.finish)
                usages.append(speech.usage())
            yield frames.end(summed(usages, self.wish.n))
        except ApiError as error:
            yield error_frame(error)
        finally:
            self._leave()
