"""Freed memory that stays: engine.freed, and that the command line says so.

Goal: what is freed is still the process's when it allocates next, under `moorage` too; tensors
beyond the limit give their pages back. Method: processes of their own that fill pieces, free them,
and look at what they hold then; without a word to the C library the same pieces must be gone.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.freed import KEPT_BYTES, MAPPED_BYTES

SAY = "import engine.freed; engine.freed.keep_freed()"
PIECES = """
import mmap, numpy as np
def held():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE
def kept(size):
    before = held()
    parts = [np.ones(size // 4, np.uint8) for _ in range(4)]
    del parts
    return held() - before
"""


@pytest.fixture(autouse=True)
def _with_a_library_that_listens() -> None:
    """Only the GNU C library can be told."""
    code = f"{SAY}; print(engine.freed.keep_freed())"
    if said(code) != "True":
        pytest.skip("this C library keeps what it will")


def said(code: str) -> str:
    """What such a process prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def kept(first: str, size: int) -> int:
    """Bytes still held of `size` in four pieces that were filled and freed."""
    return int(said(f"{first}\n{PIECES}\nprint(kept({size}))"))


def test_freed_memory_stays() -> None:
    assert kept(SAY, KEPT_BYTES // 2) > KEPT_BYTES // 4


def test_canary_without_a_word_it_goes() -> None:
    assert kept("", KEPT_BYTES // 2) < KEPT_BYTES // 8


def test_large_pieces_give_their_pages_back() -> None:
    assert kept(SAY, 8 * MAPPED_BYTES) < MAPPED_BYTES


def test_the_command_line_says_so() -> None:
    code = "import io, contextlib, moorage\nwith contextlib.redirect_stdout(io.StringIO()):\n"
    code += " try:\n  moorage.main(['experiment', 'list'])\n except SystemExit:\n  pass"
    assert kept(code, KEPT_BYTES // 2) > KEPT_BYTES // 4
