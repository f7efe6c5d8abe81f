"""Drives opencode as the plan says: `serve` over its HTTP API, and `run`"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import httpx

from experiments.night.script import Act, Lane, Night, Session, Turn

TURN_LIMIT_S = 900.0
_log = logging.getLogger(__name__)


class Coders:
    """The people at opencode: one `serve` process for all of them, a `run` process a turn."""

    def __init__(
        self, night: Night, root: Path, server: str, upstream: str, factor: float, binary: Path
    ) -> None:
        """`root`: the folder of the night's folders; `server`, `upstream`: addresses."""
        self.night, self.root, self.factor, self.binary = night, root, factor, binary
        self._turns = night.turns()
        self._ids: dict[str, str] = {}
        self._server = httpx.AsyncClient(base_url=server, timeout=TURN_LIMIT_S)
        self._upstream = httpx.AsyncClient(base_url=upstream, timeout=TURN_LIMIT_S)

    async def play(self, lane: Lane) -> None:
        """One person's acts, one after the other."""
        for act in lane.acts:
            await asyncio.sleep(act.think_s / self.factor)
            await self._do(act)
            _log.info("%s %s %s %s", lane.name, act.do, act.session, act.turn)

    async def close(self) -> None:
        """Closes the connections."""
        await self._server.aclose()
        await self._upstream.aclose()

    async def _do(self, act: Act) -> None:
        session = self.night.sessions[act.session]
        if act.do == "rules":
            rules = self.root / session.folder / "AGENTS.md"
            rules.write_text(rules.read_text() + act.text)
        elif act.do == "compact":
            model = {"providerID": "local", "modelID": "qwen-local"}
            await self._post(session, f"/session/{self._ids[session.label]}/summarize", model)
            await self._idle(session)
        elif session.client == "run":
            await self._run(session, self._turns[act.turn])
        else:
            await self._say(session, self._turns[act.turn])

    async def _say(self, session: Session, turn: Turn) -> None:
        if session.label not in self._ids:
            self._ids[session.label] = (await self._post(session, "/session", {}))["id"]
        path = f"/session/{self._ids[session.label]}"
        body = {"parts": [{"type": "text", "text": turn.prompt}], "agent": turn.agent}
        if not turn.cut:
            await self._post(session, f"{path}/message", body)
            await self._idle(session)
            return
        await self._post(session, f"{path}/prompt_async", body)
        query = {"for": f"cut/{turn.label}", "limit_s": TURN_LIMIT_S}
        (await self._upstream.get("/night/wait", params=query)).raise_for_status()
        await self._post(session, f"{path}/abort", {})
        await self._idle(session)

    async def _run(self, session: Session, turn: Turn) -> None:
        folder = self.root / session.folder
        known = self._ids.get(session.label)
        command = ["run", "--format", "json", *(["--session", known] if known else []), turn.prompt]
        process = await asyncio.create_subprocess_exec(
            str(self.binary),
            *command,
            cwd=folder,
            # opencode takes the folder from PWD.
            env=os.environ | {"PWD": str(folder)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await asyncio.wait_for(process.communicate(), TURN_LIMIT_S)
        assert process.returncode == 0, errors[-500:]
        for line in out.splitlines():
            if line.startswith(b"{"):
                self._ids[session.label] = json.loads(line)["sessionID"]

    async def _post(self, session: Session, path: str, body: dict[str, Any]) -> Any:
        folder = {"directory": str(self.root / session.folder)}
        reply = await self._server.post(path, params=folder, json=body)
        reply.raise_for_status()
        return reply.json() if reply.content[:1] in (b"{", b"[") else reply.text

    async def _idle(self, session: Session) -> None:
        """Waits until the session has nothing running, an automatic compaction included."""
        folder = {"directory": str(self.root / session.folder)}
        while True:
            states = (await self._server.get("/session/status", params=folder)).json()
            if states.get(self._ids[session.label], {"type": "idle"})["type"] == "idle":
                return
            await asyncio.sleep(0.1)


async def healthy(address: str, path: str, folder: Path, limit_s: float = 60.0) -> None:
    """Waits for a server; opencode's first request after the start can hang for ever."""
    async with httpx.AsyncClient(base_url=address, timeout=4.0) as client:
        for _ in range(int(limit_s / 0.3)):
            try:
                reply = await client.get(path, params={"directory": str(folder)})
                if reply.status_code == 200:
                    return
            except httpx.RequestError:
                pass
            await asyncio.sleep(0.3)
    raise TimeoutError(f"{address} did not come up")
