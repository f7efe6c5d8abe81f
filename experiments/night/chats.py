"""Scripted chats: questions to Open WebUI, the model's answers and its side requests"""

from __future__ import annotations

import json
from typing import Any

from experiments.night.coding import as_written
from experiments.night.script import Call, Step
from experiments.night.words import TOPICS, Writer

_QUESTIONS = (
    "What should I know about {t} before I begin? {s}",
    "Can you compare two ways of {t} for a beginner? {s}",
    "I read about {t} last week. {s} Is that right?",
    "Please explain how {t} works, step by step. {s}",
    "Give me a short plan for a weekend with {t}. {s}",
    "Why is it that {s} I mean in {t}.",
    "And what goes wrong most often with {t}? {s}",
    "Could you write a short text about {t}? {s}",
    "How long does it take to learn {t}? {s}",
    "Which tools do I need for {t}? {s}",
)


class Talker:
    """Writes the turns of one chat."""

    def __init__(self, seed: int, label: str) -> None:
        self.writer = Writer(f"{seed}/chat/{label}")
        self.topic = self.writer.rng.choice(TOPICS)

    def question(self) -> str:
        """A message of the user: plain text, sometimes of several lines."""
        writer, rng = self.writer, self.writer.rng
        text = rng.choice(_QUESTIONS).format(t=self.topic, s=writer.sentence().replace("`", ""))
        if rng.random() < 0.25:
            text += "\n" + writer.paragraph(2).replace("`", "")
        return text

    def answer(self, tokens: int = 0, think: int = 0) -> Step:
        """A plain answer."""
        rng = self.writer.rng
        tokens = tokens or min(1400, int(rng.lognormvariate(5.7, 0.6)))
        think = think or min(1500, int(rng.lognormvariate(4.9, 0.9)))
        return Step(self.writer.thought(think), self.writer.answer(tokens, odd=0.4))

    def with_tool(self) -> tuple[Step, ...]:
        """An answer that calls a built-in tool of the page first."""
        writer, rng = self.writer, self.writer.rng
        choices: list[tuple[str, dict[str, Any]]] = [
            ("get_current_timestamp", {}),
            ("calculate_timestamp", {"days_ago": rng.randrange(1, 9), "weeks_ago": 1}),
            ("search_chats", {"query": self.topic, "count": 3}),
            ("search_notes", {"query": self.topic}),
            ("add_memory", {"content": writer.sentence().replace("`", "")}),
            ("write_note", {"title": self.topic.title(), "content": writer.prose(120)}),
        ]
        name, arguments = rng.choice(choices)
        ident = f"call_{rng.getrandbits(96):024x}"
        call = Call(ident, name, as_written(writer, arguments))
        thought = writer.thought(int(rng.lognormvariate(4.2, 0.6)))
        return Step(thought, "", (call,)), self.answer()

    def title(self) -> str:
        """The chat's title."""
        return f"{self.topic.title()} {self.writer.rng.choice(('Basics', 'Plan', 'Questions'))}"


def side_step(seed: int, kind: str, label: str, title: str) -> Step:
    """The model's answer to a side request of a chat (title, tags, followups or queries)."""
    writer = Writer(f"{seed}/side/{kind}/{label}")
    topic = title.rsplit(" ", 1)[0]
    replies: dict[str, Any] = {
        "title": {"title": title},
        "tags": {"tags": ["Hobby", topic.split()[0].title(), writer.noun().title()]},
        "followups": {"follow_ups": [writer.sentence().replace("`", "") for _ in range(3)]},
        "queries": {"queries": [f"{topic} {writer.noun()}", f"{writer.noun()} of {topic}"]},
    }
    if kind not in replies:
        return Step(writer.thought(60), writer.answer(60))
    return Step(writer.thought(writer.rng.randrange(30, 220)), json.dumps(replies[kind]))
