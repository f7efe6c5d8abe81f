"""What was asked: a request's messages as a prompt, its conversation, and what it is for"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from engine.chat.clients import Identity, identify
from engine.chat.dialect import Dialect
from engine.chat.gallery import Gallery
from engine.chat.messages import ChatError, Message
from engine.chat.rendered import Rendered
from engine.prompt import Prompt
from serve.conversations import Conversations
from serve.errors import bad_request
from serve.wire_chat import ChatBody


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was understood."""

    who: Identity
    session: str | None
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    rendered: Rendered
    seeded: bool = False
    """It names a seed."""


class Asking:
    """Reads requests. Not for two threads at once: rendered messages are kept."""

    def __init__(self, dialect: Dialect, gallery: Gallery, key: bytes = b"") -> None:
        """Conversations that have no name get one under `key`."""
        self._dialect, self._gallery = dialect, gallery
        self._conversations = Conversations(key)

    def read(
        self,
        headers: Sequence[tuple[str, str]],
        sent: Mapping[str, Any],
        body: ChatBody,
        *,
        thinking: bool = True,
        peeks: bool = False,
    ) -> Asked:
        """The request as it was understood; raises ApiError. `sent` is the body as it came. One
        that only `peeks` leaves no conversation behind."""
        messages, tools = body.messages_in(self._gallery.see), tuple(body.tools_in())
        who = identify(headers, sent, messages, tools)
        session = who.session
        if session is None:
            session = self._conversations.session_of(who.kind, messages, peeks=peeks)
        try:
            rendered = self._dialect.render(messages, tools, thinking=thinking)
        except ChatError as error:
            raise bad_request(f"{error}.", param="messages") from None
        if not len(rendered.ids):
            # A checkpoint's own template may write nothing of some messages.
            raise bad_request("The chat template makes no prompt of these messages.", "messages")
        return Asked(who, session, messages, tools, rendered, body.seed is not None)

    def prompt(self, asked: Asked, answer_max: int) -> Prompt:
        """The prompt of a request whose answer may have so many tokens."""
        rendered, who = asked.rendered, asked.who
        return Prompt(
            rendered.ids,
            asked.session,
            who.client,
            who.kind,
            rendered.tools,
            rendered.system,
            answer_max,
            rendered.valued,
            pictures=tuple(self._gallery.picture(image) for _, image in rendered.shown),
            last_user=rendered.last_user,
            first_answer=rendered.first_answer,
        )


def headers_of(request: Request) -> list[tuple[str, str]]:
    """A request's headers in order, as text."""
    return [(n.decode("latin-1"), v.decode("latin-1")) for n, v in request.headers.raw]
