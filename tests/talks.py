"""What alignment's tests share: conversations as the engine's rows and as a client's copy."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cache.account import Account, Answer
from cache.anchors import AnchorConfig
from cache.types import Ask, Ids
from engine.chat.messages import Call, Reply, Say, messages_of
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer

TOKENIZER = Tokenizer()
TEMPLATE = Template(TOKENIZER)
WINDOW = 8_192


def said(content: str, reasoning: str = "", calls: Sequence[tuple[str, str]] = ()) -> Reply:
    """What an engine wrote: its thoughts, its text, its calls as (name, arguments)."""
    pieces: list[Say | Call] = [Say("reasoning", reasoning), Say("content", content)]
    pieces += [Call(name, arguments, f"c{n}") for n, (name, arguments) in enumerate(calls)]
    return Reply(tuple(pieces), "tool_calls" if calls else "stop")


def sent_back(
    content: str, reasoning: str = "", calls: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """The same as a client's message."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return message


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@dataclass
class Talk:
    """The rows of a conversation, as turns write them."""

    account: Account = field(
        default_factory=lambda: Account.empty(WINDOW, AnchorConfig(budget_bytes=0))
    )

    def turn(
        self,
        prompt: Ids | Sequence[Mapping[str, Any]],
        reply: Reply,
        *,
        hidden: tuple[tuple[int, str], ...] = (),
        cuts: random.Random | None = None,
        forwarded: bool = False,
    ) -> Ids:
        """A prompt is read, and an answer written: with (place, text) put in, the client unseen,
        and cut into other tokens where `cuts` says. Its last token is not forwarded.
        """
        account = self.account
        ids = prompt if isinstance(prompt, np.ndarray) else rendered(prompt).ids
        answer = TEMPLATE.answer_ids(reply)
        out, spans = answer.ids, []
        thinking, valued = answer.think_end or 0, list(answer.valued)
        if cuts is not None:
            assert not valued
            thinking_ids = recut(out[:thinking], cuts)
            out, thinking = (
                np.concatenate([thinking_ids, recut(out[thinking:], cuts)]),
                len(thinking_ids),
            )
        for place, text in hidden:
            more = TOKENIZER.encode(text, specials=False)
            out = np.concatenate([out[:place], more, out[place:]])
            spans.append((place, len(more)))
            thinking += len(more) if place < thinking else 0
        account.cut(0)
        account.extend(ids, len(ids))
        account.prompt = len(ids)
        stop = len(ids) + len(out) - (0 if forwarded else 1)
        account.extend(np.concatenate([ids, out]), stop)
        said_so = Answer(thinking, tuple(spans), tuple(valued))
        account.generations = [said_so.over(len(ids), stop)]
        return out


def rendered(messages: Sequence[Mapping[str, Any]]) -> Ask:
    """A client's copy as the caches are asked about it."""
    whole = TEMPLATE.render(messages_of(list(messages)))
    return Ask(whole.ids, valued=whole.valued)


def recut(ids: Ids, draw: random.Random) -> Ids:
    """The same bytes in other tokens: some are cut into smaller ones, down to single bytes."""
    out: list[int] = []
    for id in ids.tolist():
        one = np.array([id], np.int32)
        text = TOKENIZER.text(one)
        if TOKENIZER.structure(one)[0] or len(text) < 2 or draw.random() < 0.5:
            out.append(id)
            continue
        at = draw.randrange(1, len(text))
        for piece in (text[:at], text[at:]):
            out += [SINGLE[piece]] if piece in SINGLE else [SINGLE[bytes([b])] for b in piece]
    return np.array(out, np.int32)


SINGLE: dict[bytes, int] = {
    TOKENIZER.text(np.array([id], np.int32)): id
    for id in range(TOKENIZER.vocab)
    if not TOKENIZER.structure(np.array([id], np.int32))[0]
}
"""Every token by its bytes."""
