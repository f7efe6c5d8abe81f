"""Exchanges to a trace: rendered, tokenised, found again as runs; no text and no id is left"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from cache.types import Valued
from engine.bad import BadInput
from engine.chat.rendered import Shown, moved
from engine.chat.template import Template
from engine.chat.tokenizer import SPECIAL, WHITESPACE, Tokenizer
from replay.links import TURNS, Links
from replay.pieces import SPECIALS_END
from replay.readers.exchange import Exchange
from replay.runs import RunFinder
from replay.trace import NAMES, Header, Image, Parts, Request, Trace, values

SALT_BYTES = 16
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
_FINISHES = frozenset({"stop", "length", "tool_calls", "content_filter"})


def scrub(
    exchanges: Iterable[Exchange],
    *,
    name: str,
    salt: bytes | None = None,
    template: Template | None = None,
    versions: Mapping[str, str] | None = None,
    licence: str = "",
    notes: str = "",
) -> Trace:
    """The trace of recorded exchanges, from any number of files.

    Refused requests (4xx, 5xx) computed nothing: they are left out, and counted in the header's
    notes. Session ids and the digests of images become hashes with `salt`, by default one that is
    drawn and forgotten.
    `versions` gives client versions that headers don't tell. Where the marks of a plan say that it
    ran `factor` times too fast, arrivals are stretched by it and the timing is synthetic; a mark's
    `think_s` stands for the pause that was measured. Raises BadInput when nothing is left.
    """
    ordered = sorted(exchanges, key=lambda exchange: exchange.t_s)
    kept = answered(ordered)
    if not kept:
        raise BadInput(name, None, "no request of the recording was answered")
    factor = _factor(kept, name)
    salt = salt or secrets.token_bytes(SALT_BYTES)
    work = _Scrub(kept[0].t_s, factor, salt, template or Template(Tokenizer()))
    requests = tuple(work.request(exchange) for exchange in kept)
    refused = Counter(exchange.status for exchange in ordered if exchange.failed)
    told = [notes, *(f"{n} refused with {status}, left out" for status, n in refused.items())]
    if factor != 1:
        told.append(f"recorded at {factor:g} times the speed of its plan, arrivals stretched")
    header = Header(
        clients={e.client: e.version for e in kept} | dict(versions or {}),
        timing="recorded" if factor == 1 else "synthetic",
        tokenizer=work.tokenizer,
        licence=licence,
        notes="; ".join(text for text in told if text),
    )
    return Trace(name, header, requests)


def answered(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """The exchanges that become a trace's requests, in their order."""
    ordered = sorted(exchanges, key=lambda exchange: exchange.t_s)
    return [exchange for exchange in ordered if not exchange.failed]


class _Scrub:
    """A trace in the making: what was seen, and the next request's number."""

    def __init__(self, start_s: float, factor: float, salt: bytes, template: Template) -> None:
        self._template = template
        tokenizer = template.tokenizer
        self.tokenizer = f"{tokenizer.name} {tokenizer.sha256[:16]}"
        self._runs = RunFinder(tokenizer.classes, names=names(tokenizer))
        self._values = _Values()
        self._links = Links()
        self._start_s, self._factor = start_s, factor
        self._salt = salt
        self._count = 0

    def request(self, exchange: Exchange) -> Request:
        """The next request, in order of arrival."""
        number = self._count
        self._count += 1
        prompt = self._template.render(exchange.messages, exchange.tools)
        answer = self._template.answer_ids(exchange.reply, exchange.messages)
        runs = self._runs.add(
            prompt.ids, answer.ids, exchange.session, leads=exchange.kind in TURNS
        )
        after = self._links.after(exchange)
        extends = self._links.extends(exchange)
        self._links.add(number, exchange)
        spans = [*prompt.valued, *moved(answer.valued, len(prompt.ids))]
        request = Request(
            number=number,
            id=f"r{number}",
            t_s=round((exchange.t_s - self._start_s) * self._factor, 3),
            prompt=runs[0],
            output=runs[1],
            session=self._hashed(exchange.session),
            client=exchange.client,
            kind=exchange.kind,
            after=after[0] if after else None,
            think_s=round(_think_s(exchange, after[1]), 3) if after else 0.0,
            extends=extends,
            parts=Parts(prompt.system, prompt.tools, prompt.history, prompt.images),
            think_end=answer.think_end,
            finish=_finish(exchange),
            max_tokens=_max_tokens(exchange.body),
            sampling=_sampling(exchange.body),
            aborted_after=len(answer.ids) if exchange.reply.aborted else None,
            images=tuple(self._image(shown) for shown in prompt.shown),
        )
        return self._values.named(request, spans)

    def _image(self, shown: Shown) -> Image:
        """An image under a digest that tells nobody whether a picture he has was sent."""
        picture = shown.image.picture
        digest = hashlib.blake2b(picture.digest, key=self._salt, digest_size=32).hexdigest()
        return Image(shown.start, picture.rows, digest)

    def _hashed(self, session: str | None) -> str | None:
        if session is None:
            return None
        return hashlib.blake2b(session.encode(), key=self._salt, digest_size=8).hexdigest()


def names(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Names of the tokens that hold no text, by id; -1 for the others."""
    found = np.full(tokenizer.vocab, -1, np.int64)
    ranges = ((SPECIAL, 0, SPECIALS_END), (WHITESPACE, SPECIALS_END, NAMES))
    for kind, start, stop in ranges:
        ids = np.flatnonzero(tokenizer.classes == kind)[: stop - start]
        found[ids] = start + np.arange(len(ids))
    return found


class _Values:
    """The values of a trace as numbers: what a tool call says is text."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._spans: dict[int, list[Valued]] = {}

    def named(self, request: Request, spans: Sequence[Valued]) -> Request:
        """The request with those of its spans that its runs don't bring along."""
        numbers = self._numbers
        wanted = [
            Valued(span.start, span.stop, numbers.setdefault(span.value, len(numbers)))
            for span in spans
        ]
        brought = set(values(request, self._spans))
        own = tuple(
            (span.start, span.stop - span.start, numbers[value.value])
            for span, value in zip(wanted, spans, strict=True)
            if span not in brought
        )
        request = replace(request, values=own)
        self._spans[request.number] = values(request, self._spans)
        return request


def _factor(exchanges: Sequence[Exchange], name: str) -> float:
    """How many times too fast the plan behind a recording ran; 1 without one."""
    given = [exchange.mark["factor"] for exchange in exchanges if "factor" in exchange.mark]
    if not given:
        return 1.0
    factor = given[0]
    if any(other != factor for other in given) or not _number(factor) or factor <= 0:
        raise BadInput(name, None, "the marks do not agree on one speed of the plan")
    return float(factor)


def _think_s(exchange: Exchange, measured_s: float) -> float:
    """Seconds a request was thought about: the plan's behind the recording, else as measured."""
    planned = exchange.mark.get("think_s")
    return float(planned) if _number(planned) and planned >= 0 else measured_s


def _finish(exchange: Exchange) -> str:
    if exchange.reply.aborted:
        return "abort"
    finish = exchange.reply.finish
    return finish if finish in _FINISHES else "stop" if exchange.reply.ended else "error"


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    given = (body.get(key) for key in ("max_completion_tokens", "max_tokens"))
    return next((n for n in given if type(n) is int and n >= 0), None)


def _sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are numbers, and an effort that is one of the known words."""
    sampling = {key: body[key] for key in _SAMPLING if _number(body.get(key))}
    if body.get("reasoning_effort") in _EFFORTS:
        sampling["reasoning_effort"] = body["reasoning_effort"]
    return sampling


def _number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)
