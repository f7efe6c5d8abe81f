"""Processes of the client tests: a log each, groups that end together, free ports, conditions."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

STOP_LIMIT_S = 30.0
WAIT_LIMIT_S = 120.0

T = TypeVar("T")


class NeverCame(AssertionError):
    """A condition that a test waited for did not come true."""


def wait_for(
    what: str, look: Callable[[], T | None], limit_s: float = WAIT_LIMIT_S, pause_s: float = 0.1
) -> T:
    """What `look` finds, as soon as it finds something true; the limit is for failures alone."""
    until_s = time.monotonic() + limit_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > until_s:
            raise NeverCame(f"{what}: not within {limit_s:.0f} s")
        time.sleep(pause_s)


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """Child processes in groups of their own, so that none outlives the tests."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(
        self,
        name: str,
        command: Sequence[str],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        *,
        talks: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Starts one; what it says is added to its log. One that `talks` has pipes to the test."""
        assert name not in self._running, name
        cwd.mkdir(parents=True, exist_ok=True)
        with open(self.log(name), "ab") as log:
            process = subprocess.Popen(
                command,
                env=None if env is None else dict(env),
                cwd=cwd,
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else log,
                stderr=log,
                start_new_session=True,
            )
        self._running[name] = process
        return process

    def log(self, name: str) -> Path:
        """Where a process's output goes."""
        return self._logs / f"{name}.log"

    def said(self, name: str) -> str:
        """The end of a process's log, for the message of a failure."""
        return self.log(name).read_text(errors="replace")[-2_000:]

    def stop(self, name: str) -> int:
        """Ends one politely, then its whole group; its exit status."""
        process = self._running.pop(name)
        process.terminate()
        try:
            return process.wait(STOP_LIMIT_S)
        finally:
            self._end_group(process)

    def kill(self, name: str) -> None:
        """Ends one and its group without a word."""
        self._end_group(self._running.pop(name))

    def close(self) -> None:
        """Ends all of them, the last one started first."""
        for process in reversed(self._running.values()):
            process.terminate()
        for process in reversed(self._running.values()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT_S)
            self._end_group(process)
        self._running.clear()

    @staticmethod
    def _end_group(process: subprocess.Popen[bytes]) -> None:
        # The group lives as long as any of its processes does, also when the first one is gone.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
