"""Where a prompt's last user message and its conversation's first answer start, as far as known"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from replay.source import Marks
from replay.trace import FRESH, Request, Run, Trace


class _Said(NamedTuple):
    """Tokens [start, stop) of a sequence that request `by` answered."""

    start: int
    stop: int
    by: int


def marks(trace: Trace) -> dict[int, Marks]:
    """The marks of a trace's prompts, from its runs and the sizes of its heads.

    A conversation's answers are what a prompt copies of its earlier requests' outputs. Without any
    the user's message follows the head; with some it follows the last, unless that one called
    tools: then what follows are their results, and the message is the one it answered. A client
    that leaves out what an answer begins with still has it start where that request's prompt ended.
    """
    requests = {request.number: request for request in trace.requests}
    said: dict[int, list[_Said]] = {}
    found: dict[int, Marks] = {}
    for request in trace.requests:
        copied = list(_copied(request.prompt, said))
        own = [one for one in copied if requests[one.by].session == request.session]
        found[request.number] = _marks(request, own, requests, found)
        start = request.prompt_tokens
        written = _Said(start, start + request.output_tokens, request.number)
        said[request.number] = [*copied, written] if request.output_tokens else copied
    return found


def _marks(
    request: Request, own: list[_Said], requests: dict[int, Request], found: dict[int, Marks]
) -> Marks:
    """One prompt's, by the answers of its conversation in it."""
    if not own:
        return Marks(last_user=request.parts.tools + request.parts.system)
    first, last = own[0], own[-1]
    begins = min(first.start, requests[first.by].prompt_tokens)
    if requests[last.by].finish == "tool_calls":
        return Marks(min(found[last.by].last_user, last.start), begins)
    return Marks(last.stop, begins)


def _copied(runs: tuple[Run, ...], said: dict[int, list[_Said]]) -> Iterator[_Said]:
    """The answers among tokens that runs bring, ascending."""
    at = 0
    for run in runs:
        known = said[run.src] if run.src != FRESH else []
        for one in known[bisect_right(known, run.offset, key=lambda one: one.stop) :]:
            start, stop = max(one.start, run.offset), min(one.stop, run.offset + run.length)
            if start >= stop:
                break
            yield _Said(at + start - run.offset, at + stop - run.offset, one.by)
        at += run.length
