"""Raw recordings made up for tests, in the shapes of the three recorders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OPENCODE_AGENT = "opencode/1.2.3 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14"
WEBUI_AGENT = "Python/3.11 aiohttp/3.14.5"
CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "bash", "description": "Runs a command."}}]
TITLE = "You are a title generator. You output ONLY a thread title."
SUMMARISE = "You are a context summarization agent. You are given a conversation."

Part = list[str]


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(text: str, id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def assistant(content: str, reasoning: str = "", *calls: Part) -> dict[str, Any]:
    """The message; `calls` are (id, name, arguments)."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    return message


def own(
    t: float,
    messages: list[Any],
    parts: list[Part],
    *,
    seconds: float = 1.0,
    session: str | None = None,
    parent: str | None = None,
    agent: str = OPENCODE_AGENT,
    headers: dict[str, str] | None = None,
    body: dict[str, Any] | None = None,
    tools: list[Any] | None = TOOLS,
    finish: str | None = "stop",
    aborted: bool = False,
    status: int | None = 200,
    mark: dict[str, Any] | None = None,
    path: str = CHAT,
) -> dict[str, Any]:
    """A line of our own recorder."""
    named = {"user-agent": agent} | (headers or {})
    if session:
        named["x-session-id"] = session
    if parent:
        named["x-parent-session-id"] = parent
    request: dict[str, Any] = {"model": "m", "messages": messages, "stream": True}
    if tools:
        request["tools"] = tools
    line = {
        "format": "moorage.raw",
        "version": 1,
        "t": t,
        "t_end": t + seconds,
        "method": "POST",
        "path": path,
        "headers": [list(pair) for pair in named.items()],
        "body": request | (body or {}),
        "reply": {
            "status": status,
            "parts": parts,
            "finish_reason": finish,
            "usage": None,
            "aborted": aborted,
            "frames": 3,
        },
    }
    return line | ({"mark": mark} if mark else {})


def opencode(
    n: int, t: float, messages: list[Any], parts: list[Part], **reply: Any
) -> dict[str, Any]:
    """A line of the opencode rig; its reply holds the whole script."""
    whole = {"parts": parts, "finish_reason": "stop", "usage": {}, "frames_sent": 9} | reply
    return {
        "n": n,
        "scenario": "s",
        "t": t,
        "method": "POST",
        "path": CHAT,
        "kind": "main",
        "headers": [["User-Agent", OPENCODE_AGENT], ["x-session-id", "ses_1"]],
        "body": {"model": "m", "max_tokens": 99, "messages": messages, "tools": TOOLS},
        "reply": whole,
        "t_end": t + 1,
    }


def webui(
    n: int, t: float, messages: list[Any], *, tools: bool = True, path: str = CHAT, **headers: str
) -> dict[str, Any]:
    """A request line of the Open WebUI rig."""
    named = {"User-Agent": WEBUI_AGENT} | {k.replace("_", "-"): v for k, v in headers.items()}
    body = {"stream": True, "model": "m", "messages": messages}
    return {
        "n": n,
        "kind": "request",
        "t": t,
        "wall": f"2026-11-29T23:15:{int(t):02d}",
        "method": "POST",
        "path": path,
        "headers": [list(pair) for pair in named.items()],
        "body": body | ({"tools": TOOLS} if tools else {}),
    }


def webui_reply(n: int, t: float, content: str, reasoning: str = "", **more: Any) -> dict[str, Any]:
    """A reply line of the Open WebUI rig."""
    row = {"n": n, "kind": "reply", "t": t, "side": None, "reasoning": reasoning}
    row |= {"content": content, "tool": None, "sent_before_abort": None, "aborted": None}
    return row | {"usage": {"prompt_tokens": 1}} | more


def write(path: Path, *rows: Any) -> Path:
    """Lines given as text or as what JSON is made of."""
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(text + "\n" for text in texts))
    return path
