"""What a trace holds: sizes, sessions, growth, and what an unlimited cache would reuse"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from replay.ideal import BlockIdeal, Ideal
from replay.tokens import Tokens
from replay.trace import Trace

BLOCKS = (16, 64, 512)
"""Block sizes whose reuse is counted: Bailian's and vLLM's, Weka's, Mooncake's."""


def describe(trace: Trace) -> dict[str, Any]:
    """Figures of a trace, ready for JSON.

    `ideal_cached_tokens` counts tokens past no earlier request's prompt and output, `by_block`
    the prompts alone in blocks, whole and partial; shares are of the prompt tokens. `growth` is
    how many tokens a prompt has more than the one it extends. `images` counts one as often as it
    was sent; `image_tokens` are its rows, which are prompt tokens too.
    """
    requests = trace.requests
    prompts = {request.number: request.prompt_tokens for request in requests}
    extending = [request for request in requests if request.extends is not None]
    growth = [prompts[r.number] - prompts[r.extends] for r in extending if r.extends in prompts]
    sessions = {r.session for r in requests if r.session is not None}
    alone = sum(request.session is None for request in requests)
    return {
        "name": trace.name,
        "timing": trace.header.timing,
        "clients": dict(trace.header.clients),
        "requests": len(requests),
        "requests_by_client": dict(Counter(r.client for r in requests if r.client)),
        "kinds": dict(Counter(request.kind for request in requests)),
        "sessions": len(sessions),
        "without_session": alone,
        "span_s": requests[-1].t_s - requests[0].t_s if requests else 0.0,
        "aborted": sum(request.aborted_after is not None for request in requests),
        "prompt_tokens": _sizes(list(prompts.values())),
        "images": sum(len(request.images) for request in requests),
        "image_tokens": sum(image.rows for request in requests for image in request.images),
        "output_tokens": _sizes([request.output_tokens for request in requests]),
        "extends": len(extending),
        "extends_share": len(extending) / len(requests) if requests else 0.0,
        "growth": _sizes(growth),
    } | _ideal(trace)


def _ideal(trace: Trace) -> dict[str, Any]:
    tokens = Tokens(trace)
    exact, cached, total = Ideal(), 0, 0
    blocks = {size: BlockIdeal(size) for size in BLOCKS}
    for request in trace.requests:
        prompt = tokens.prompt(request.number)
        cached += exact.reusable(prompt)
        exact.add(tokens.sequence(request.number))
        for ideal in blocks.values():
            ideal.add(prompt)
        total += len(prompt)
    return {
        "ideal_cached_tokens": cached,
        "ideal_share": cached / total if total else 0.0,
        "by_block": {
            str(size): {
                "cached_tokens": ideal.reusable,
                "share": ideal.reusable / total if total else 0.0,
            }
            for size, ideal in blocks.items()
        },
    }


def _sizes(values: Sequence[int]) -> dict[str, int]:
    """Sum and nearest-rank percentiles; zeros for no values."""
    if not values:
        return {"sum": 0, "p50": 0, "p90": 0, "max": 0}
    p50, p90 = np.quantile(values, [0.5, 0.9], method="inverted_cdf")
    return {"sum": sum(values), "p50": int(p50), "p90": int(p90), "max": max(values)}
