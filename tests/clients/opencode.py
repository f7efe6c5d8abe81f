"""Drives the real opencode: one `serve` process, its HTTP API, and its stream of events."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from processes import Processes, free_port, wait_for

from experiments.night.run import opencode_settings

NAME = "opencode"
TURN_LIMIT_S = 180.0
WHO = ("-c", "user.name=moorage", "-c", "user.email=moorage@localhost")


def make_project(folder: Path, files: Mapping[str, str]) -> Path:
    """A git repository with these files and one commit."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    for command in (["init", "-q"], ["add", "-A"], [*WHO, "commit", "-qm", "Begin"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


class Opencode:
    """opencode with a home of its own, told of one model at one address."""

    def __init__(
        self,
        modules: Path,
        home: Path,
        upstream: str,
        model: str,
        processes: Processes,
        context_tokens: int,
    ) -> None:
        self.model = model
        self._home, self._processes = home, processes
        binary = modules / "opencode-linux-x64/bin/opencode"
        port = free_port()
        command = [str(binary), "serve", "--port", str(port), "--hostname", "127.0.0.1"]
        env = opencode_settings(modules, home, upstream, model=model, context_tokens=context_tokens)
        processes.start(NAME, command, home, env)
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TURN_LIMIT_S)

    def begin(self, folder: Path) -> str:
        """A new session in a folder; its id. The first one waits until opencode is there."""
        wait_for("opencode's start", lambda: self._up(folder))
        return str(self._post(folder, "/session", {})["id"])

    def say(self, folder: Path, session: str, text: str) -> str:
        """One turn of the user, to its end; the last answer's text."""
        body = {"parts": [{"type": "text", "text": text}]}
        answer = self._post(folder, f"/session/{session}/message", body)
        self.idle(folder, session)
        assert "error" not in answer["info"], answer["info"]["error"]
        return text_of(answer)

    def cut(self, folder: Path, session: str, text: str, part: str, characters: int) -> None:
        """One turn that the user stops when so much of a `part` has come: text or reasoning."""
        with self.saying(folder, session, text, part, characters):
            self._post(folder, f"/session/{session}/abort", {})
        self.idle(folder, session)

    @contextmanager
    def saying(
        self, folder: Path, session: str, text: str, part: str, characters: int
    ) -> Iterator[None]:
        """One turn of the user, as far as so much of a `part` has come; nothing is stopped."""
        with self._events(folder) as heard:
            body = {"parts": [{"type": "text", "text": text}]}
            self._post(folder, f"/session/{session}/prompt_async", body)
            wait_for(f"{characters} characters of {part}", lambda: heard(part) >= characters)
            yield

    def compact(self, folder: Path, session: str) -> None:
        """What /compact does."""
        model = {"providerID": "local", "modelID": self.model}
        self._post(folder, f"/session/{session}/summarize", model)
        self.idle(folder, session)

    def messages(self, folder: Path, session: str) -> list[dict[str, Any]]:
        """The session as opencode keeps it."""
        found: list[dict[str, Any]] = self._get(folder, f"/session/{session}/message")
        return found

    def children(self, folder: Path, session: str) -> list[str]:
        """Ids of the sub-agents' sessions."""
        return [child["id"] for child in self._get(folder, f"/session/{session}/children")]

    def title(self, folder: Path, session: str) -> str:
        """The session's title."""
        return str(self._get(folder, f"/session/{session}")["title"])

    def idle(self, folder: Path, session: str) -> None:
        """Waits until the session has nothing running."""
        at_rest = {"type": "idle"}

        def resting() -> bool:
            states = self._get(folder, "/session/status")
            return bool(states.get(session, at_rest)["type"] == "idle")

        wait_for("opencode at rest", resting, TURN_LIMIT_S)

    def close(self) -> None:
        """Closes the connections; the process is the Processes' to end."""
        self._http.close()

    def _up(self, folder: Path) -> bool:
        # The first request after the start can hang for ever.
        try:
            found = self._http.get("/config", params={"directory": str(folder)}, timeout=4.0)
        except httpx.RequestError:
            return False
        return found.status_code == 200

    @contextmanager
    def _events(self, folder: Path) -> Iterator[Callable[[str], int]]:
        """Listens along; tells how many characters of a kind of part have been heard."""
        heard: dict[str, str] = {}
        kinds: dict[str, str] = {}
        ready = threading.Event()
        query = {"directory": str(folder)}
        with self._http.stream("GET", "/event", params=query, timeout=None) as reply:

            def listen() -> None:
                try:
                    for line in reply.iter_lines():
                        ready.set()
                        if line.startswith("data:"):
                            _hear(json.loads(line[5:]), heard, kinds)
                except (httpx.StreamError, httpx.TransportError, OSError):
                    return  # closed below

            thread = threading.Thread(target=listen, daemon=True)
            thread.start()
            assert ready.wait(30.0), "opencode's events"
            try:
                yield lambda kind: sum(
                    len(text) for part, text in heard.items() if kinds.get(part) == kind
                )
            finally:
                reply.close()

    def _get(self, folder: Path, path: str) -> Any:
        reply = self._http.get(path, params={"directory": str(folder)})
        assert reply.status_code == 200, (path, reply.text, self._processes.said(NAME))
        return reply.json()

    def _post(self, folder: Path, path: str, body: dict[str, Any]) -> Any:
        reply = self._http.post(path, params={"directory": str(folder)}, json=body)
        assert reply.status_code < 300, (path, reply.text, self._processes.said(NAME))
        return reply.json() if reply.content[:1] in (b"{", b"[") else reply.text


def text_of(message: Mapping[str, Any]) -> str:
    """The text parts of a message, joined."""
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def tools_of(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(tool, how it ended) of every call in a session."""
    return [
        (part["tool"], part["state"]["status"])
        for message in messages
        for part in message["parts"]
        if part["type"] == "tool"
    ]


def _hear(event: Mapping[str, Any], heard: dict[str, str], kinds: dict[str, str]) -> None:
    """Takes one event in: parts come whole and in pieces, under their ids."""
    about = event.get("properties") or {}
    if event.get("type") == "message.part.updated":
        part = about["part"]
        kinds[part["id"]] = part["type"]
        if len(part.get("text") or "") > len(heard.get(part["id"], "")):
            heard[part["id"]] = part["text"]
    elif event.get("type") == "message.part.delta" and about.get("field") == "text":
        heard[about["partID"]] = heard.get(about["partID"], "") + about["delta"]
