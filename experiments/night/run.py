"""Records one part of the night: folders, recorder, upstream, clients, and the people at them

usage: python -m experiments.night.run --rig DIR --part part1 --out FILE [--factor 10] [--only NAME]

The rig folder holds what README.md says to install; everything the clients write stays in it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from experiments.night.coder import Coders, healthy
from experiments.night.plan import make_night
from experiments.night.script import Lane, Night, Part
from experiments.night.upstream import MODEL

UPSTREAM, RECORDER, OPENCODE, WEBUI = 18431, 18432, 18440, 18481
CONTEXT_TOKENS, OUTPUT_TOKENS = 131_072, 16_384
"""What opencode is told of the model: it compacts by itself at their difference."""

_log = logging.getLogger(__name__)


def address(port: int) -> str:
    """A server on loopback."""
    return f"http://127.0.0.1:{port}"


def make_folders(part: Part, repositories: tuple[str, ...], root: Path) -> None:
    """The part's folders as they are when it begins; repositories get one commit."""
    shutil.rmtree(root, ignore_errors=True)
    who = ["-c", "user.name=night", "-c", "user.email=night@localhost"]
    for name, files in part.files.items():
        for path, text in files.items():
            target = root / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        if name in repositories:
            for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "Begin"]):
                subprocess.run(["git", *command], cwd=root / name, check=True)


