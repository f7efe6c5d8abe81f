"""The ledger: one row a request, what it reused, re-read and cost, and whether its gate held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

import pandas as pd

from cache.budget import LEVELS
from cache.journal import TurnRow
from cache.types import Gate
from cache.why import Why
from replay.columns import disk_columns, memory_columns, reread_by_cause, spill_columns
from replay.diskseen import DiskUse
from replay.schedule import Arrival
from replay.spillseen import SpillUse
from replay.trace import Request
from sim.board import Usage

HOLDERS = ("rows", "anchors", "end", "park", "stash", "store", "encoded", "disk", "spill")
"""What holds memory: rows in place, copies of the sections, what is put aside, what is kept, and
the buffers of what lies on the drive."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One request. Tokens are counts, seconds are the board's."""

    trace: str
    user: int
    number: int
    id: str
    session: str | None
    client: str
    kind: str
    over_window: bool
    """Refused, as a server would refuse it; every count below is then zero."""
    arrival_s: float
    wait_s: float
    """Time in the queue before the box was free."""
    prefill_s: float = 0.0
    ttft_s: float | None = None
    """From the start of the prefill to the first token; None when the client left before it."""
    decode_s: float = 0.0
    prompt: int = 0
    """Tokens the prefill came to: the whole prompt, unless the client left during it."""
    put_back: int = 0
    """Tokens that were served beyond those the client sent: what its copy had left out."""
    unread: int = 0
    """Tokens of the prompt that were never read, because it was refused or cancelled."""
    cached: int = 0
    forwarded: int = 0
    """prompt - cached."""
    new: int = 0
    """Tokens past the longest prefix that any earlier request's rows held."""
    reread: int = 0
    """forwarded - new: computed before, and computed again."""
    reread_grid: int = 0
    reread_evicted: int = 0
    reread_unanchored: int = 0
    reread_slow: int = 0
    reread_replaced: int = 0
    ideal: int = 0
    """What an unlimited, token-exact cache would have reused: prompt - new."""
    output: int = 0
    rounds: int = 0
    source: str = "refused"
    guest: bool = False
    """It borrowed the rows in place, which were put back after it."""
    slot: int = 0
    gate: str = ""
    why: str = ""
    parted_at: int = 0
    parted_in: str | None = None
    finish: str = ""
    end: str = ""
    taint: int | None = None
    extends: int | None = None
    followup: bool = False
    """Extends the conversation's previous turn with no edit by the user."""
    end_resume: bool = False
    """Resumed where the turn it extends ended."""
    checked: str | None = None
    """The gate it was checked against: bits, greedy, or None."""
    failure: str = ""
    held_rows: int = 0
    held_anchors: int = 0
    held_end: int = 0
    held_park: int = 0
    held_stash: int = 0
    held_store: int = 0
    held_encoded: int = 0
    held_disk: int = 0
    held_spill: int = 0
    """Bytes after it. The rows lie in the engine's own buffers, all others beside them."""
    reserve: int = 0
    """Freed blocks after it that went back to no driver."""
    workspace: int = 0
    """Bytes its prefill took beside weights, buffers and caches when most was held."""
    peak: int = 0
    """Bytes the driver had given out when most was held, the allocator's reserve among them."""
    over_peak_s: float = 0.0
    over_board_s: float = 0.0
    """Seconds of its prefill above the peak, and above all the memory there is."""
    over_ceiling_s: float = 0.0
    """Seconds above the ceiling while nothing was served, before it came."""
    no_room: bool = False
    """Refused, because its prefill did not fit the peak; every count is then zero."""
    retry_after_s: int = 0
    shed_encoded: int = 0
    shed_store: int = 0
    shed_anchors: int = 0
    shed_end: int = 0
    shed_stash: int = 0
    shed_park: int = 0
    shed_pin: int = 0
    """Bytes that caches gave back for it."""
    process: int = 0
    """Restarts before it."""
    restore_s: float = 0.0
    """Seconds until its prefill could begin, most of them waiting for the drive."""
    save_s: float = 0.0
    """Of these, or while it wrote: seconds in which conversations went to the drive."""
    spared_s: float = 0.0
    """Prefill that it did not need for a line that came from the drive, against the next best."""
    disk_read: int = 0
    disk_written: int = 0
    """Board bytes since the request before."""
    disk_held: int = 0
    """Bytes of the disk tier's files after it."""
    disk_anchors: int = 0
    disk_drops: int = 0
    disk_gone: int = 0
    """Anchors written and not written, and what went from the drive, since the request before."""
    spill_read: int = 0
    spill_written: int = 0
    """Board bytes of conversations since the request before."""
    spill_held: int = 0
    """Bytes of their files after it."""
    spill_saves: int = 0
    spill_gone: int = 0
    """Conversations written, as far as they had changed, and gone, since the request before."""


