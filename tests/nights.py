"""Small traces for tests: a night in miniature, and a builder that grows conversations."""

from __future__ import annotations

import random
from dataclasses import replace

from replay.trace import FRESH, TEXT, Header, Parts, Request, Run, Trace


class Builder:
    """Grows a trace request by request; prompts extend, part from, or repeat earlier ones."""

    def __init__(self, name: str = "small") -> None:
        self.name = name
        self.requests: list[Request] = []
        self.at_s = 0.0

    def fresh(
        self, prompt: int, output: int, session: str = "a", *, tools: int = 0, system: int = 0
    ) -> Request:
        """A prompt of new tokens."""
        parts = Parts(system=system, tools=tools, history=prompt - tools - system)
        return self._add((Run(FRESH, TEXT, prompt),), output, session, parts=parts)

    def extend(self, before: Request, more: int, output: int, session: str = "a") -> Request:
        """The whole sequence of `before`, and new tokens."""
        whole = before.prompt_tokens + before.output_tokens
        runs = (Run(before.number, 0, whole), Run(FRESH, TEXT, more))
        parts = replace(
            before.parts, history=whole + more - before.parts.tools - before.parts.system
        )
        return self._add(
            runs, output, session, parts=parts, extends=before.number, after=before.number
        )

    def part(self, before: Request, at: int, more: int, output: int, session: str = "a") -> Request:
        """The first `at` tokens of `before`'s sequence, and new ones."""
        parts = Parts(history=at + more)
        runs = (Run(before.number, 0, at), Run(FRESH, TEXT, more))
        return self._add(runs, output, session, parts=parts, after=before.number)

    def drop(self, before: Request, start: int, stop: int, more: int, output: int) -> Request:
        """The sequence of `before` without its tokens [start, stop), and new ones."""
        whole = before.prompt_tokens + before.output_tokens
        runs = (
            Run(before.number, 0, start),
            Run(before.number, stop, whole - stop),
            Run(FRESH, TEXT, more),
        )
        parts = Parts(history=whole - stop + start + more)
        session = before.session or "a"
        return self._add(
            runs, output, session, parts=parts, extends=before.number, after=before.number
        )

    def change(self, **fields: object) -> Request:
        """Change the request added last."""
        self.requests[-1] = replace(self.requests[-1], **fields)  # type: ignore[arg-type]
        return self.requests[-1]

    def trace(self) -> Trace:
        """What was built."""
        return Trace(self.name, Header(timing="synthetic"), tuple(self.requests))

    def _add(self, runs: tuple[Run, ...], output: int, session: str, **fields: object) -> Request:
        number = len(self.requests)
        request = Request(
            number=number,
            id=f"r{number}",
            t_s=self.at_s,
            prompt=tuple(run for run in runs if run.length),
            output=(Run(FRESH, TEXT, output),) if output else (),
            session=session,
            client="tests",
            think_s=2.0,
            **fields,  # type: ignore[arg-type]
        )
        self.requests.append(request)
        self.at_s += 10.0
        return request


def small_night(seed: int = 0, turns: int = 40, name: str = "small") -> Trace:
    """Two conversations in turn, with side requests, edits, lost reasoning and early leavers."""
    draw, build = random.Random(seed), Builder(name)
    last = {
        session: build.fresh(
            draw.randint(300, 900), draw.randint(10, 90), session, tools=120, system=60
        )
        for session in "ab"
    }
    for _ in range(turns):
        session = draw.choice("ab")
        before = last[session]
        kind = draw.random()
        if kind < 0.55:
            last[session] = build.extend(before, draw.randint(5, 300), draw.randint(5, 90), session)
        elif kind < 0.65:
            at = draw.randint(1, before.prompt_tokens)
            last[session] = build.part(
                before, at, draw.randint(5, 200), draw.randint(5, 90), session
            )
        elif kind < 0.75 and before.output_tokens > 6:
            start = before.prompt_tokens
            last[session] = build.drop(before, start, start + 5, 20, 30)
        elif kind < 0.85:
            build.fresh(draw.randint(20, 90), 8, session)
            build.change(kind="title")
        else:
            build.extend(before, draw.randint(100, 300), 20, session)
            last[session] = build.change(aborted_after=draw.choice((0, 5)))
    return build.trace()