def opencode_settings(
    modules: Path,
    home: Path,
    upstream: str,
    *,
    model: str = MODEL,
    context_tokens: int = CONTEXT_TOKENS,
    output_tokens: int = OUTPUT_TOKENS,
) -> dict[str, str]:
    """The environment in which opencode needs no network; `home` is made anew."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Local",
        "options": {"baseURL": f"{upstream}/v1", "apiKey": "sk-local"},
        "models": {
            model: {
                "name": model,
                "reasoning": True,
                "tool_call": True,
                "limit": {"context": context_tokens, "output": output_tokens},
            }
        },
    }
    config = {
        "model": f"local/{model}",
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["local"],
        "provider": {"local": provider},
    }
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (home / "opencode.json").write_text(json.dumps(config))
    dropped = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {
        "HOME": str(home),
        # Without ripgrep on the path the tools would fetch it.
        "PATH": f"{modules}/@vscode/ripgrep-linux-x64/bin:{os.environ['PATH']}",
        "OPENCODE_CONFIG": str(home / "opencode.json"),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }


def webui_settings(data: Path, upstream: str, embeddings: str, page: str) -> dict[str, str]:
    """The environment in which Open WebUI needs no network and says which chat it asks for.

    `data` is made anew; `upstream`, `embeddings` and `page` are addresses, the last its own.
    """
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    return os.environ | {
        "WEBUI_AUTH": "False",
        "ENABLE_OLLAMA_API": "False",
        "ENABLE_OPENAI_API": "True",
        "OPENAI_API_BASE_URL": f"{upstream}/v1",
        "OPENAI_API_KEY": "x",
        "ENABLE_FORWARD_USER_INFO_HEADERS": "True",
        "HF_HUB_OFFLINE": "1",
        "OFFLINE_MODE": "True",
        "RAG_EMBEDDING_ENGINE": "openai",
        "RAG_OPENAI_API_BASE_URL": f"{embeddings}/v1",
        "RAG_OPENAI_API_KEY": "x",
        "ANONYMIZED_TELEMETRY": "False",
        "DO_NOT_TRACK": "true",
        "SCARF_NO_ANALYTICS": "true",
        "ENABLE_VERSION_UPDATE_CHECK": "False",
        "DATA_DIR": str(data),
        "WEBUI_SECRET_KEY": "night",
        "CORS_ALLOW_ORIGIN": page,
    }


def page_lane(night: Night, lane: Lane, rig: Path, factor: float) -> Path:
    """Writes the file that webui.js plays."""
    turns = night.turns()
    acts = []
    for act in lane.acts:
        turn, attachment = turns[act.turn], night.sessions[act.session].attachment
        one: dict[str, Any] = {**dataclasses.asdict(act), "prompt": turn.prompt}
        one["cut"] = turn.cut is not None
        if act.replaced:
            one["replaced"] = turns[act.replaced].prompt.split("\n")[0]
        if attachment:
            path = rig / f"{act.session}.txt"
            path.write_text(attachment)
            one["attachment"] = str(path)
        acts.append(one)
    file = rig / "lane.json"
    settings = {
        "acts": acts,
        "factor": factor,
        "upstream": address(UPSTREAM),
        "page": address(WEBUI),
        "model": MODEL,
        "chromium": shutil.which("chromium") or "/usr/bin/chromium",
        "ready": str(rig / "page.ready"),
        "go": str(rig / "page.go"),
    }
    file.write_text(json.dumps(settings))
    for name in ("page.ready", "page.go"):
        (rig / name).unlink(missing_ok=True)
    return file


class Processes:
    """Child processes with a log each, ended together with their own children."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[subprocess.Popen[bytes]] = []
        logs.mkdir(parents=True, exist_ok=True)

    def start(
        self, name: str, command: list[str], env: dict[str, str] | None = None, cwd: str = "."
    ) -> subprocess.Popen[bytes]:
        """Starts one."""
        with open(self._logs / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def stop(self) -> None:
        """Ends all of them, the last one started first."""
        for process in reversed(self._running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


async def play(night: Night, part: Part, given: argparse.Namespace, processes: Processes) -> None:
    """Starts the servers and clients and lets the part's lanes go at the same moment."""
    rig, root = given.rig, given.rig / "work"
    lanes = [lane for lane in part.lanes if not given.only or lane.name in given.only]
    python = sys.executable
    factor = ["--factor", str(given.factor), "--port", str(UPSTREAM)]
    upstream = ["-m", "experiments.night.upstream", "--part", part.name, "--root", str(root)]
    processes.start("upstream", [python, *upstream, *factor])
    code = (
        "import sys; from pathlib import Path; from serve.record import record; "
        "record(sys.argv[1], Path(sys.argv[2]), port=int(sys.argv[3]))"
    )
    address_v1 = f"{address(UPSTREAM)}/v1"
    processes.start("recorder", [python, "-c", code, address_v1, str(given.out), str(RECORDER)])
    await healthy(address(UPSTREAM), "/v1/models", root)
    modules = rig / "oc/node_modules"
    environment = opencode_settings(modules, rig / "home", address(RECORDER))
    binary = modules / "opencode-linux-x64/bin/opencode"
    serve = [str(binary), "serve", "--port", str(OPENCODE), "--hostname", "127.0.0.1"]
    processes.start("opencode", serve, environment, str(root))
    await healthy(address(OPENCODE), "/config", root / "tidewatch")
    os.environ.update(environment)
    page = None
    for lane in lanes:
        if lane.client == "page":
            command = [str(rig / "owui/bin/open-webui"), "serve", "--host", "127.0.0.1"]
            command += ["--port", str(WEBUI)]
            # Embeddings are another server's work: they go past the recorder.
            settings = rig / "data", address(RECORDER), address(UPSTREAM), address(WEBUI)
            processes.start("webui", command, webui_settings(*settings), str(rig))
            await healthy(address(WEBUI), "/health", root, 180.0)
            file = page_lane(night, lane, rig, given.factor)
            driver = str(Path(__file__).with_name("webui.js"))
            on_path = os.environ | {"NODE_PATH": str(modules)}
            page = processes.start("page", ["node", driver, str(file)], on_path)
            while not (rig / "page.ready").exists():
                assert page.poll() is None, "the page's driver ended early"
                await asyncio.sleep(0.1)
    coders = Coders(night, root, address(OPENCODE), address(UPSTREAM), given.factor, binary)
    (rig / "page.go").touch()
    await asyncio.gather(*(coders.play(lane) for lane in lanes if lane.client == "opencode"))
    await coders.close()
    if page:
        while page.poll() is None:
            await asyncio.sleep(0.2)
        assert page.returncode == 0, "the page's driver failed: see page.log"


def main() -> None:
    """Records one part."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rig", type=Path, required=True)
    parser.add_argument("--part", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--factor", type=float, default=10.0)
    parser.add_argument("--only", action="append", help="a lane's name; all without it")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    given.rig = given.rig.resolve()
    night = make_night()
    part = next(part for part in night.parts if part.name == given.part)
    make_folders(part, night.repositories, given.rig / "work")
    given.out.unlink(missing_ok=True)
    with ExitStack() as stack:
        processes = Processes(given.rig / "logs")
        stack.callback(processes.stop)
        asyncio.run(play(night, part, given, processes))
    _log.info("%s is recorded in %s", part.name, given.out)


if __name__ == "__main__":
    main()
