"""The service: what every route needs, from a request's body to what is heard of its answer"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from cache.journal import TurnRow
from cache.ports import Stop
from cache.types import Ids
from engine.chat.dialect import close_thought, inside_thought
from engine.chat.gallery import Gallery
from engine.chat.messages import Say
from engine.prompt import Prompt
from serve.about import About
from serve.asked import Asked, Asking
from serve.body import read_json
from serve.box_lock import BoxLock
from serve.calls import Busy, Closed
from serve.choice import Choice, Choosing, Given
from serve.compaction import Continued
from serve.desk import Desk
from serve.errors import busy, context_length_exceeded, model_not_found, stopping
from serve.heard import Heard
from serve.hearing import Hearing
from serve.house import House
from serve.metrics import Metrics
from serve.order import Order, Rewrite
from serve.script import Script
from serve.stats import Parts
from serve.summaries import Summaries
from serve.wire_chat import ChatBody
from serve.wish import Defaults, Wish

T = TypeVar("T")
CALL_WAIT_S = 3.0
"""How long a peek waits for the engine (the seed's figure)."""


class Service:
    """Everything between the routes and the engine."""

    def __init__(
        self,
        house: House,
        about: About,
        script: Script | None = None,
        lock: BoxLock | None = None,
    ) -> None:
        """A script answers for the model; `lock` is held while a summary is written ahead."""
        self.house, self.about = house, about
        self._script = script
        self.gallery = Gallery()
        self.asking = Asking(house.dialect, self.gallery, house.key)
        self.metrics = Metrics()
        self.summaries = Summaries(house, self.gallery, lock)
        self.desk = Desk(house.slots, house.clock, self._idle, self._ended, self.summaries.stop)
        self._choosing = Choosing(
            house.dialect,
            house.engine.vocab,
            house.suffixes,
            lambda: house.settings.serving.thinking_phrase,
            about.ends_after,
        )
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="reading")
        self._salt, self._started_s = secrets.token_bytes(16), house.clock.wall_s()
        self.level: str | None = None
        """How the day's writes stand to their budget, when last looked at; None without a drive."""
        self._said = 0
        """Answers that the script gave."""

    # a request's way

    def defaults(self) -> Defaults:
        """What holds where a request says nothing."""
        serving, own = self.house.settings.serving, self.house.dialect.defaults
        usual = Defaults(vocab=self.house.engine.vocab, seed=secrets.randbits(31))
        asked = (("temperature", own.temperature), ("top_p", own.top_p), ("top_k", own.top_k))
        sampling = replace(usual.sampling, **{name: v for name, v in asked if v is not None})
        thinking = serving.thinking
        unsaid = thinking.unsaid if thinking.unsaid is not None else self.about.thinking_tokens
        return Defaults(
            vocab=usual.vocab,
            seed=usual.seed,
            sampling=sampling,
            thinking_max=unsaid,
            efforts=thinking.efforts,
        )

    async def chat(self, data: bytes) -> tuple[Mapping[str, Any], ChatBody, Wish]:
        """A chat request's body as it was sent, as it was checked, and what it asks of the answer;
        raises ApiError, also for a model that is not served."""
        # A long conversation takes a while to parse, in which others' frames go out.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reading, self._chat, data)

    def _chat(self, data: bytes) -> tuple[Mapping[str, Any], ChatBody, Wish]:
        sent = read_json(data)
        body = ChatBody.of(sent)
        wish = body.wish(self.defaults())
        self.check_model(wish.model)
        assert isinstance(sent, Mapping)
        return sent, body, wish

    def check_model(self, model: str) -> None:
        """Raise ApiError for a model that is not served; none named is the one that is."""
        if model and model != self.about.model:
            raise model_not_found(model)

    async def ask(
        self,
        headers: Sequence[tuple[str, str]],
        sent: Mapping[str, Any],
        body: ChatBody,
        wish: Wish,
        *,
        peeks: bool = False,
    ) -> Asked:
        """The request as a prompt; raises ApiError, also for one that has no room in the window."""
        loop, thinking = asyncio.get_running_loop(), wish.thinking_max != 0
        asked = await loop.run_in_executor(
            self._reading,
            lambda: self.asking.read(headers, sent, body, thinking=thinking, peeks=peeks),
        )
        size, window = len(asked.rendered.ids), self.house.engine.window
        if size >= window:
            raise context_length_exceeded(size, window)
        return asked

    def room(self, asked: Asked, wish: Wish) -> int:
        """Tokens that the answer may have, where the window has room for them: that it has less is
        no wish of the client's, and rows that are a little longer than its copy serve it too."""
        usual = self.house.settings.serving.answer_tokens
        return wish.answer_max or usual or self.house.engine.window

    async def order(self, asked: Asked, wish: Wish, number: int = 0) -> Hearing:
        """Order one choice of the desk; raises ApiError when the server stops."""
        loop = asyncio.get_running_loop()
        room = self.room(asked, wish)
        prompt = await loop.run_in_executor(self._reading, self.asking.prompt, asked, room)
        round_s = 0.0

        def choose(ids: Ids, room: int) -> Choice:
            nonlocal round_s
            given = self._given(asked, ids) if self._script is not None else None
            round_s = given.round_s if given is not None else 0.0
            return self._choosing.make(wish, number, ids, asked.tools, room, _call_id, given)

        def chosen(found: Continued) -> Choice:
            ids = found.prompt.ids
            return choose(ids, min(found.prompt.answer_max, self.house.engine.window - len(ids)))

        ids = asked.rendered.ids
        choice = choose(ids, min(room, self.house.engine.window - len(ids)))
        rewrite = self.summaries.rewrite(asked, wish, chosen)
        return self._ordered(prompt, choice, round_s, rewrite)

    async def order_text(self, ids: Ids, wish: Wish, number: int = 0) -> Hearing:
        """Order one choice of a text that goes on; raises ApiError, also when it has no room."""
        size, window = len(ids), self.house.engine.window
        if size >= window:
            raise context_length_exceeded(size, window, "prompt")
        room = min(window - size, wish.answer_max or window)
        choice = self._choosing.text(wish, number, room)
        return self._ordered(Prompt(ids, kind="completion", answer_max=room), choice, 0.0)

    def _ordered(
        self, prompt: Prompt, choice: Choice, round_s: float, rewrite: Rewrite | None = None
    ) -> Hearing:
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Heard]()

        def tell(heard: Heard) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, heard)

        order = Order(
            prompt,
            choice.rule,
            choice.limit,
            self.house.dialect.stop_ids,
            choice.voice,
            tell,
            self.house.clock.mono_s(),
            rewrite,
            round_s,
            scored=choice.scored,
        )
        self._submit(order)
        return Hearing(self.desk, self.house.clock, order, queue)

    def _submit(self, order: Order) -> None:
        try:
            self.desk.submit(order)
        except Closed:
            raise stopping() from None

    def _given(self, asked: Asked, prompt: Ids) -> Given:
        """What the script says to a request whose prompt, as it is served, is this."""
        assert self._script is not None
        said = self._script.answer(asked.who, asked.messages, asked.tools)
        reply, dialect = said.reply, self.house.dialect
        outside = not inside_thought(dialect, prompt)
        if outside:
            # The prompt has an empty thought already.
            kept = (p for p in reply.pieces if not isinstance(p, Say) or p.kind != "reasoning")
            reply = replace(reply, pieces=tuple(kept))
        ids = dialect.template.answer_ids(reply, () if outside else asked.messages).ids
        if outside:
            ids = ids[len(close_thought(dialect)) :]
        self._said += 1
        return Given(ids, said.round_s, f"script:{self._said}")

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token, which may be a part of a character."""
        return self.house.dialect.tokenizer.text(np.array([token], np.int32))

    def parts(self) -> Parts:
        """What stats and metrics look at."""
        house = self.house
        return Parts(
            tuple(house.slots),
            house.settings,
            self._salt,
            self._started_s,
            house.disk,
            house.spill,
            house.guard if house.disk is not None else None,
            self.about.model,
            self.desk.waiting,
            self.desk.active,
        )

    # questions about the engine

    async def between(self, work: Any) -> Any:
        """What `work` finds between two steps of the engine; raises ApiError."""
        try:
            return await asyncio.wrap_future(self.desk.between(work))
        except Closed:
            raise stopping() from None

    async def alone(self, work: Any, wait_s: float = CALL_WAIT_S, *, patient: bool = False) -> Any:
        """What `work` does while no turn is under way; raises ApiError, 409 when one always is."""
        try:
            future: Future[Any] = self.desk.alone(work, wait_s, patient=patient)
            return await asyncio.wrap_future(future)
        except Busy:
            raise busy("Requests are being served; ask again when none is.") from None
        except Closed:
            raise stopping() from None

    # the engine's thread

    def _idle(self, wanted: Stop) -> bool:
        self._look()
        rested_s = self.house.clock.mono_s() - self.desk.last_end_s
        if self._script is None and self.summaries.step(rested_s):
            return True
        return self.house.idle(wanted, rested_s)

    def _ended(self, row: TurnRow, order: Order) -> None:
        self._look()
        self.metrics.saw(row, order.ttft_s)
        self.summaries.ended(row, order)

    def _look(self) -> None:
        self.level = self.house.guard.level() if self.house.disk is not None else None

    # its life

    def start(self) -> None:
        """Bring back what the last stop left, then serve."""
        self.house.start()
        self.desk.start()

    def stop(self) -> int:
        """A planned stop; how many conversations are on the drive afterwards."""
        self.desk.close()
        self._reading.shutdown()
        saved = self.house.stop()
        self.house.close()
        return saved


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
