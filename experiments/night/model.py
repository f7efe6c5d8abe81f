"""The scripted model: finds a request's place in the plan and says what the answer is"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.night.chats import side_step
from experiments.night.script import Call, Night, Step, Turn, even

Message = dict[str, Any]

CLOSING = Step("Nothing is left of this.", "That is all there was to do.")
"""What the model says when it is asked to go on after the last step of a turn."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What is sent for one request."""

    label: str
    """Turn and step, or session and kind of side request."""
    step: Step
    think_s: float | None = None
    turn: Turn | None = None
    take: int = 1
    last: bool = False
    """Whether the turn ends with it."""
    cut_at: tuple[str, int] | None = None
    """Part of the answer and tokens of it after which the user will stop it."""


@dataclass
class _Standing:
    """Where an opencode session stands."""

    turn: Turn | None = None
    next_step: int = 0
    replies: dict[str, Reply] = field(default_factory=dict)
    """By a digest of the messages: a client that asks again gets the same answer."""


def text_of(message: Message) -> str:
    """The text of a message whose content is a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))


def side_kind(text: str) -> str | None:
    """Which side request of Open WebUI this is: each says what JSON it wants."""
    for kind, mark in (
        ("followups", '"follow_ups"'),
        ("title", '"title"'),
        ("tags", '"tags"'),
        ("queries", '"queries"'),
    ):
        if mark in text:
            return kind
    return None


class ScriptedModel:
    """Answers one part of a night. A turn is known by the first line of its prompt."""

    def __init__(self, night: Night, root: str) -> None:
        """`root`: the folder in which the night's folders lie."""
        self.night, self.root = night, root
        self._keys = {turn.key: turn for turn in night.turns().values()}
        self._standing: dict[str, _Standing] = {}
        self._compactions: Counter[str] = Counter()
        self._takes: Counter[str] = Counter()

    def answer(self, body: Mapping[str, Any], session: str | None) -> Reply:
        """The answer to a request; `session` is opencode's id of it, None for Open WebUI."""
        messages = body["messages"]
        if session is None:
            return self._to_page(messages, bool(body.get("stream")))
        standing = self._standing.setdefault(session, _Standing())
        if not body.get("tools"):
            return self._to_side(messages, standing)
        digest = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
        if digest not in standing.replies:
            standing.replies[digest] = self._next(messages, standing)
        return standing.replies[digest]

    def _turn_in(self, text: str) -> Turn | None:
        """The turn whose prompt comes last in the text."""
        flat = even(text)
        found = [(flat.rfind(key), key) for key in self._keys if key in flat]
        return self._keys[max(found)[1]] if found else None

    def _newest_turn(self, messages: list[Message]) -> Turn | None:
        """The turn of the newest user message that holds a prompt of the plan."""
        for message in reversed(messages):
            if message["role"] == "user" and (turn := self._turn_in(text_of(message))):
                return turn
        return None

    def _next(self, messages: list[Message], standing: _Standing) -> Reply:
        # After a compaction the prompt may be gone from the request; the turn goes on all the same.
        turn = self._newest_turn(messages) or standing.turn
        if turn is None:
            return Reply("unknown", CLOSING)
        if turn != standing.turn:
            standing.turn, standing.next_step = turn, 0
        number, standing.next_step = standing.next_step, standing.next_step + 1
        return self._reply(turn, turn.steps, number, turn.think_s)

    def _reply(self, turn: Turn, steps: tuple[Step, ...], number: int, think_s: float) -> Reply:
        step = steps[number] if number < len(steps) else CLOSING
        cut = turn.cut if turn.cut and turn.cut.step == number else None
        return Reply(
            f"{turn.label}.s{number + 1}",
            self._placed(step, turn),
            # A sub-agent's first request follows its parent's answer: nobody thinks in between.
            think_s if number == 0 and think_s > 0 else None,
            turn,
            max(1, self._takes[turn.label]),
            number >= len(steps) - 1,
            (cut.part, cut.tokens) if cut else None,
        )

    def _placed(self, step: Step, turn: Turn) -> Step:
        folder = f"{self.root}/{self.night.sessions[turn.session].folder}"
        calls = (
            Call(call.id, call.name, call.arguments.replace("{CWD}", folder)) for call in step.calls
        )
        return Step(step.reasoning, step.content, tuple(calls))

    def _to_side(self, messages: list[Message], standing: _Standing) -> Reply:
        """opencode's title or compaction."""
        turn = self._newest_turn(messages) or standing.turn
        if turn is None:
            return Reply("unknown.side", CLOSING)
        plan = self.night.sessions[turn.session]
        if any("<conversation>" in text_of(message) for message in messages):
            number = self._compactions[plan.label]
            self._compactions[plan.label] += 1
            summary = plan.summaries[number % len(plan.summaries)]
            return Reply(f"{plan.label}.compaction{number + 1}", summary)
        return Reply(f"{plan.label}.title", Step("A short title, then.", plan.title))

    def _to_page(self, messages: list[Message], stream: bool) -> Reply:
        turn = self._newest_turn(messages)
        kind = None if stream else side_kind(text_of(messages[-1]))
        if turn is None:
            return Reply(f"unknown.{kind or 'chat'}", CLOSING)
        if kind:
            title = self.night.sessions[turn.session].title
            return Reply(
                f"{turn.label}.{kind}", side_step(self.night.seed, kind, turn.label, title)
            )
        # The page sends every message of a tool loop, so the step can be counted.
        number = 0
        for message in reversed(messages):
            if message["role"] == "user":
                break
            number += message["role"] == "assistant"
        if number == 0:
            self._takes[turn.label] += 1
        if turn.again and self._takes[turn.label] > 1:
            reply = self._reply(turn, turn.again, number, turn.again_think_s)
            return replace(reply, label=f"{turn.label}.again.s{number + 1}")
        return self._reply(turn, turn.steps, number, turn.think_s)
