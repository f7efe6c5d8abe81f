"""Who sent a request, for which conversation, and what for: from the request alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.chat.messages import Message

OPENCODE, OPENWEBUI = "opencode", "openwebui"
SIDE = frozenset({"title", "tags", "followups", "queries", "autocomplete", "side"})
"""Kinds that are about a conversation and no turn of it."""

_BODY_IDS = ("conversation_id", "chat_id", "session_id")
_HEADER_IDS = ("x-session-id", "x-openwebui-chat-id", "x-session", "x-chat-id", "x-conversation-id")
"""Open WebUI's custom header with {{CHAT_ID}} has the name its owner gave it: the usual ones."""
_PARENT = "x-parent-session-id"

_TASKS = {
    "title_generation": "title",
    "tags_generation": "tags",
    "follow_up_generation": "followups",
    "query_generation": "queries",
    "autocomplete_generation": "autocomplete",
}
"""Open WebUI's {{TASK}} in a custom header, whatever its name; others end in `_generation`."""
_TASK_VALUE = re.compile(r"[a-z_]+_generation")
_TASK_LINES = (
    ("title", re.compile(r"Generate a concise\b.{0,40}\btitle ")),
    ("tags", re.compile(r"Generate 1-3 broad tags ")),
    ("followups", re.compile(r"(Predict|Suggest) 3-5 (useful|relevant) (messages|follow-up)")),
    ("queries", re.compile(r"Analyze the chat history to determine the necessity of generating ")),
    ("autocomplete", re.compile(r"You are an autocompletion system\.")),
    ("turn", re.compile(r"Respond to the user query using the provided context")),
)
"""The line after `### Task:` in Open WebUI's own prompts; the last wraps a turn with a file."""
_TASK_HEAD = "### Task:\n"

_PRODUCT = re.compile(r"([A-Za-z][A-Za-z0-9._-]{0,29})/([0-9][A-Za-z0-9.+-]{0,29})(?![^ ])")
"""A User-Agent's first product; one that is formed otherwise could say anything."""
_LIBRARY = re.compile(r"aiohttp/[0-9.]+")

_TITLE_SYSTEM = "You are a title generator."
_COMPACTION_SYSTEM = "You are a context summarization agent."
_COMPACTION_USER = "Here is the conversation so far:"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a request says about itself."""

    client: str
    version: str
    session: str | None
    parent: str | None
    kind: str


def identify(
    headers: Sequence[tuple[str, str]],
    body: Mapping[str, Any],
    messages: Sequence[Message],
    tools: Sequence[Any],
) -> Identity:
    """Client, conversation and kind of a request."""
    named = {name.lower(): value for name, value in headers}
    client, version = _client(named, body)
    parent = named.get(_PARENT) or None
    kind = _kind(named, messages, tools)
    if kind == "turn" and parent:
        kind = "subagent"
    return Identity(client, version, _session(named, body), parent, kind)


def _client(headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[str, str]:
    """The client's name and version; Open WebUI names only the library that it calls with."""
    agent = headers.get("user-agent", "")
    library = _LIBRARY.search(agent)
    ours = any(name.startswith("x-openwebui-") for name in headers)
    if ours or (library and next(iter(body), "") in ("stream", "model")):
        return OPENWEBUI, library.group().replace("/", "-") if library else ""
    product = _PRODUCT.match(agent)
    return (product.group(1).lower(), product.group(2)) if product else ("unknown", "")


def _session(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """The conversation's id: the body's, else a header's."""
    extra = body.get("metadata")
    for fields in (body, extra if isinstance(extra, Mapping) else {}):
        for name in _BODY_IDS:
            if isinstance(fields.get(name), str) and fields[name]:
                return str(fields[name])
    return next((headers[name] for name in _HEADER_IDS if headers.get(name)), None)


def _kind(headers: Mapping[str, str], messages: Sequence[Message], tools: Sequence[Any]) -> str:
    """What a request is for, by its task header, else by the first lines of its prompts."""
    for value in headers.values():
        if value in _TASKS:
            return _TASKS[value]
        if _TASK_VALUE.fullmatch(value):
            return "side"
    system = messages[0].content if messages[0].role == "system" else ""
    last = messages[-1].content
    if not tools:
        if system.startswith(_TITLE_SYSTEM):
            return "title"
        if system.startswith(_COMPACTION_SYSTEM) or last.startswith(_COMPACTION_USER):
            return "compaction"
    if last.startswith(_TASK_HEAD):
        line = last[len(_TASK_HEAD) :]
        kind = next((kind for kind, pattern in _TASK_LINES if pattern.match(line)), None)
        return kind or ("turn" if tools else "side")
    return "turn"
