"""Goal: a recording's lines are whole whatever the disk does, and hold no secret.

Method: real files; a write that takes three bytes at a time, one that breaks in the middle, a file
whose last line a crash cut.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from serve import tape as tape_module
from serve.tape import Tape, public_headers


def test_the_tape_goes_on_after_a_cut_line(tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"
    out.write_bytes(b'{"a": 1}\n{"b"')
    out.chmod(0o644)
    for number in (2, 3):
        tape = Tape(out)
        tape.append({"c": number})
        tape.close()
    assert out.read_bytes() == b'{"a": 1}\n{"b"\n{"c":2}\n{"c":3}\n'
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_half_a_write_is_finished_or_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    tape = Tape(tmp_path / "raw.jsonl")
    monkeypatch.setattr(tape_module.os, "write", lambda fd, data: real(fd, data[:3]))
    tape.append({"a": 1})
    answers = iter([3, OSError(28, "full")])

    def breaks(fd: int, data: bytes) -> int:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return real(fd, data[:answer])

    monkeypatch.setattr(tape_module.os, "write", breaks)
    tape.append({"b": 1})
    monkeypatch.setattr(tape_module.os, "write", real)
    tape.append({"c": 1})
    tape.close()
    assert (tmp_path / "raw.jsonl").read_bytes() == b'{"a":1}\n{"b\n{"c":1}\n'
    assert tape.lost == 1


def test_what_is_nested_too_deep_for_a_line_is_lost_and_nothing_else(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "raw.jsonl")
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    tape.append({"a": deep})
    tape.append({"b": 1})
    size = os.stat(tmp_path / "raw.jsonl").st_size
    assert (tape.lost, tape.nbytes) == (1, size)
    tape.close()
    assert json.loads((tmp_path / "raw.jsonl").read_text()) == {"b": 1}
    # Lists so deep are taken apart by a loop, or their end would go down them too.
    while deep:
        deep = deep.pop()


def test_headers_with_secrets_are_left_out() -> None:
    given = [
        (b"Set-Cookie", b"1"),
        (b"X-Goog-Api-Key", b"2"),
        (b"proxy-authorization", b"3"),
        (b"x-auth-token", b"4"),
        (b"x-session-id", b"5"),
        (b"Content-Type", b"\xe9"),
    ]
    assert public_headers(given) == [["x-session-id", "5"], ["Content-Type", "é"]]
