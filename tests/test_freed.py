"""Freed memory that stays: engine.freed, and that the command line says so.

Goal: what is allocated, freed and allocated again costs no page faults a second time, under
`moorage` too; tensors beyond the limit still give their pages back. Method: processes of their own
that count the faults of a loop; without a word to the C library the same loop must show them.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.freed import KEPT_BYTES, MAPPED_BYTES

SAY = "import engine.freed; engine.freed.keep_freed()"
LOOP = """
import resource, numpy as np
def taken(size):
    parts = [np.ones(size // 4, np.uint8) for _ in range(4)]
    return sum(int(part[0]) for part in parts)
def faults(size):
    taken(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        taken(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""
PAGE = 4096


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


def faults(first: str, size: int) -> int:
    """Page faults of 20 rounds that take four pieces of `size` bytes together and free them."""
    return int(said(f"{first}\n{LOOP}\nprint(faults({size}))"))


def test_memory_is_not_faulted_in_anew() -> None:
    size = KEPT_BYTES // 2
    assert faults(SAY, size) < size // PAGE


def test_canary_without_a_word_it_is() -> None:
    assert faults("", KEPT_BYTES // 2) > KEPT_BYTES // 2 // PAGE


def test_large_pieces_give_their_pages_back() -> None:
    size = 4 * (MAPPED_BYTES + PAGE)
    assert faults(SAY, size) > size // PAGE


def test_the_command_line_says_so() -> None:
    code = "import io, contextlib, moorage\nwith contextlib.redirect_stdout(io.StringIO()):\n"
    code += " try:\n  moorage.main(['experiment', 'list'])\n except SystemExit:\n  pass"
    size = KEPT_BYTES // 2
    assert faults(code, size) < size // PAGE
