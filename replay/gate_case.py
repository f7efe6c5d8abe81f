"""A gate on a real drive: the engine it is about, its tokens, a damaged file, a fresh process"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cache.direct import DirectFiles
from cache.format import Header, read_header
from cache.ports import PAGE
from cache.types import Ids
from engine.identity import ROOT
from engine.knobs import PLAIN, Knobs
from sim.profile import Profile, load, with_settings


@dataclass(frozen=True, slots=True)
class Case:
    """The engine that is held to what it would have computed, as the command line names it."""

    model: str
    profile: str
    settings: tuple[tuple[str, str], ...]
    """(key, value) of the profile, as a person sets them."""
    seed: int
    knobs: Knobs = PLAIN

    @classmethod
    def told(cls, of: Mapping[str, Any]) -> Case:
        """From its fields as JSON holds them."""
        settings = tuple((key, value) for key, value in of["settings"])
        return cls(of["model"], of["profile"], settings, of["seed"], Knobs(**of["knobs"]))

    @property
    def board(self) -> Profile:
        """The board. ValueError where there is none such."""
        return with_settings(load(self.profile), dict(self.settings))


def drawn(count: int, seed: int, vocab: int) -> Ids:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, vocab, count).astype(np.int32)


def flip(files: DirectFiles, name: str) -> None:
    """Change one bit of a file's last section."""
    header = read_header(files, name)
    assert isinstance(header, Header), header
    at = header.sections[-1].stop - 1
    page = files.buffer(PAGE)
    handle = files.open(name)
    try:
        files.start_read(handle, at // PAGE * PAGE, page).wait()
        page[at % PAGE] ^= 1
        files.start_write(handle, at // PAGE * PAGE, page).wait()
        files.fsync(handle)
    finally:
        files.close(handle)


def in_a_process(module: str, of: Mapping[str, Any]) -> dict[str, Any] | str:
    """What a module printed as JSON in a process of its own, given this on its standard input; or
    why there is nothing."""
    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT,
        input=json.dumps(of),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"the process ended with {done.returncode}: {last}"
    given: dict[str, Any] = json.loads(done.stdout)
    return given
