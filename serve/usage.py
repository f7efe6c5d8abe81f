"""The usage frame: OpenAI's counts, what a prompt consists of, and what served it"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cache.journal import TurnRow
from cache.responses import SOURCE as KNOWN
from engine.chat.rendered import Rendered

TIERS = {
    "cold": "none",
    "refused": "none",
    "park": "ram_park",
    "store": "ram_snapshot",
    "spill": "nvme_spill",
    "disk": "disk_tier",
    KNOWN: "response_cache",
    "continuation": "continuation",
    "prepared": "prepared",
}
"""Where the rows were, by what a source begins with; a bare kind of line is in place."""


def tier_of(source: str) -> str:
    """The tier that a source names: resident, a tier's name, or none."""
    return TIERS.get(source.partition(".")[0], "resident")


def parts_of(rendered: Rendered, served: int) -> dict[str, int]:
    """A prompt's tokens by what they are. All but `injected` add up to what the client sent, and
    all together to what was served: an alignment may take tokens out as well, then it is negative.
    """
    return {
        "system": rendered.system,
        "tools": rendered.tools,
        "history": rendered.history,
        "injected": served - len(rendered.ids),
        "images": rendered.images,
    }


def cache_of(row: TurnRow, source: str | None = None) -> dict[str, Any]:
    """What served a prompt, and why nothing served it further."""
    source = source or row.source
    return {
        "tier": tier_of(source),
        "source": source,
        "cached": row.cached,
        "reread": row.prompt - row.cached,
        "why": row.why,
        "parted_at": row.parted_at,
        "parted_in": row.parted_in,
        "lost": dict(row.lost),
    }


def usage_of(
    rendered: Rendered, row: TurnRow, written: int, reasoning: int, source: str | None = None
) -> dict[str, Any]:
    """One answer's usage: `written` tokens that the client sees, `reasoning` of them thought.

    OpenAI's cached tokens are the client's prompt less what was forwarded.
    """
    asked = len(rendered.ids)
    reread = row.prompt - row.cached
    return {
        "prompt_tokens": asked,
        "completion_tokens": written,
        "total_tokens": asked + written,
        "prompt_tokens_details": {"cached_tokens": max(0, asked - reread)},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
        "tandem": {
            "parts": parts_of(rendered, row.prompt),
            "harness": None,
            "cache": cache_of(row, source),
        },
    }


def summed(usages: Sequence[Mapping[str, Any]], n: int | None = None) -> dict[str, Any]:
    """The usage of several answers, `n` to a prompt, or all to one: a prompt is counted once, as
    its first answer read it. The rest is the first prompt's."""
    assert usages
    total = dict(usages[0])
    firsts = usages[:: n or len(usages)]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in firsts)
    total["prompt_tokens"] = sum(usage["prompt_tokens"] for usage in firsts)
    total["prompt_tokens_details"] = {"cached_tokens": cached}
    written = sum(usage["completion_tokens"] for usage in usages)
    thought = sum(usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages)
    total["completion_tokens"] = written
    total["total_tokens"] = total["prompt_tokens"] + written
    total["completion_tokens_details"] = {"reasoning_tokens": thought}
    return total
