"""What tests of compactions share: a client that talks, keeps its history, and has it summed up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from support import GRID, box, forced

from cache.account import Answer
from cache.align import Alignment
from cache.journal import TurnRow
from cache.types import Ids, Valued
from engine.box import Box
from engine.chat.dialect import Bundled
from engine.chat.messages import Message, Reply, Show, messages_of
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from engine.config import HybridConfig
from engine.events import Tokens
from engine.hybrid import Hybrid
from engine.pictures.picture import Picture
from engine.prompt import Prompt
from engine.sampling import Greedy
from engine.turn import Reader, turn
from engine.vision_config import VisionConfig
from serve.compaction import Album, Continued, Miss, continuation
from serve.record_parts import CompactionParts, parts_of

DIALECT = Bundled(Template(Tokenizer()))
SYSTEM = "You sum up conversations.\n\nKeep names as they are."
ASK = "Sum up what stands between the <conversation> tags.\n\n- Goal\n- Next step"
ASK_AGAIN = "Carry over what the <prior-summary> has.\n\n- Goal\n- Next step"
WINDOW = 4_096


def hybrid(dtype: str = "float32", *, sees: bool = False, window: int = WINDOW) -> Hybrid:
    """A small random hybrid over the bundled tokens."""
    more: dict[str, Any] = {"vision": VisionConfig.small(), "rotary_fraction": 0.5} if sees else {}
    config = HybridConfig.tiny(dtype=dtype, vocab=DIALECT.tokenizer.vocab, **more)
    return Hybrid.random(config, 1, grid=GRID, window=window)


def said(content: str, reasoning: str = "", *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """An assistant's message as a client keeps it."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": f"c{n}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given, separators=(",", ":"))},
            }
            for n, (name, given) in enumerate(calls)
        ]
    return message


def user(text: str, *images: Show) -> dict[str, Any]:
    """A user's message; images go in by hand, see `Client.messages`."""
    return {"role": "user", "content": text, "images": images}


def result(text: str) -> dict[str, Any]:
    """What a tool gave."""
    return {"role": "tool", "tool_call_id": "c0", "content": text}


def record_of(history: Sequence[Mapping[str, Any]]) -> str:
    """The history as the text of a compaction request."""
    out: list[str] = []
    for message in history:
        lines: list[str] = []
        if message["role"] == "user":
            lines.append(f"[User]: {message['content']}")
        elif message["role"] == "assistant":
            if message.get("reasoning_content"):
                lines.append(f"[Assistant reasoning]: {message['reasoning_content']}")
            if message["content"]:
                lines.append(f"[Assistant]: {message['content']}")
            for call in message.get("tool_calls", ()):
                function = call["function"]
                lines.append(f"[Assistant tool call]: {function['name']}({function['arguments']})")
        else:
            out[-1] += f"\n[Tool result]: {message['content'][:2_000]}\n"
            continue
        out.append("\n".join(lines))
    return "\n\n".join(out)


def request(
    history: Sequence[Mapping[str, Any]], prior: str | None = None, ask: str = ASK
) -> list[dict[str, Any]]:
    """A compaction request's messages."""
    before = ""
    if prior is not None:
        before = f"The summary so far:\n\n<prior-summary>\n{prior}\n</prior-summary>\n\n"
    record = f"<conversation>\n{record_of(history)}\n</conversation>"
    text = f"Here is the conversation so far:\n\n{record}\n\n{before}{ask}"
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def parts_for(*args: Any, **named: Any) -> CompactionParts:
    """The parts of such a request."""
    parts = parts_of(messages_of(request(*args, **named)))
    assert parts is not None
    return parts


