"""The bundled night: what it holds, that every resume of it is exact, and that models agree.

Method: the shipped trace on the spark-27b board: its first requests on the witness and on the
random hybrid, and all of it on both as slow tests.
"""

from collections import Counter

import pandas as pd
import pytest

from cache.ports import PAGE
from replay.commands import NIGHT
from replay.driver import Options, Replay
from replay.ledger import to_frame
from replay.trace import Trace
from replay.tracefile import read_trace
from sim.profile import load

BOARD = load("spark-27b")
BYTES = ("_read", "_written", "_held")


@pytest.fixture(scope="module")
def night() -> Trace:
    return read_trace(NIGHT)


def beginning(night: Trace, count: int) -> Trace:
    """Its first requests."""
    return Trace(night.name, night.header, night.requests[:count])


def test_it_holds_what_a_night_has(night: Trace) -> None:
    """At least 8 agent sessions, 12 chats, 600 requests, contexts past 100k, what clients do."""
    requests = night.requests
    assert len(requests) >= 600
    kinds = Counter((request.client, request.kind) for request in requests)
    assert kinds["opencode", "compaction"] >= 2
    for client, kind in (
        ("opencode", "turn"),
        ("opencode", "title"),
        ("opencode", "subagent"),
        ("openwebui", "turn"),
        ("openwebui", "title"),
        ("openwebui", "tags"),
        ("openwebui", "followups"),
    ):
        assert kinds[client, kind] > 0, (client, kind)
    sessions = {
        client: {r.session for r in requests if r.client == client and r.kind == "turn"}
        for client in ("opencode", "openwebui")
    }
    assert len(sessions["opencode"]) >= 8 and len(sessions["openwebui"]) >= 12
    long = {request.session for request in requests if request.prompt_tokens > 100_000}
    assert len(long) >= 2
    assert sum(request.aborted_after is not None for request in requests) >= 4
    assert sum(request.think_end is not None for request in requests) > 300
    assert NIGHT.stat().st_size < 2_000_000
    assert set(night.header.clients) == {"opencode", "openwebui"}


def holds(night: Trace) -> pd.DataFrame:
    """The witness's ledger, after every request was seen to hold its gate."""
    seen = to_frame(Replay([night], Options(BOARD)))
    assert len(seen) == len(night.requests)
    assert seen["checked"].notna().all()
    assert (seen["failure"] == "").all(), seen[seen["failure"] != ""]
    assert (seen["cached"] + seen["reread"] + seen["new"] == seen["prompt"]).all()
    return seen


def test_the_nights_beginning_holds_its_gates_on_the_witness(night: Trace) -> None:
    seen = holds(beginning(night, 120))
    assert (seen["checked"] == "bits").sum() > 20 and (seen["checked"] == "greedy").sum() > 20


@pytest.mark.slow
def test_every_request_holds_its_gate_on_the_witness(night: Trace) -> None:
    seen = holds(night)
    assert (seen["checked"] == "bits").sum() > 100 and (seen["checked"] == "greedy").sum() > 100


def agrees(night: Trace, verify: float) -> pd.DataFrame:
    """The random model's ledger, after holding it to the witness's column by column."""
    computed = to_frame(Replay([night], Options(BOARD, model="random", verify=verify)))
    expected = to_frame(Replay([night], Options(BOARD, verify=verify)))
    assert (computed["failure"] == "").all(), computed[computed["failure"] != ""]
    # A model with more sections has longer headers in its files, and what it is made of may take
    # a page more to write down; all else on the drive is alike.
    drive = ("disk_", "spill_")
    files = [name for name in computed if name.startswith(drive) and name.endswith(BYTES)]
    files += ["held_disk", "held_spill", "reserve", "peak", "restore_s", "save_s"]
    for name in files:
        page = PAGE if name.endswith(BYTES) else None
        close = pytest.approx(expected[name].to_numpy(), rel=1e-3, abs=page)
        assert computed[name].to_numpy() == close, name
    pd.testing.assert_frame_equal(computed.drop(columns=files), expected.drop(columns=files))
    return computed


def test_the_random_model_agrees_on_the_nights_beginning(night: Trace) -> None:
    computed = agrees(beginning(night, 16), verify=0.5)
    assert (computed["checked"] == "bits").sum() >= 4
    assert {"end", "park.end", "park.grid"} <= set(computed["source"])


@pytest.mark.slow
@pytest.mark.timeout(5_400)
def test_the_random_model_agrees_on_the_whole_night(night: Trace) -> None:
    computed = agrees(night, verify=0.15)
    assert (computed["checked"] == "bits").sum() >= 40
