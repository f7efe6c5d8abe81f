"""A headless Chromium for tests, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import websocket

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--window-size=1440,1500",
)
START_S, WAIT_S = 60.0, 30.0
Node = dict[str, Any]


def chromium() -> str | None:
    """The browser, when there is one."""
    return shutil.which("chromium")


class Tab:
    """One page of a browser."""

    def __init__(self, address: str) -> None:
        # Chromium refuses a socket that says it comes from a page.
        self._socket = websocket.create_connection(
            address, timeout=WAIT_S, suppress_origin=True, enable_multithread=False
        )
        self._number = 0
        self.said: list[str] = []
        """What the page's console and the browser complained of."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Node:
        """One command and its answer; what comes meanwhile is noted."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            told = json.loads(self._socket.recv())
            if told.get("id") == self._number:
                assert "error" not in told, (method, told)
                return told["result"]
            self._note(told)

    def _note(self, told: Node) -> None:
        params = told.get("params", {})
        match told.get("method"):
            case "Runtime.exceptionThrown":
                self.said.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.said.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.said.append(str(params["args"]))

    def open(self, url: str) -> None:
        """Go there, and wait for the page's own scripts to have run."""
        self.ask("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def run(self, script: str) -> Any:
        """What an expression gives, awaited."""
        told = self.ask(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, script: str, wait_s: float = WAIT_S) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + wait_s
        while True:
            if self.run(f"!!({script})"):
                return
            assert time.monotonic() < end, f"never came true: {script}; {self.said[-3:]}"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """What an element shows."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Press a button."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def put(self, selector: str, value: str) -> None:
        """Type into a field, in place of what it holds."""
        self.run(
            f"""(() => {{
              const field = document.querySelector({json.dumps(selector)});
              field.value = {json.dumps(value)};
              field.dispatchEvent(new Event("input", {{ bubbles: true }}));
              field.dispatchEvent(new Event("change", {{ bubbles: true }}));
            }})()"""
        )

    def colours(self, scheme: str) -> None:
        """Light or dark, as a system prefers it."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path) -> None:
        """The whole page, as it looks."""
        told = self.ask("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(told["data"]))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


@contextmanager
def tab(home: Path) -> Iterator[Tab]:
    """A page in a browser of its own, with nothing remembered in `home`."""
    program = chromium()
    assert program is not None
    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={home}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = _port(home, process)
        address = _page(port)
        page = Tab(address)
        try:
            yield page
        finally:
            page.close()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(home: Path, process: subprocess.Popen[bytes]) -> int:
    """The browser writes it down when it listens."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.poll() is None, "the browser ended"
        with_port = home / "DevToolsActivePort"
        if with_port.exists() and (text := with_port.read_text()).count("\n"):
            return int(text.splitlines()[0])
        time.sleep(0.05)
    raise AssertionError("the browser did not start")


def _page(port: int) -> str:
    """The socket of its first page."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with httpx.Client(trust_env=False, timeout=WAIT_S) as client:
            for target in client.get(f"http://127.0.0.1:{port}/json/list").json():
                if target["type"] == "page":
                    return str(target["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise AssertionError("the browser has no page")