class Client:
    """One conversation of a client; answers are forced, summaries greedy."""

    def __init__(self, on: Box, session: str = "a", system: str = "Help.") -> None:
        self.on, self.session = on, session
        self.history: list[dict[str, Any]] = []
        self.system = system
        self.album: dict[bytes, Picture] = {}

    @classmethod
    def alone(cls, dtype: str = "float32", *, sees: bool = False, **room: Any) -> Client:
        """On a box of its own."""
        meeting = Alignment(DIALECT.tokenizer)
        return cls(box(hybrid(dtype, sees=sees), meeting=meeting, **room))

    def messages(self) -> tuple[Message, ...]:
        """The history as it is sent."""
        heads = [{"role": "system", "content": self.system}]
        plain = [{k: v for k, v in m.items() if k != "images"} for m in [*heads, *self.history]]
        made = messages_of(plain)
        shown = [(), *(m.get("images", ()) for m in self.history)]
        return tuple(
            replace(m, pieces=(*images, *m.pieces)) for m, images in zip(made, shown, strict=True)
        )

    def prompt(self, messages: Sequence[Message], kind: str = "turn") -> Prompt:
        """A request as the engine reads it."""
        made = DIALECT.render(messages)
        pictures = tuple(self.album[shown.image.digest] for shown in made.shown)
        return Prompt(
            made.ids,
            self.session,
            "agent",
            kind,
            made.tools,
            made.system,
            answer_max=300,
            valued=made.valued,
            pictures=pictures,
            last_user=made.last_user,
            first_answer=made.first_answer,
        )

    def says(self, text: str, answer: dict[str, Any], *images: Show) -> TurnRow:
        """The user's next message, and what is answered."""
        self.history.append(user(text, *images))
        return self.goes_on(answer)

    def goes_on(self, answer: dict[str, Any]) -> TurnRow:
        """A request with the history as it is."""
        messages = self.messages()
        prompt = self.prompt(messages)
        reply = Reply(messages_of([answer])[0].pieces, "stop")
        ids = DIALECT.template.answer_ids(reply)
        rule = forced(ids.ids)
        read = _reader(ids.think_end or 0, ids.valued)
        for _ in turn(self.on, prompt, rule, len(ids.ids), read=read):
            pass
        self.on.stack.check()
        self.history.append(answer)
        return self.on.journal.rows[-1]

    def works(self, rounds: int = 3) -> None:
        """Some turns with calls of a tool."""
        for n in range(rounds):
            call = ("bash", {"command": f"ls {n}"})
            self.says(f"Do number {n}, please", said("I look.", f"Look at {n}.", call))
            self.history.append(result(f"file{n}\nother{n}\n"))
            self.goes_on(said(f"It is done, number {n}.", "Good."))

    def asks(
        self,
        *,
        keep: int = 0,
        prior: str | None = None,
        album: Album | None = None,
        tail: Any = "cut",
        skip: int = 0,
    ) -> Continued | Miss:
        """What would serve a compaction that leaves the newest `keep` messages out, and the oldest
        `skip`."""
        stop = len(self.history) - keep
        messages = messages_of(request(self.history[skip:stop], prior, ASK_AGAIN if prior else ASK))
        parts = parts_of(messages)
        assert parts is not None
        sent = self.prompt(messages, "compaction")
        self.on.stack.leave()
        album = album or self.album.get
        return continuation(self.on, DIALECT, sent, parts, album, tail=tail)

    def served(self, made: Continued, limit: int = 12) -> tuple[TurnRow, list[int]]:
        """The continuation's greedy summary."""
        written: list[int] = []
        for event in turn(self.on, made.prompt, Greedy(), limit, DIALECT.stop_ids):
            if isinstance(event, Tokens):
                written += event.ids
        self.on.stack.check()
        return self.on.journal.rows[-1], written


def cold(of: Hybrid, prompt: Prompt, limit: int = 12) -> list[int]:
    """What a twin with empty caches writes."""
    on = box(of.twin(of.window), keeps_end=False)
    return [
        token
        for event in turn(on, prompt, Greedy(), limit, DIALECT.stop_ids)
        if isinstance(event, Tokens)
        for token in event.ids
    ]


def text_of(ids: Ids) -> str:
    """What tokens say; a picture's rows say nothing."""
    return DIALECT.tokenizer.decode(np.asarray(ids)[np.asarray(ids) >= 0])


def _reader(thinking: int, valued: tuple[Valued, ...]) -> Reader:
    return lambda ids: Answer(thinking, (), valued)
