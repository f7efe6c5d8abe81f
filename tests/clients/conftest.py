"""The real clients' fixtures: where the clients are, and processes that end with the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from install import OPENCODE, OPENWEBUI
from moored import ROOT
from processes import Processes

CLIENTS = Path(os.environ.get("CLIENTS_DIR") or ROOT / ".clients").resolve()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scratch of one module's tests."""
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def processes(folder: Path) -> Iterator[Processes]:
    """Whatever is started in it ends with the module."""
    started = Processes(folder / "logs")
    yield started
    started.close()


@pytest.fixture(scope="module")
def modules() -> Path:
    """The npm packages; skips without opencode."""
    if why := OPENCODE.missing(CLIENTS):
        pytest.skip(why)
    return OPENCODE.folder(CLIENTS) / "node_modules"


@pytest.fixture(scope="module")
def webui_python() -> Path:
    """Open WebUI's own interpreter; skips without it."""
    if why := OPENWEBUI.missing(CLIENTS):
        pytest.skip(why)
    return OPENWEBUI.folder(CLIENTS) / "bin/python"
