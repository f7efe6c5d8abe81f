"""What alignment costs: a long chat meets its rows, beside a plain comparison of the tokens.

Times are of this machine; the ratio to the plain comparison, taken in the same run, is what can be
compared. The chat is rendered by the bundled template and tokenizer, an answer in every turn.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from cache.account import Account, Answer, Known
from cache.align import Alignment
from cache.anchors import AnchorConfig
from cache.meet import exactly
from cache.types import Ask, Met
from engine.chat.messages import Call, Reply, Say, messages_of
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from experiments.figure import Figure
from replay.progress import progress
from sim.profile import Profile

NAME = "align-speed"
ABOUT = "milliseconds to align a prompt of 100k tokens, and over a plain comparison"

PROMPT_MIN = 100_000
"""Tokens of the client's copy."""
WORDS_THOUGHT, WORDS_ANSWER, WORDS_ASKED = 40, 30, 100
"""Short turns, as in a tool loop: 200 answers in 100k tokens."""
ROUNDS = 30


class _Chat:
    """A conversation on both sides: the engine's rows, and the client's messages."""

    def __init__(self, *, drops: bool, rewrites: bool) -> None:
        tokenizer = Tokenizer()
        self.alignment = Alignment(tokenizer)
        self.account = Account.empty(4 * PROMPT_MIN, AnchorConfig(budget_bytes=0))
        self._template = Template(tokenizer)
        self._draw = random.Random(0)
        self._drops, self._rewrites = drops, rewrites
        self._messages: list[dict[str, Any]] = []
        self._asks()
        self.ask = self._rendered()

    def grow(self) -> int:
        """One more turn; returns the tokens of the copy."""
        thought, text = self._words(WORDS_THOUGHT), self._words(WORDS_ANSWER)
        call = Call("read", f'{{"path": "{self._words(1)}", "limit": 10.0}}', "c")
        reply = Reply((Say("reasoning", thought), Say("content", text), call), "tool_calls")
        answer, account = self._template.answer_ids(reply), self.account
        met = self.alignment(account, self.ask)
        account.cut(met.rows)
        start, rows = len(met.served), np.concatenate([met.served, answer.ids[:-1]])
        account.extend(rows, len(rows))
        said = Answer(answer.think_end or 0, (), answer.valued)
        account.generations.append(said.over(start, len(rows)))
        back = {"role": "assistant", "content": text}
        arguments = call.arguments.replace(" ", "").replace("10.0", "10")
        function = {"name": "read", "arguments": arguments if self._rewrites else call.arguments}
        if not self._drops:
            back["reasoning_content"] = thought
        self._messages.append(back | {"tool_calls": [{"id": "c", "function": function}]})
        self._asks()
        self.ask = self._rendered()
        return len(self.ask.ids)

    def _asks(self) -> None:
        self._messages.append({"role": "user", "content": self._words(WORDS_ASKED)})

    def _rendered(self) -> Ask:
        whole = self._template.render(messages_of(self._messages))
        return Ask(whole.ids, valued=whole.valued)

    def _words(self, count: int) -> str:
        letters = "etaoinshrdlu"
        sizes = (self._draw.randint(2, 9) for _ in range(count))
        return " ".join("".join(self._draw.choices(letters, k=size)) for size in sizes)


def milliseconds(work: Callable[[], object]) -> float:
    """The median of several runs."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return 1_000 * statistics.median(times)


def measured(name: str, *, drops: bool, rewrites: bool, prompt_min: int) -> list[Figure]:
    """A chat grown to so many tokens, and its next prompt aligned."""
    chat, size = _Chat(drops=drops, rewrites=rewrites), 0
    with progress(name, prompt_min, unit="tokens") as advance:
        while size < prompt_min:
            grown = chat.grow()
            advance(grown - size)
            size = grown
    account, ask, before = chat.account, chat.ask, chat.account.known

    def aligned(known: Known | None) -> Met:
        account.known = known
        return chat.alignment(account, ask)

    assert aligned(None).rows == aligned(before).rows == account.valid, "both say the same"
    plain = milliseconds(lambda: exactly(account, ask))
    again, whole = milliseconds(lambda: aligned(before)), milliseconds(lambda: aligned(None))
    note = f"{size:,} tokens, {len(account.generations)} answers"
    return [
        Figure(f"{name}.next_ms", None, again, "ms", note),
        Figure(f"{name}.whole_ms", None, whole, "ms", "as if no turn came before"),
        Figure(f"{name}.plain_ms", None, plain, "ms", "stops at the first difference"),
    ]


def run(board: Profile, prompt_min: int = PROMPT_MIN) -> list[Figure]:
    """One chat that sends every token back, and three that don't."""
    return [
        *measured("as_written", drops=False, rewrites=False, prompt_min=prompt_min),
        *measured("no_reasoning", drops=True, rewrites=False, prompt_min=prompt_min),
        *measured("rewritten_calls", drops=False, rewrites=True, prompt_min=prompt_min),
        *measured("both", drops=True, rewrites=True, prompt_min=prompt_min),
    ]
