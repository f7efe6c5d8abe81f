"""Goal: what `serve-overhead` says was measured on the server that users start, each turn served by
what its row says; and what it found stays mended: nothing waits for an acknowledgement.

Method: the experiment at a small size, its server a process of its own; sockets asked what they do.
Covers experiments.serve_overhead and experiments.served_here. Canaries are at the end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from experiments import serve_overhead
from experiments.registry import find
from experiments.serve_overhead import SOURCES, WAYS, Measured
from experiments.served_here import served_here
from experiments.traffic import GateFailed
from serve.command import _bound
from sim.profile import load

SIZE, ROUNDS, REQUESTS = 1_200, 1, 3


@pytest.fixture(scope="module")
def found() -> list[Measured]:
    return serve_overhead.results((SIZE,), ROUNDS, REQUESTS)


def test_every_turn_was_served_by_what_its_row_says(found: list[Measured]) -> None:
    (one,) = found
    assert SIZE <= one.tokens < SIZE + 200
    for way in WAYS:
        assert [took.source for took in one.ways[way]] == [SOURCES[way]] * ROUNDS
        cached = [took.cached for took in one.ways[way]]
        assert all(
            n == 0 if way == "cold" else 1_024 <= n < took.prompt
            for n in cached
            for took in one.ways[way]
        )
    for took in (*one.streamed, *one.whole):
        assert took.cached > 1_024 and 0.0 < took.engine_s < took.wall_s
    assert all(took.first_s < took.wall_s for took in one.streamed)
    assert all(took.first_s == took.wall_s for took in one.whole)
    assert len({took.message["content"] for took in (*one.streamed, *one.whole)}) == 1


def test_figures_and_rows_are_of_what_was_measured(
    found: list[Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_overhead, "usual", lambda: found)
    experiment, board = find("serve-overhead"), load("spark-27b")
    ours = {figure.key: figure.ours for figure in experiment.run(board, ())}
    size = found[0].tokens
    assert {f"{size}.{way}" for way in ("cold_ms", "memory", "head", "drive")} <= set(ours)
    assert all(value > 0 for value in ours.values())
    memory_s, cold_s = found[0].first_s("memory"), found[0].first_s("cold")
    assert ours[f"{size}.memory"] == pytest.approx(100 * memory_s / cold_s)
    assert experiment.tables is not None
    rows = experiment.tables(board, ())["requests"]
    assert len(rows) == len(WAYS) * ROUNDS + 2 * REQUESTS


def check_sends_at_once(bind: Callable[[], socket.socket]) -> None:
    """A connection of a listening socket sends every piece of an answer as it comes."""

    async def accepted() -> int:
        held: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            of = writer.get_extra_info("socket")
            held.set_result(of.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind()
        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            found = await held
            writer.close()
            await writer.wait_closed()
        return found

    assert asyncio.run(accepted()) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_nothing_waits_for_an_acknowledgement(host: str) -> None:
    if host == "::1" and not _has_six():
        pytest.skip("no IPv6 here")
    check_sends_at_once(lambda: _bound(host, 0))


def _has_six() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_canary_a_socket_that_does_not_say_that_it_is_tcps() -> None:
    def bind() -> socket.socket:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        return listener

    with pytest.raises(AssertionError):
        check_sends_at_once(bind)


@pytest.mark.slow
def test_canary_another_tier_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "memory", "spill.end")
    with pytest.raises(GateFailed, match="memory: end served"):
        serve_overhead.results((SIZE,), ROUNDS, REQUESTS)


def test_a_server_that_does_not_start_is_said() -> None:
    with pytest.raises(GateFailed, match=r"did not start: .*window"), served_here(77):
        pass
