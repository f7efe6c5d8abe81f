"""The stack: a plan is what the prefill then does, and making one changes nothing.

Method: the witness; the plan before each turn against the turn's journal row.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import GRID, box, engine, joined, serve, tokens

from cache.account import Account
from cache.anchors import AnchorConfig
from cache.meet import exactly
from cache.types import Ask


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 200), st.integers(1, 20)), max_size=8))
def test_the_peek_says_what_the_turn_reports(steps: list[tuple[float, int, int]]) -> None:
    on, last = box(engine("witness"), anchors=5), tokens(100)
    for seed, (part, size, answer) in enumerate(steps):
        ids = joined(last[: int(part * len(last))], tokens(size, seed))
        peeks = [on.stack.plan(Ask(ids)) for _ in range(2)]
        assert peeks[0].line == peeks[1].line and peeks[0].reason == peeks[1].reason
        written = tokens(answer, seed + 99)
        row, _ = serve(on, ids, written)
        assert (row.cached, row.source, row.why) == (
            peeks[0].line.tokens,
            peeks[0].source,
            peeks[0].reason.code,
        )
        last = joined(ids, written)


def test_a_replaced_conversation_is_remembered_as_such() -> None:
    on, a, b = box(engine("witness")), tokens(6 * GRID, 1), tokens(5 * GRID, 2)
    serve(on, a, tokens(9, 3))
    serve(on, b, tokens(9, 4))
    row, _ = serve(on, joined(a, tokens(5, 5)), tokens(9, 6))
    assert (row.why, row.cached) == ("replaced", 0)
    assert row.lost == {"replaced": 6 * GRID}


def test_meeting_token_by_token() -> None:
    account = Account.empty(100, AnchorConfig())
    account.extend(np.arange(50, dtype=np.int32), 50)
    ids = np.array([0, 1, 2, 9], np.int32)
    met = exactly(account, Ask(ids))
    assert (met.rows, met.copy, met.limit) == (3, 3, 3) and met.served is ids
    assert exactly(account, Ask(ids[:3])).limit == 2


def test_held_bytes_count_rows_anchors_and_end() -> None:
    of = engine("witness")
    on = box(of)
    nothing = {"rows": 0, "anchors": 0, "end": 0, "park": 0, "stash": 0, "store": 0}
    assert on.stack.held_bytes() == nothing
    serve(on, tokens(3 * GRID + 1), tokens(1))
    cost = of.cost()
    assert on.stack.held_bytes() == nothing | {
        "rows": (3 * GRID + 1) * cost.row_bytes,
        "anchors": 3 * cost.anchor_bytes,
        "end": cost.anchor_bytes,
    }
