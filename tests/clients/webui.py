"""Drives the real Open WebUI: its server over the web API as the page does, and the page itself."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from processes import Processes, free_port, wait_for

from experiments.night.run import webui_settings

NAME, PAGE = "openwebui", "page"
START_LIMIT_S = 300.0
"""The first start makes a database and imports torch."""
AFTERWARDS = {"follow_up_generation": True}
AT_FIRST = {"title_generation": True, "tags_generation": True, **AFTERWARDS}

Node = dict[str, Any]


def chromium() -> str | None:
    """The browser, when there is one."""
    return shutil.which("chromium")


class WebUi:
    """Open WebUI with a database of its own, told of one server's models."""

    def __init__(
        self, python: Path, data: Path, upstream: str, model: str, processes: Processes
    ) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self.model = model
        self._processes = processes
        command = [str(python.with_name("open-webui")), "serve"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        # Nothing is embedded here; a question would go unanswered.
        env = webui_settings(data, upstream, upstream, self.address)
        processes.start(NAME, command, data, env)
        self._http = httpx.Client(base_url=self.address, timeout=60.0)
        wait_for("Open WebUI's start", self._up, START_LIMIT_S)
        token = self._post("/api/v1/auths/signin", {"email": "", "password": ""})["token"]
        self._http.headers["Authorization"] = f"Bearer {token}"

    def say(self, text: str, chat: str | None = None, files: Sequence[Node] = ()) -> str:
        """Sends what the page sends for a message, and waits for the answer; the chat's id."""
        last = self.last(chat)["id"] if chat else None
        question, answer = str(uuid.uuid4()), str(uuid.uuid4())
        message: Node = {
            "id": question,
            "parentId": last,
            "childrenIds": [answer],
            "role": "user",
            "content": text,
            "timestamp": int(time.time()),
            "models": [self.model],
        }
        if files:
            message["files"] = list(files)
        body: Node = {
            "stream": True,
            "model": self.model,
            "params": {},
            "tool_ids": [],
            "tool_servers": [],
            "features": {"memory": True},
            "variables": {},
            "session_id": "moorage",
            "id": answer,
            "message_ids": [{"model_id": self.model, "message_id": answer, "modelIdx": 0}],
            "parent_id": last,
            "user_message": message,
            "background_tasks": AFTERWARDS if chat else AT_FIRST,
        }
        if chat:
            body["chat_id"] = chat
        chat = str(self._post("/api/chat/completions", body)["chat_id"])
        self.answered(chat, answer)
        return chat

    def answered(self, chat: str, message: str | None = None) -> str:
        """Waits until the last message is a whole answer (that one, if given); its text."""

        def whole() -> Node | None:
            last = self.last(chat)
            ours = last["role"] == "assistant" and message in (None, last["id"])
            return last if ours and last.get("done") else None

        found = wait_for(f"an answer in chat {chat}", whole)
        assert not found.get("error"), found["error"]
        return str(found["content"])

    def last(self, chat: str) -> Node:
        """The message the chat stands at."""
        history = self.chat(chat)["chat"]["history"]
        found: Node = history["messages"][history["currentId"]]
        return found

    def chat(self, chat: str) -> Node:
        """A chat as Open WebUI keeps it."""
        reply = self._http.get(f"/api/v1/chats/{chat}")
        assert reply.status_code == 200, (reply.text, self._processes.said(NAME))
        found: Node = reply.json()
        return found

    def upload(self, path: Path, mime: str) -> Node:
        """Uploads a file; how a message names it."""
        with open(path, "rb") as file:
            reply = self._http.post("/api/v1/files/", files={"file": (path.name, file, mime)})
        assert reply.status_code == 200, reply.text
        kept = reply.json()
        about = {"type": "file", "file": kept, "id": kept["id"], "url": kept["id"]}
        return about | {"name": path.name, "status": "uploaded", "content_type": mime}

    def close(self) -> None:
        """Closes the connections; the process is the Processes' to end."""
        self._http.close()

    def _up(self) -> bool:
        try:
            return self._http.get("/health", timeout=4.0).status_code == 200
        except httpx.RequestError:
            return False

    def _post(self, path: str, body: Node) -> Node:
        reply = self._http.post(path, json=body)
        assert reply.status_code == 200, (path, reply.text, self._processes.said(NAME))
        found: Node = reply.json()
        return found


class Page:
    """Open WebUI's page in headless Chromium, played by page.js."""

    def __init__(self, webui: WebUi, modules: Path, logs: Path, processes: Processes) -> None:
        self._webui, self._logs, self._processes = webui, logs, processes
        browser = chromium()
        assert browser
        command = ["node", str(Path(__file__).with_name("page.js")), webui.address, browser]
        on_path = os.environ | {"NODE_PATH": str(modules)}
        self._process = processes.start(PAGE, command, logs, on_path, talks=True)

    def begin(self) -> None:
        """Opens a new chat."""
        self._tell("begin", model=self._webui.model)

    def say(self, text: str, *, whole: bool = True) -> str:
        """Types a message and sends it, and waits for the whole answer; the chat's id."""
        chat = str(self._tell("say", text=text))
        if whole:
            self.answered(chat, text)
        return chat

    def answered(self, chat: str, text: str) -> str:
        """Waits until the chat stands at the whole answer to `text`."""

        def asked() -> bool:
            messages = self._webui.chat(chat)["chat"]["history"]["messages"]
            parent = messages.get(self._webui.last(chat).get("parentId") or "")
            return bool(parent) and parent["content"] == text

        wait_for(f"the question {text!r}", asked)
        return self._webui.answered(chat)

    def stop(self) -> None:
        """Presses Stop."""
        self._tell("stop")

    def regenerate(self, chat: str) -> str:
        """Has the last answer written again; its text."""
        before = self._webui.last(chat)["id"]
        self._tell("regenerate")
        wait_for("another answer", lambda: self._webui.last(chat)["id"] != before)
        return self._webui.answered(chat)

    def attach(self, path: Path) -> None:
        """Puts a file to the next message."""
        assert self._tell("attach", path=str(path)) == 200

    def shows(self, text: str) -> None:
        """Waits until a text is to be seen."""
        self._tell("shows", text=text)

    def _tell(self, what: str, **given: str) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        stdin.write(json.dumps({"tell": what, **given}).encode() + b"\n")
        stdin.flush()
        line = stdout.readline()
        assert line, self._processes.said(PAGE)
        answer = json.loads(line)
        if "error" not in answer:
            return answer["value"]
        picture = self._logs / f"{what}.png"
        stdin.write(json.dumps({"tell": "picture", "path": str(picture)}).encode() + b"\n")
        stdin.flush()
        stdout.readline()
        raise AssertionError(f"{what}: {answer['error']} (see {picture})")
