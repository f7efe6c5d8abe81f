"""Raw HTTP recordings: JSON lines of our recorder and of the rigs, as exchanges or a trace"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from engine.bad import BadInput, OnBad, refuse
from engine.chat.clients import identify
from engine.chat.gallery import Gallery
from engine.chat.messages import ChatError, Message, See, messages_of, tools_of
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from engine.pictures.leave_out import Cap
from replay.fields import Fields
from replay.live import LiveTokens
from replay.open import Malformed, read_lines, stem
from replay.readers.exchange import Exchange
from replay.readers.sessions import assign
from replay.readers.wire import NOTHING, OpenWebUiRig, Wire, opencode_rig, own
from replay.scrub import answered, scrub
from replay.trace import Trace

CHAT_PATH = "/chat/completions"
_RIG_KINDS = frozenset({"request", "reply", "mark"})
"""What the Open WebUI rig writes under `kind`; the opencode rig's kinds are others."""


def read(path: Path, on_bad: OnBad = refuse, cap: Cap | None = None) -> Trace:
    """A recording as a trace: rendered, tokenised, scrubbed; with the tokens as they were beside
    it. `cap` is what a prompt may have of images. Raises BadInput as `exchanges`."""
    template, gallery = Template(Tokenizer(), cap=cap), Gallery()
    found = exchanges(path, on_bad, gallery)
    trace = scrub(found, name=stem(path), template=template)
    return replace(trace, live=LiveTokens(answered(found), template, gallery))


def exchanges(path: Path, on_bad: OnBad = refuse, gallery: Gallery | None = None) -> list[Exchange]:
    """The chat requests of a recording in order of arrival, refused ones (4xx, 5xx) included.

    Other paths and requests without a body are passed over. Raises BadInput for the file, and what
    `on_bad` raises for a line it does not pass over: no JSON, a broken image, an unknown role.
    """
    see = (gallery or Gallery()).see
    source = str(path)
    found: list[Exchange] = []
    known: dict[Message, Message] = {}
    for wire in _wires(path, on_bad):
        if not wire.path.partition("?")[0].endswith(CHAT_PATH) or not isinstance(wire.body, dict):
            continue
        try:
            found.append(_exchange(source, wire, known, see))
        except (ChatError, Malformed) as wrong:
            on_bad(BadInput(source, wire.line, str(wrong)))
    if not found:
        raise BadInput(source, None, "the recording holds no chat request that can be read")
    found.sort(key=lambda exchange: (exchange.t_s, exchange.line))
    return assign(found, stem(path))


def _wires(path: Path, on_bad: OnBad) -> Iterator[Wire]:
    """The exchanges of a file, in the order in which their lines were complete."""
    rig = OpenWebUiRig()
    empty = True
    for line, text in read_lines(path):
        empty = False
        try:
            yield from _wire(line, Fields.parse(text), rig)
        except Malformed as wrong:
            on_bad(BadInput(str(path), line, str(wrong)))
    if empty:
        raise BadInput(str(path), None, "the file is empty")
    yield from rig.unanswered()


def _wire(line: int, row: Fields, rig: OpenWebUiRig) -> Iterator[Wire]:
    if row.has("format"):
        yield own(line, row)
    elif row.text("kind") in _RIG_KINDS:
        yield from rig.feed(line, row)
    else:
        yield opencode_rig(line, row)


def _exchange(source: str, wire: Wire, known: dict[Message, Message], see: See) -> Exchange:
    """A chat request. Raises ChatError and Malformed.

    A conversation sends its messages again with every turn: equal ones are kept once.
    """
    if wire.reply is NOTHING:
        raise Malformed("the request has no reply")
    body = Fields.of(wire.body, "'body'").values
    messages = tuple(known.setdefault(m, m) for m in messages_of(body.get("messages"), see))
    tools = tools_of(body.get("tools"))
    who = identify(wire.headers, body, messages, tools)
    return Exchange(
        source=source,
        line=wire.line,
        t_s=wire.t_s,
        t_end_s=max(wire.t_s, wire.t_end_s),
        client=who.client,
        version=who.version,
        kind=who.kind,
        session=who.session,
        parent=who.parent,
        headers=wire.headers,
        body={key: value for key, value in body.items() if key not in ("messages", "tools")},
        messages=messages,
        tools=tools,
        reply=wire.reply,
        usage=wire.usage,
        delivered=wire.delivered,
        status=wire.status,
        mark=wire.mark or {},
    )
