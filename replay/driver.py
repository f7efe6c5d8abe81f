"""Drives recorded requests through the real caches, forced to the recorded answers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cache.account import Answer
from cache.budget import LEVELS
from cache.config import StackConfig
from cache.journal import Journal
from cache.plan import Plan
from cache.types import Gate, Ids, Line
from engine.forced import Forced
from engine.pictures.patches import stand_in
from engine.pictures.picture import Picture
from engine.turn import Box, Chunk, Prompt, Ready, Resumed, Tokens, turn
from replay.ideal import Ideal
from replay.ledger import LedgerRow, Served, refused, served
from replay.lives import Lives
from replay.models import meeting
from replay.options import Options
from replay.pieces import TracePieces
from replay.process import Process
from replay.schedule import Arrival, Schedule
from replay.source import Source
from replay.suffixes import speak_alike
from replay.tokens import Tokens as TraceTokens
from replay.trace import Request, Trace
from replay.verify import Verdict
from sim.board import Board
from sim.clock import VirtualClock
from sim.compute import PrefillTime


@dataclass(slots=True)
class _Watch:
    """What the driver sees while a request is served."""

    held: int = 0
    verdict: Verdict | None = None
    ttft_s: float | None = None
    restore_s: float = 0.0
    spared_s: float = 0.0


class Replay:
    """One box over a list of traces; iterate for a ledger row a request, in the order served."""

    def __init__(
        self,
        traces: Sequence[Trace],
        options: Options,
        journal: Journal | None = None,
        policy: StackConfig | None = None,
    ) -> None:
        """`policy` replaces the caches' settings that follow from the profile."""
        profile = options.profile
        self._options = options
        self._traces = traces
        self._clock = VirtualClock()
        self._journal = journal or Journal()
        self._live = speak_alike(traces)
        pieces = traces[0].live.pieces if self._live and traces[0].live else TracePieces()
        self._meets = meeting(profile, pieces)
        self._lives = Lives(options, self._clock, self._journal, self._meets, policy)
        self._seconds = PrefillTime.fit(profile).seconds
        self._stops = False
        self._ideal = Ideal()
        self._tokens: dict[int, TraceTokens] = {}
        """Tokens of the traces under way; a pack's would not all fit in memory."""
        self._ends: dict[tuple[int, int], int | None] = {}
        """End anchor's position after each served request."""

    @property
    def box(self) -> Box:
        """What the requests run on."""
        return self._process.box

    @property
    def _process(self) -> Process:
        return self._lives.process

    @property
    def drive(self) -> dict[str, dict[str, Any] | None]:
        """What the tiers on the drive did and hold, in plain numbers, None for those that are off;
        `summarise` takes them."""
        lives = self._lives
        return {"disk": lives.disk, "spill": lives.spill, "writes": lives.writes}

    @property
    def disk(self) -> dict[str, Any] | None:
        """What the disk tier did and holds; None without one."""
        return self._lives.disk

    @property
    def spill(self) -> dict[str, Any] | None:
        """What the spill did and holds; None without one."""
        return self._lives.spill

    @property
    def board(self) -> Board:
        """What it lies on."""
        return self._process.board

    def __iter__(self) -> Iterator[LedgerRow]:
        schedule = Schedule(self._traces, self._options.users, self._options.arrivals)
        for count, arrival in enumerate(schedule):
            if self._stops:
                break
            self._lives.rest(arrival.at_s)
            self._lives.restart(count)
            yield self._request(arrival, schedule.request(arrival))
            if schedule.ended(arrival, self._clock.mono_s()):
                self._tokens.pop(arrival.trace, None)
        self._lives.end()
        self.close()

    def stop(self) -> None:
        """End after the request in flight, as if the trace ended there."""
        self._stops = True

    def close(self) -> None:
        """Let go of a real directory, as the end of the requests does; nothing is served then."""
        self._lives.close()

    def _request(self, arrival: Arrival, request: Request) -> LedgerRow:
        name, process = self._traces[arrival.trace].name, self._process
        wait_s = self._clock.mono_s() - arrival.at_s
        if request.prompt_tokens >= process.engine.window:
            return refused(name, arrival, request, wait_s, process=self._lives.count)
        prompt, saw = self._prompt(request, self._tokens_of(arrival)), _Watch()
        saved_s = self._lives.save_s
        process.board.begins()
        before = Counter(process.budget.counters)
        box = process.slots.choose(prompt)
        assert box is not None
        self._serve(box, arrival, request, prompt, saw)
        process.slots.used(box)
        row, usage = self._journal.rows[-1], process.board.ends()
        if row.retry_after_s is not None:
            more = {"retry_after_s": row.retry_after_s, "process": self._lives.count}
            return refused(name, arrival, request, wait_s, usage=usage, **more)
        self._ideal.add(box.stack.rows)
        self._ends[arrival.trace, request.number] = box.stack.end
        gave = process.budget.counters - before
        verdict = saw.verdict
        seen = Served(
            held=saw.held,
            ttft_s=saw.ttft_s,
            end_before=self._ends.get((arrival.trace, request.extends))
            if request.extends is not None
            else None,
            checked=verdict.gate if verdict else None,
            failure=verdict.why if verdict else "",
            usage=usage,
            shed={name: gave[f"shed.{name}"] for name in LEVELS},
            process=self._lives.count,
            disk=self._lives.disk_use(),
            spill=self._lives.spill_use(self._lives.save_s - saved_s),
            restore_s=saw.restore_s,
            spared_s=saw.spared_s,
        )
        return served(name, arrival, request, wait_s, row, seen)

    def _serve(
        self, box: Box, arrival: Arrival, request: Request, prompt: Prompt, saw: _Watch
    ) -> None:
        """Run the turn, and close it where the client left."""
        begun_s = self._clock.mono_s()
        tokens = self._tokens_of(arrival)
        output, values = tokens.output(request.number), tokens.output_values(request.number)
        leaves_after = len(output) if request.aborted_after is None else request.aborted_after
        thinking, hidden = request.think_end or 0, request.hidden
        events = turn(
            box,
            prompt,
            self._rule(arrival, request, output),
            limit=max(1, len(output)),
            read=lambda answer: Answer(min(thinking, len(answer)), hidden, values),
        )
        had = 0
        for event in events:
            match event:
                case Resumed(line, plan):
                    saw.restore_s = self._clock.mono_s() - begun_s
                    saw.held = self._ideal.reusable(plan.served)
                    saw.spared_s = self._spared_s(plan, line)
                    if self._options.cache_dir is not None:
                        # An earlier replay into the same directory may have held more.
                        saw.held = max(saw.held, line.tokens)
                case Chunk(done) if request.aborted_after == 0 and done < len(prompt.ids):
                    # Nobody recorded how far the prefill was; let it be one chunk on.
                    events.close()
                case Ready(served_ids, logits):
                    saw.verdict = self._check(box, arrival, served_ids, logits)
                    if leaves_after == 0:
                        events.close()
                case Tokens(new):
                    if not had:
                        saw.ttft_s = self._clock.mono_s() - begun_s
                    had += len(new)
                    if request.aborted_after is not None and had >= leaves_after:
                        events.close()

    def _spared_s(self, plan: Plan, line: Line) -> float:
        """Prefill seconds that a line from the drive spares, against the next best offer."""
        best = plan.best
        if best is None or not best.read_bytes or line.tokens < best.line.tokens:
            return 0.0
        others = [offer.line.tokens for offer in plan.offers if offer.tier != best.tier]
        return self._seconds(min(max(others, default=0), line.tokens), line.tokens)

    def _tokens_of(self, arrival: Arrival) -> Source:
        index, options = arrival.trace, self._options
        trace = self._traces[index]
        if self._live and trace.live is not None:
            return trace.live
        if index not in self._tokens:
            seed = options.seed + index
            self._tokens[index] = TraceTokens(trace, vocab=options.profile.vocab, seed=seed)
        return self._tokens[index]

    def _prompt(self, request: Request, tokens: Source) -> Prompt:
        parts = request.parts
        asked = request.max_tokens or self._options.profile.answer_tokens
        last_user, first_answer = tokens.marks(request.number)
        return Prompt(
            tokens.prompt(request.number),
            request.session,
            request.client,
            request.kind,
            parts.tools,
            parts.system,
            # What was recorded must fit a side slot, whatever the request asked for.
            max(asked, request.output_tokens),
            tokens.prompt_values(request.number),
            answer_min=request.output_tokens,
            pictures=self._pictures(tokens.pictures(request.number)),
            last_user=last_user,
            first_answer=first_answer,
        )

    def _pictures(self, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
        """With patches for an engine that reads them: a trace has none, so they are drawn."""
        if self._process.engine.encoded is None:
            return pictures
        return tuple(stand_in(p) if p.patches is None else p for p in pictures)

    def _rule(self, arrival: Arrival, request: Request, output: Ids) -> Forced:
        profile = self._options.profile
        return Forced(
            output,
            seed=f"{self._options.seed}:{arrival.trace}:{request.number}",
            vocab=profile.vocab,
            drafts=profile.drafts,
            accepted=profile.accepted,
            accepts=request.accepts,
        )

    def _check(self, box: Box, arrival: Arrival, ids: Ids, logits: torch.Tensor) -> Verdict | None:
        """Hold the state in place to its gate, when the seed chose this request."""
        chosen = random.Random(f"{self._options.seed}:{arrival.trace}:{arrival.number}").random()
        if chosen >= self._options.verify:
            return None
        taint = box.stack.taint
        gate = Gate.BITS if taint is None else Gate.GREEDY
        clean = len(ids) if taint is None else taint
        return self._process.verifiers[box.slot].check(ids, logits, gate, clean)
