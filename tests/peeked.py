"""What tests of peeks and prewarming share: a client's requests, and a peek held to its request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from served import Served

RULES: list[dict[str, Any]] = [
    {"when": {"kind": "title"}, "say": [["content", "A title"]]},
    {"say": [["reasoning", "Let me think of that for a moment."], ["content", "So it is.\n"]]},
]
CACHE = ("tier", "source", "why", "parted_at", "parted_in", "lost")
ROOMY: dict[str, Any] = {}
POOL: dict[str, Any] = {"park_gib": 0.0003, "pin_gib": 0.0001, "store_gib": 0.0}
"""Room for one conversation or two, so that others go to the drive."""
NONE: dict[str, Any] = {"park_gib": 0.0, "pin_gib": 0.0, "store_gib": 0.0, "guest_tokens": 0}


def words(count: int, of: str) -> str:
    return "".join(f"{of} {n} " for n in range(count // 2 + 1))


def check(said: dict[str, Any], usage: dict[str, Any], served: Served) -> None:
    """A peek said what its request reports."""
    row, cache = served.house.journal.rows[-1], usage["tandem"]["cache"]
    assert {name: said[name] for name in CACHE} == {name: cache[name] for name in CACHE}
    assert said["cached_tokens"] == cache["cached"] == row.cached
    assert said["reread_tokens"] == cache["reread"]
    assert said["tokens"] == usage["prompt_tokens"] and said["served_tokens"] == row.prompt
    assert (said["session"], said["slot"]) == (row.session, row.slot)


def until(done: Callable[[], Any]) -> None:
    end_s = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.005)
