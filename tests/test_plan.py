"""A plan says where a prefill would start, what it would read, and where that comes from.

Method: plans of a stack at rest, beside what the turn then does.
"""

from __future__ import annotations

import numpy as np
from support import GRID, box, engine, joined, serve, tokens

from cache.plan import Plan
from cache.types import COLD, Ask


def test_a_cold_plan_forwards_all() -> None:
    on = box(engine("witness"))
    ids = tokens(100)
    plan = on.stack.plan(Ask(ids))
    assert isinstance(plan, Plan)
    assert (plan.line, plan.source, plan.forwarded) == (COLD, "cold", 100)
    assert plan.served is ids


def test_a_plan_is_what_the_turn_does() -> None:
    on = box(engine("witness"), park_rows=4_000, store_bytes=200_000)
    head = tokens(3 * GRID + 5)
    texts = {who: joined(head, tokens(4 * GRID, ord(who))) for who in "ab"}
    for who in "abab":
        ask = Ask(texts[who], who)
        plan = on.stack.plan(ask)
        again = on.stack.plan(ask)
        assert (plan.line, plan.source) == (again.line, again.source)
        written = tokens(9, 7)
        row, _ = serve(on, texts[who], written, session=who)
        assert (row.source, row.cached, row.forwarded) == (
            plan.source,
            plan.line.tokens,
            plan.forwarded,
        )
        assert np.array_equal(plan.served, texts[who])
        texts[who] = joined(texts[who], written, tokens(20, 8))
    assert row.source == "park.end"
