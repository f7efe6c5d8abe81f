"""The progress bar: silent where nobody looks, moving where somebody does.

Method: standard error of this process, then a console that says it is a terminal.
"""

import io

import pytest
from rich.console import Console

from replay import progress as module
from replay.progress import progress


def test_a_pipe_gets_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("working", 10, unit="things") as advance:
        advance(10)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        module, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=100)
    )
    with progress("working", 1_000, unit="things") as advance:
        advance(400)
        advance(200)
    assert "working" in screen.getvalue() and "600/1,000 things" in screen.getvalue()
