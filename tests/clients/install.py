"""Installs the two real clients into a folder; where that can't be, says why and leaves it noted.

usage: python tests/clients/install.py FOLDER
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 1_800.0


@dataclass(frozen=True, slots=True)
class Client:
    """One client: how it is installed, and the program that shows it is."""

    name: str
    program: str
    """Below the client's folder; it says its version, and nothing else is asked of it."""
    version: str
    steps: tuple[tuple[str, ...], ...]
    """Commands in the client's folder; `{python}` stands for this interpreter."""

    def folder(self, root: Path) -> Path:
        """Where it is."""
        return root / self.name

    def missing(self, root: Path) -> str | None:
        """Why it can't be used; None when it can."""
        note = root / f"{self.name}.missing"
        if note.exists():
            return note.read_text().strip()
        if not (root / f"{self.name}.installed").exists():
            return f"{self.name} is not in {root}: make test-clients installs it"
        return None


OPENCODE = Client(
    "opencode",
    "node_modules/opencode-linux-x64/bin/opencode",
    "1.18.33",
    (
        (
            *("npm", "install", "--no-audit", "--no-fund", "--prefix", "."),
            # Without ripgrep opencode would fetch it; playwright-core is for Open WebUI's page.
            *("opencode-ai@1.18.33", "@vscode/ripgrep-linux-x64@1.18.0", "playwright-core@1.65.1"),
        ),
    ),
)
OPENWEBUI = Client(
    "openwebui",
    "bin/open-webui",
    "0.12.4",
    (
        ("{python}", "-m", "venv", "."),
        ("bin/python", "-m", "pip", "install", "-q", "torch==2.13.0"),
        ("bin/python", "-m", "pip", "install", "-q", "open-webui==0.12.4"),
    ),
)
CLIENTS = (OPENCODE, OPENWEBUI)


def install(client: Client, root: Path) -> str | None:
    """Installs it, when it is not there in this version; why that did not work, or None."""
    stamp, note = root / f"{client.name}.installed", root / f"{client.name}.missing"
    wanted = f"{client.version}\n"
    if stamp.exists() and stamp.read_text() == wanted:
        return None
    folder = client.folder(root)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    why = _run(client, folder)
    stamp.unlink(missing_ok=True)
    note.unlink(missing_ok=True)
    if why is None:
        stamp.write_text(wanted)
    else:
        note.write_text(f"{why}\n")
    return why


def _run(client: Client, folder: Path) -> str | None:
    for step in client.steps:
        command = [part.format(python=sys.executable) for part in step]
        if shutil.which(command[0], path=None) is None and not (folder / command[0]).exists():
            return f"{client.name}: there is no {command[0]} here"
        try:
            done = _said(command, folder)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{client.name}: {error}"
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            last = lines[-1] if lines else "no word why"
            return f"{client.name}: {' '.join(command[:4])} ... failed: {last}"
    if not (folder / client.program).exists():
        return f"{client.name}: {client.program} was not installed"
    return None


def _said(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def main(root: Path, clients: Iterable[Client] = CLIENTS) -> None:
    """Installs what is missing; a client that can't be installed is said, and its tests skip."""
    root.mkdir(parents=True, exist_ok=True)
    for client in clients:
        print(f"{client.name} {client.version}: into {client.folder(root)}", flush=True)
        why = install(client, root)
        print(f"  its tests are skipped: {why}" if why else "  is there", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
