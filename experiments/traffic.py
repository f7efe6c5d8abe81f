"""Made traffic: a few requests as a trace, replayed on the witness, every one verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd

from cache.config import StackConfig
from cache.journal import Journal
from cache.parked import ParkConfig
from cache.stack import Stack
from engine.bad import BadInput
from replay.driver import Options, Replay
from replay.ledger import LedgerRow
from replay.models import stack_config
from replay.progress import progress
from replay.restarts import Restart
from replay.trace import FRESH, SPECIAL, TEXT, WHITESPACE, Header, Parts, Request, Run, Trace
from sim.profile import Profile

APART_S = 3_600.0
"""Between two requests: more than any takes, so that none waits."""
MIB, GIB = 2**20, 2**30


class GateFailed(Exception):
    """A request's state was not what its gate promises; no figure of such a run counts."""


def fresh(tokens: int) -> Run:
    """Tokens that no request had before."""
    return Run(FRESH, TEXT, tokens)


def mark() -> Run:
    """A token that only the template or the engine writes: the end of a thinking or an answer."""
    return Run(FRESH, SPECIAL, 1)


def written(tokens: int) -> tuple[Run, ...]:
    """An answer of so many tokens, the last of which ends it."""
    return (fresh(tokens - 1), mark()) if tokens > 1 else (mark(),)


def head(of: Request, tokens: int) -> Run:
    """The first tokens of a request's prompt and answer."""
    return Run(of.number, 0, tokens)


def message(tokens: int) -> tuple[Run, ...]:
    """A new message of so many tokens, as a template puts it after an answer's end."""
    return Run(FRESH, WHITESPACE, 1), mark(), fresh(tokens - 2)


def whole(of: Request) -> Run:
    """A request's prompt and answer, as the client sends them back."""
    return head(of, of.prompt_tokens + of.output_tokens)


class Traffic:
    """Requests in the order they are asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def ask(
        self,
        *prompt: Run,
        answer: int | Sequence[Run],
        session: str,
        extends: Request | None = None,
        tools: int = 0,
        system: int = 0,
        **more: Any,
    ) -> Request:
        """One more request; `more` are fields of the trace format."""
        number, size = len(self.requests), sum(run.length for run in prompt)
        request = Request(
            number=number,
            id=str(number),
            t_s=number * APART_S,
            prompt=prompt,
            output=written(answer) if isinstance(answer, int) else tuple(answer),
            session=session,
            extends=extends.number if extends is not None else None,
            parts=Parts(system, tools, history=size - system - tools),
            **more,
        )
        self.requests.append(request)
        return request

    def replayed(
        self,
        board: Profile,
        policy: StackConfig | None = None,
        watch: Callable[[LedgerRow, Stack], None] | None = None,
        restarts: tuple[Restart, ...] = (),
        journal: Journal | None = None,
    ) -> list[LedgerRow]:
        """A ledger row a request; raises GateFailed.

        `policy` replaces the board's; `watch` sees the caches after every request.
        """
        return self.played(board, policy, watch, restarts, journal)[0]

    def played(
        self,
        board: Profile,
        policy: StackConfig | None = None,
        watch: Callable[[LedgerRow, Stack], None] | None = None,
        restarts: tuple[Restart, ...] = (),
        journal: Journal | None = None,
    ) -> tuple[list[LedgerRow], Replay]:
        """The same, and the replay that gave it: it knows what the drive did."""
        trace = Trace("made", Header(timing="synthetic"), tuple(self.requests))
        replay = Replay([trace], Options(board, restarts=restarts), journal, policy)
        total = sum(request.prompt_tokens for request in self.requests)
        rows = []
        with progress("replaying", total, unit="tokens") as advance:
            for row in replay:
                if row.over_window:
                    size, window = self.requests[row.number].prompt_tokens, board.window
                    text = f"a request of {size:,} tokens does not fit the window of {window:,}"
                    raise BadInput("--set", None, text)
                held(row)
                if watch is not None:
                    watch(row, replay.box.stack)
                rows.append(row)
                advance(row.prompt)
        return rows, replay


def held(row: LedgerRow) -> None:
    """Raise GateFailed unless the request was checked and passed."""
    if row.checked is None or row.failure:
        raise GateFailed(f"request {row.number}: {row.failure or 'not checked'}")


def refuse_failures(ledger: pd.DataFrame) -> None:
    """Raise GateFailed when a request of a ledger failed its gate, or one that was read has none.

    A client that left during the prefill, or asked for too much, leaves nothing to check.
    """
    read = ledger[~ledger["over_window"] & (ledger["unread"] == 0)]
    for row in ledger[(ledger["failure"] != "")].itertuples():
        raise GateFailed(f"{row.trace}, request {row.number}: {row.failure}")
    if read["checked"].isna().any():
        raise GateFailed("a request was not checked")


def without_tiers(board: Profile) -> Profile:
    """The board with the rows in place alone: no guest, no park, no pin, no store, no drive."""
    off = replace(board, disk=False, spill=False)
    return replace(off, guest_tokens=0, park_bytes=0, pin_bytes=0, store_bytes=0)


def seeds_policy(board: Profile) -> StackConfig:
    """Grid anchors alone, and a park of its own budget that keeps the newest four of them."""
    plain = replace(board, end_anchor=False, checkpoint_tokens=0, anchor_rule="heads")
    park = ParkConfig(park_bytes=board.park_bytes, pin_bytes=0, anchors_spread=0)
    return replace(stack_config(plain), park=park)


Way = TypeVar("Way")


def sweep(
    ways: Mapping[str, Way], points: Sequence[int], value: Callable[[Way, int], float]
) -> dict[str, list[tuple[float, float]]]:
    """A curve's lines: one a way, with its value at every point."""
    return {name: [(at, value(way, at)) for at in points] for name, way in ways.items()}