def refused(
    trace: str,
    arrival: Arrival,
    request: Request,
    wait_s: float,
    *,
    retry_after_s: int | None = None,
    usage: Usage | None = None,
    process: int = 0,
) -> LedgerRow:
    """The row of a request whose prompt does not fit the window, or not now the memory."""
    return LedgerRow(
        trace=trace,
        user=arrival.user,
        number=request.number,
        id=request.id,
        session=request.session,
        client=request.client,
        kind=request.kind,
        over_window=retry_after_s is None,
        arrival_s=arrival.at_s,
        wait_s=wait_s,
        unread=request.prompt_tokens,
        extends=request.extends,
        no_room=retry_after_s is not None,
        retry_after_s=retry_after_s or 0,
        process=process,
        **memory_columns(usage),
    )


@dataclass(frozen=True, slots=True)
class Served:
    """What the driver saw of a served request, beside the journal's row."""

    held: int
    """Longest prefix of the prompt that any earlier request's rows held."""
    ttft_s: float | None
    end_before: int | None
    """End anchor after the request this one extends."""
    checked: Gate | None
    failure: str
    usage: Usage | None = None
    """What the board held meanwhile."""
    shed: Mapping[str, int] = field(default_factory=dict)
    """Bytes given back for it, by level."""
    process: int = 0
    disk: DiskUse | None = None
    spill: SpillUse | None = None
    restore_s: float = 0.0
    spared_s: float = 0.0


def served(
    trace: str, arrival: Arrival, request: Request, wait_s: float, turn: TurnRow, saw: Served
) -> LedgerRow:
    """The row of a request that a turn served."""
    prompt = turn.cached + turn.forwarded
    ideal = min(saw.held, prompt)
    causes = reread_by_cause(turn, ideal)
    return LedgerRow(
        trace=trace,
        user=arrival.user,
        number=request.number,
        id=request.id,
        session=request.session,
        client=request.client,
        kind=request.kind,
        over_window=False,
        arrival_s=arrival.at_s,
        wait_s=wait_s,
        prefill_s=turn.prefill_s,
        ttft_s=saw.ttft_s,
        decode_s=turn.decode_s,
        prompt=prompt,
        put_back=turn.prompt - turn.asked,
        unread=turn.prompt - prompt,
        cached=turn.cached,
        forwarded=turn.forwarded,
        new=prompt - ideal,
        reread=ideal - turn.cached,
        reread_grid=causes[Why.GRID],
        reread_evicted=causes[Why.EVICTED],
        reread_unanchored=causes[Why.UNANCHORED],
        reread_slow=causes[Why.SLOW],
        reread_replaced=causes[Why.REPLACED],
        ideal=ideal,
        output=turn.output,
        rounds=turn.rounds,
        source=turn.source,
        guest=turn.guest,
        slot=turn.slot,
        gate=turn.gate,
        why=turn.why,
        parted_at=turn.parted_at,
        parted_in=turn.parted_in,
        finish=turn.finish,
        end=turn.end,
        taint=turn.taint,
        extends=request.extends,
        followup=request.extends is not None,
        # Another conversation's copy of the same rows serves as well.
        end_resume=saw.end_before is not None and turn.cached >= saw.end_before,
        checked=None if saw.checked is None else saw.checked.name.lower(),
        failure=saw.failure,
        **{f"held_{name}": turn.held_bytes.get(name, 0) for name in HOLDERS},
        **{f"shed_{name}": saw.shed.get(name, 0) for name in LEVELS},
        **memory_columns(saw.usage),
        process=saw.process,
        restore_s=saw.restore_s,
        spared_s=saw.spared_s,
        **disk_columns(saw.disk),
        **spill_columns(saw.spill),
    )


_DTYPES = {"bool": "bool", "int": "int64", "float": "float64", "int | None": "Int64"}


def to_frame(rows: Iterable[LedgerRow]) -> pd.DataFrame:
    """The ledger as a frame; its columns have their types even when it is empty."""
    names = [field.name for field in fields(LedgerRow)]
    data = [{name: getattr(row, name) for name in names} for row in rows]
    frame = pd.DataFrame(data, columns=names)
    return frame.astype(
        {f.name: _DTYPES[str(f.type)] for f in fields(LedgerRow) if str(f.type) in _DTYPES}
    )
