"""A server of its own for an experiment: `moorage serve` on loopback, asked like any other"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from experiments.traffic import GateFailed

ROOT = Path(__file__).parents[1]
START_S, STOP_S, ANSWER_S, WRITE_S = 120.0, 60.0, 600.0, 20.0
REST_S = 0.4
"""When no head was added for so long, none is being written."""
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Took:
    """One request, as its client saw it and as the journal has it."""

    source: str
    prompt: int
    cached: int
    wall_s: float
    first_s: float
    """To the first piece of a streamed answer; to the end of a whole one."""
    engine_s: float
    """Prefill and decode."""
    message: Mapping[str, Any]

    @property
    def over_s(self) -> float:
        """What the request took beside the engine."""
        return self.wall_s - self.engine_s


class ServedHere:
    """A server under way."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def set(self, **settings: Any) -> None:
        """Other settings, from the next request on; raises GateFailed."""
        self._checked(self._client.put("/v1/settings", json=settings))

    def floored(self, **settings: Any) -> None:
        """The same with as little of the drive left free as it lets a cache leave."""
        free = {name: {**of, "min_free_gb": 0.0} for name, of in settings.items()}
        if self._client.put("/v1/settings", json=free).status_code != 200:
            self.set(**settings)

    def clear(self, tier: str) -> None:
        """Forget what a tier holds."""
        self._checked(self._client.post("/v1/cache/clear", params={"tier": tier}))

    def settled(self) -> None:
        """Wait until heads that are being written are on the drive; raises GateFailed."""
        end_s, seen = time.monotonic() + WRITE_S, (-1, 0.0)
        anything = {"messages": [{"role": "user", "content": "?"}]}
        while time.monotonic() < end_s:
            # What was written meanwhile is taken note of ahead of a request, and of a peek.
            self._checked(self._client.post("/v1/cache/peek", json=anything))
            entries = self._checked(self._client.get("/v1/cache/stats")).json()["disk"]["entries"]
            if entries != seen[0]:
                seen = entries, time.monotonic()
            elif entries and time.monotonic() - seen[1] > REST_S:
                return
            time.sleep(REST_S / 8)
        raise GateFailed("no head came to the drive")

    def ask(self, messages: Messages, session: str, *, stream: bool, tokens: int) -> Took:
        """One greedy answer of at most so many tokens; raises GateFailed."""
        body = {"messages": messages, "stream": stream, "max_tokens": tokens, "temperature": 0}
        body |= {"reasoning_effort": "none"}
        headers = {"x-session-id": session}
        begun = time.perf_counter()
        first, text = 0.0, ""
        if stream:
            sent = self._client.stream("POST", "/v1/chat/completions", json=body, headers=headers)
            with sent as answer:
                for line in answer.iter_lines():
                    piece = _piece(line)
                    text += piece
                    if piece and not first:
                        first = time.perf_counter()
                status = answer.status_code
        else:
            answer = self._client.post("/v1/chat/completions", json=body, headers=headers)
            status = answer.status_code
            if status == 200:
                text = answer.json()["choices"][0]["message"]["content"]
        ended = time.perf_counter()
        if status != 200:
            raise GateFailed(f"the server answered {status}")
        row = self._checked(self._client.get("/v1/cache/stats")).json()["last_turns"][0]
        return Took(
            source=row["source"],
            prompt=row["prompt"],
            cached=row["cached"],
            wall_s=ended - begun,
            first_s=(first or ended) - begun,
            engine_s=row["prefill_s"] + row["decode_s"],
            message={"role": "assistant", "content": text},
        )

    @staticmethod
    def _checked(answer: httpx.Response) -> httpx.Response:
        if answer.status_code != 200:
            raise GateFailed(f"{answer.request.url.path}: {answer.status_code} {answer.text}")
        return answer


def _piece(line: str) -> str:
    """The text that a frame of a stream brings."""
    if not line.startswith("data: {"):
        return ""
    choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


@contextmanager
def served_here(window: int) -> Iterator[ServedHere]:
    """The embedded model on one thread, with a drive's caches in a folder that goes afterwards;
    raises GateFailed when it does not start."""
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        command = [sys.executable, "-m", "moorage", "serve", "--port", str(port)]
        command += ["--window", str(window), "--parallel", "0"]
        command += ["--cache-dir", str(Path(folder) / "caches")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environment.pop("MOORAGE_TOKEN", None)
        said = Path(folder) / "said"
        with said.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT
            )
        try:
            base = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=base, timeout=ANSWER_S, trust_env=False) as client:
                _until_up(client, process, said)
                yield ServedHere(client)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _until_up(client: httpx.Client, process: subprocess.Popen[bytes], said: Path) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        with suppress(httpx.TransportError):
            if client.get("/health").status_code == 200:
                return
        time.sleep(0.1)
    tail = said.read_text(errors="replace").strip().splitlines()[-1:]
    raise GateFailed(f"the server did not start: {' '.join(tail)}")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
