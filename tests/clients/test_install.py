"""Goal: what the client tests rest on holds without the clients: installing, waiting, judging.

Method: clients made up of small commands; processes that leave children; turns written by hand.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from install import CLIENTS, Client, install, main
from moored import Turn, follow
from processes import NeverCame, Processes, free_port, wait_for

WRITES = "import pathlib; pathlib.Path('tool').write_text('x')"
TURN = Turn("s", "opencode", "turn", 900, 0, 101, "cold", "new", "stop", False, 0)


def made(*steps: tuple[str, ...]) -> Client:
    return Client("made", "tool", "1", steps)


def test_a_client_is_installed_once(tmp_path: Path) -> None:
    client = made(("{python}", "-c", WRITES))
    assert "make test-clients" in (client.missing(tmp_path) or "")
    assert install(client, tmp_path) is None and client.missing(tmp_path) is None
    kept = (tmp_path / "made/tool").stat().st_mtime_ns
    assert install(client, tmp_path) is None
    assert (tmp_path / "made/tool").stat().st_mtime_ns == kept
    # another version is another client
    assert install(replace(client, version="2"), tmp_path) is None
    assert (tmp_path / "made/tool").stat().st_mtime_ns != kept


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (("no-such-npm", "install"), "there is no no-such-npm here"),
        (("{python}", "-c", "print('no network'); raise SystemExit(1)"), "no network"),
        (("{python}", "-c", "pass"), "tool was not installed"),
    ],
)
def test_a_client_that_cannot_be_installed_says_why(
    tmp_path: Path, step: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = made(step)
    main(tmp_path, [client])
    assert why in (client.missing(tmp_path) or "")
    assert f"its tests are skipped: {client.missing(tmp_path)}" in capsys.readouterr().out
    # it comes back as soon as it can be installed
    assert install(made(("{python}", "-c", WRITES)), tmp_path) is None
    assert client.missing(tmp_path) is None


def test_the_clients_have_the_versions_that_were_recorded() -> None:
    assert {client.name: client.version for client in CLIENTS} == {
        "opencode": "1.18.33",
        "openwebui": "0.12.4",
    }
    for client in CLIENTS:
        assert any(client.version in part for step in client.steps for part in step)


PARENT = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep({seconds})"
)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that waits to be taken note of has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("seconds", [0, 600])
def test_no_child_of_a_process_outlives_it(tmp_path: Path, seconds: int) -> None:
    processes = Processes(tmp_path)
    processes.start("parent", [sys.executable, "-c", PARENT.format(seconds=seconds)], tmp_path)
    child = int(wait_for("the child", lambda: processes.said("parent").strip()))
    assert os.kill(child, 0) is None
    processes.close()
    wait_for("the child's end", lambda: gone(child), 10.0)


def test_waiting_ends_with_what_is_found_or_says_what_never_came() -> None:
    begun_s = time.monotonic()
    assert wait_for("it", lambda: time.monotonic() > begun_s + 0.05, pause_s=0.01)
    with pytest.raises(NeverCame, match="the moon: not within 0 s"):
        wait_for("the moon", lambda: False, 0.05, 0.01)
    assert free_port() > 1023


def test_a_turn_that_resumes_at_the_end_of_the_one_before() -> None:
    after = replace(TURN, prompt=1_200, cached=1_000, source="end", why="end")
    follow([TURN, after])
    follow([TURN, replace(after, source="spill.end")])
    follow([TURN, replace(after, cached=896, source="park.grid", why="parted")], {1: "parted"})


@pytest.mark.parametrize(
    "fault",
    [
        {"cached": 0, "source": "cold", "why": "new"},
        {"cached": 896, "source": "grid"},
        {"cached": 999, "source": "end"},
        {"cached": 1_000, "source": "checkpoint"},
    ],
)
def test_canary_a_turn_that_resumes_elsewhere(fault: dict[str, object]) -> None:
    after = replace(TURN, prompt=1_200, cached=1_000, source="end", why="end")
    with pytest.raises(AssertionError):
        follow([TURN, replace(after, **fault)])


def test_canary_a_change_that_cost_all_or_nothing() -> None:
    after = replace(TURN, prompt=1_200, cached=1_000, source="end", why="parted")
    for cached in (0, 1_000):
        with pytest.raises(AssertionError):
            follow([TURN, replace(after, cached=cached)], {1: "parted"})
