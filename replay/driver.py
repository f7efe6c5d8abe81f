"""Drives recorded requests through the real caches, forced to the recorded answers."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cache.account import Answer
from cache.budget import LEVELS
from cache.config import StackConfig
from cache.disk.notes import NAME as DISK
from cache.journal import Journal
from cache.ports import Jobs
from cache.types import Gate, Ids
from engine.pictures.patches import stand_in
from engine.pictures.picture import Picture
from engine.turn import Box, Chunk, Prompt, Ready, Resumed, Tokens, turn
from replay.bay import Bay
from replay.diskseen import DiskSeen, DiskUse
from replay.forced import Forced
from replay.ideal import Ideal
from replay.ledger import LedgerRow, Served, refused, served
from replay.models import build, meeting
from replay.options import Options
from replay.pieces import TracePieces
from replay.process import Ports, Process, Together
from replay.schedule import Arrival, Schedule
from replay.source import Source
from replay.suffixes import speak_alike
from replay.tokens import Tokens as TraceTokens
from replay.trace import Request, Trace
from replay.verify import Verdict
from sim.board import Board
from sim.clock import VirtualClock
from sim.jobs import SeededJobs


@dataclass(slots=True)
class _Watch:
    """What the driver sees while a request is served."""

    held: int = 0
    verdict: Verdict | None = None
    ttft_s: float | None = None
    restore_s: float = 0.0


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
        self._policy = policy
        self._clock = VirtualClock()
        self._journal = journal or Journal()
        self._live = speak_alike(traces)
        pieces = traces[0].live.pieces if self._live and traces[0].live else TracePieces()
        self._meets = meeting(profile, pieces)
        clock, seed = self._clock, options.seed
        assert profile.disk or options.cache_dir is None
        there = options.cache_dir, options.adopt_from
        self._bay = Bay(profile, clock, seed, *there) if profile.disk else None
        self._seen = DiskSeen(self._journal, self._bay.drive) if self._bay is not None else None
        self._restarts = deque(options.restarts)
        self._starts = self._deploys = 0
        self._process = self._started()
        self._ideal = Ideal()
        self._tokens: dict[int, TraceTokens] = {}
        """Tokens of the traces under way; a pack's would not all fit in memory."""
        self._ends: dict[tuple[int, int], int | None] = {}
        """End anchor's position after each served request."""

    def _started(self) -> Process:
        """Engine and caches made anew, on the files that are there; raises BadInput."""
        options, jobs, disk = self._options, None, None
        engine = build(options.model, options.profile, options.seed)
        if self._bay is not None:
            disk, jobs = self._bay.open(engine, self._deploys)
        suffixes = options.suffixes
        others = suffixes.jobs if suffixes is not None else None
        if jobs is not None and others is not None:
            together: Jobs = Together(jobs, others)
        else:
            together = jobs or others or SeededJobs(options.seed)
        ports = Ports(self._clock, together, self._journal, suffixes, disk)
        return Process(engine, options.profile, ports, self._meets, self._policy)

    def _restart(self, count: int) -> None:
        """End the process where that is asked for; what its jobs had not done by now is lost."""
        while self._restarts and self._restarts[0].after == count:
            self._deploys += self._restarts.popleft().deploys
            self._starts += 1
            self._told()
            self._process = self._started()

    def _told(self) -> None:
        """Journal what a process that ends has not."""
        stack = self.box.stack
        if stack.disk is not None:
            stack.disk.keeper.absorb()
        for event in stack.events():
            self._journal.note(event, self._clock.wall_s(), self.box.jobs)

    @property
    def box(self) -> Box:
        """What the requests run on."""
        return self._process.box

    @property
    def disk(self) -> dict[str, Any] | None:
        """What the disk tier did and holds, in plain numbers; None without one."""
        disk = self.box.stack.disk
        return self._seen.figures(disk) if self._seen is not None and disk is not None else None

    @property
    def board(self) -> Board:
        """What it lies on."""
        return self._process.board

    def __iter__(self) -> Iterator[LedgerRow]:
        schedule = Schedule(self._traces, self._options.users, self._options.arrivals)
        for count, arrival in enumerate(schedule):
            self._clock.advance_to(arrival.at_s)
            # What the drive did while nobody asked for anything.
            self.box.jobs.pump()
            self._restart(count)
            yield self._request(arrival, schedule.request(arrival))
            if schedule.ended(arrival, self._clock.mono_s()):
                self._tokens.pop(arrival.trace, None)
        self.box.jobs.drain()
        self._told()
        self.box.jobs.drain()
        self.close()

    def close(self) -> None:
        """Let go of a real directory, as the end of the requests does; nothing is served then."""
        if self._bay is not None:
            self._bay.close()

    def _request(self, arrival: Arrival, request: Request) -> LedgerRow:
        name, process = self._traces[arrival.trace].name, self._process
        wait_s = self._clock.mono_s() - arrival.at_s
        if request.prompt_tokens >= process.engine.window:
            return refused(name, arrival, request, wait_s, process=self._starts)
        prompt, saw = self._prompt(request, self._tokens_of(arrival)), _Watch()
        process.board.begins()
        before = Counter(process.budget.counters)
        box = process.slots.choose(prompt)
        self._serve(box, arrival, request, prompt, saw)
        process.slots.used(box)
        row, usage = self._journal.rows[-1], process.board.ends()
        if row.retry_after_s is not None:
            more = {"retry_after_s": row.retry_after_s, "process": self._starts}
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
            process=self._starts,
            disk=self._disk_use(saw),
        )
        return served(name, arrival, request, wait_s, row, seen)

    def _disk_use(self, saw: _Watch) -> DiskUse | None:
        disk = self.box.stack.disk
        if self._seen is None or disk is None:
            return None
        return self._seen.use(disk, saw.restore_s)

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
                    if plan.best is not None and plan.best.tier == DISK:
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
