"""Weka's coding-agent sessions: one JSON document each, 64-token blocks with local ids

A block id stands for the whole prefix up to it; the last, partial block has none. Requests of a
sub-agent are nested, with times from its start. `think_time` counts from the end of the agent's
previous request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bad import BadInput, OnBad, refuse
from replay.fields import SEQUENCE_MAX, Fields, shown
from replay.open import Malformed, read_document, stem
from replay.readers.blocks import (
    BlockIds,
    Blocks,
    block_ids,
    joined,
    left_numbers,
    small_ids,
)
from replay.trace import FRESH, TEXT, Header, Parts, Request, Run, Trace

CLIENT = "claude-code"
NOTES = (
    "Weka session: runs come from block ids, the longest block prefix of an earlier request. Where "
    "a prompt begins with all full blocks of its chain's last prompt, it is taken to begin with "
    "that whole prompt, its partial block included, and the last answer is assumed to come back "
    "first in what the prompt adds, as far as that goes. The rest is fresh text."
)
_FINISH = {"": "stop", "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls"}
_FINISH |= {"max_tokens": "length"}
_EXTRA = ("model", "api_time", "ttft")


@dataclass(slots=True)
class _Call:
    """A request as recorded."""

    t_s: float
    place: int
    session: str
    kind: str
    tokens: int
    answer: int
    ids: BlockIds
    finish: str
    think_s: float | None
    api_s: float
    tools: int
    system: int
    extra: dict[str, Any]


@dataclass(slots=True)
class _Tip:
    """The last request of a chain."""

    number: int
    call: _Call


def read(path: Path, on_bad: OnBad = refuse) -> Trace:
    """Read one conversation. Raises BadInput for the document, and what `on_bad` raises for a
    request it does not pass over."""
    document, source = read_document(path), str(path)
    bad: list[int] = []

    def pass_over(place: int, what: str) -> None:
        on_bad(BadInput(source, None, f"request {place}: {what}"))
        bad.append(place)

    try:
        top = Fields.of(document, "the document")
        if top.text("hash_id_scope", "local") != "local":
            raise Malformed(f"hash_id_scope {shown(top.values['hash_id_scope'])} is not known")
        block = top.whole("block_size", 1, SEQUENCE_MAX)
        name = top.text("id", stem(path))
        places = list(_places(top, name))
    except Malformed as wrong:
        raise BadInput(source, None, str(wrong)) from None
    calls: list[_Call] = []
    for place, (row, agent, session, start_s) in enumerate(places):
        try:
            calls.append(_call(Fields.of(row, "it"), place, agent, session, start_s, block))
        except Malformed as wrong:
            pass_over(place, str(wrong))
    if not calls:
        raise BadInput(source, None, "the session holds no request")
    calls.sort(key=lambda call: (call.t_s, call.place))
    requests = _requests(calls, left_numbers(bad, len(places)), block, name)
    header = Header(clients={CLIENT: ""}, notes=NOTES)
    return Trace(stem(path), header, tuple(requests))


def _places(top: Fields, name: str) -> Iterator[tuple[Any, Fields, str, float]]:
    """Every request with whose it is: (request, agent's fields, session, agent's start in s)."""
    for row in top.items("requests"):
        if not isinstance(row, dict) or row.get("type") != "subagent":
            yield row, top, name, 0.0
            continue
        agent = Fields(row)
        session = f"{name}/{agent.text('agent_id', 'agent')}"
        for nested in agent.items("requests"):
            yield nested, agent, session, agent.finite("t")


def _call(
    row: Fields, place: int, agent: Fields, session: str, start_s: float, block: int
) -> _Call:
    tokens = row.whole("in", 1, SEQUENCE_MAX)
    ids = block_ids(row.items("hash_ids"))
    if len(ids) != tokens // block:
        raise Malformed(f"{len(ids)} hash ids for {tokens} tokens, not {tokens // block}")
    stop = row.text("stop", "")
    return _Call(
        t_s=start_s + row.finite("t"),
        place=place,
        session=session,
        kind="subagent" if "agent_id" in agent.values else "turn",
        tokens=tokens,
        answer=row.whole("out", 0, SEQUENCE_MAX - tokens),
        ids=ids,
        finish=_FINISH.get(stop, stop),
        think_s=row.finite_or("think_time", None),
        api_s=row.finite_or("api_time", 0.0),
        tools=agent.whole_or("tool_tokens", 0),
        system=agent.whole_or("system_tokens", 0),
        extra={key: row.values[key] for key in _EXTRA if row.has(key)},
    )


def _requests(calls: list[_Call], numbers: list[int], block: int, main: str) -> Iterator[Request]:
    rows, count = small_ids([call.ids for call in calls])
    blocks = Blocks(block, count)
    tips: dict[str, list[_Tip]] = {}
    last: dict[str, _Tip] = {}
    for call, ids, number in zip(calls, rows, numbers, strict=True):
        call.ids = ids
        open_tips = tips.setdefault(call.session, [])
        tip = _extended(open_tips, call)
        runs = _prompt(blocks, call, tip)
        extends = tip.number if tip and runs[0].src == tip.number else None
        before = last.get(call.session) or last.get(main)
        think_s = 0.0
        if before:
            gap_s = call.t_s - before.call.t_s - before.call.api_s
            same = before.call.session == call.session and call.think_s is not None
            think_s = call.think_s if same else max(0.0, gap_s)
        tools = min(call.tools, call.tokens)
        system = min(call.system, call.tokens - tools)
        yield Request(
            number=number,
            id=f"{call.session}#{number}",
            t_s=call.t_s - calls[0].t_s,
            prompt=runs,
            output=(Run(FRESH, TEXT, call.answer),) if call.answer else (),
            session=call.session,
            client=CLIENT,
            kind=call.kind,
            after=before.number if before else None,
            think_s=think_s,
            extends=extends,
            parts=Parts(system, tools, call.tokens - tools - system),
            finish=call.finish,
            extra=call.extra,
        )
        blocks.add(number, ids, call.tokens)
        if tip and extends is not None:
            open_tips.remove(tip)
        last[call.session] = _Tip(number, call)
        open_tips.append(last[call.session])


def _extended(open_tips: list[_Tip], call: _Call) -> _Tip | None:
    """The longest last prompt all of whose full blocks this longer one begins with."""
    best: _Tip | None = None
    for tip in open_tips:
        full = len(tip.call.ids)
        if not full or tip.call.tokens >= call.tokens or full > len(call.ids):
            continue
        # An id names its whole prefix, so one id tells.
        begins = tip.call.ids[-1] == call.ids[full - 1]
        if begins and (best is None or tip.call.tokens >= best.call.tokens):
            best = tip
    return best


def _prompt(blocks: Blocks, call: _Call, tip: _Tip | None) -> tuple[Run, ...]:
    shared = blocks.prefix(call.ids, call.tokens)
    if tip and (shared is None or shared.length <= tip.call.tokens):
        back = min(tip.call.answer, call.tokens - tip.call.tokens)
        shared = Run(tip.number, 0, tip.call.tokens + back)
    if shared is None:
        return (Run(FRESH, TEXT, call.tokens),)
    return joined([shared, Run(FRESH, TEXT, call.tokens - shared.length)])
