"""Lives of a process: starts, planned stops, abrupt ends and pauses, over one drive"""

from __future__ import annotations

from collections import deque
from typing import Any

from cache.config import StackConfig
from cache.journal import Journal
from cache.meet import Meeting
from cache.planned import drain, pause, read_back
from cache.ports import Jobs
from replay.bay import Bay, Opened
from replay.diskseen import DiskSeen, DiskUse
from replay.models import build
from replay.options import Options
from replay.process import Ports, Process, Together
from replay.spillseen import SpillSeen, SpillUse
from sim.clock import VirtualClock
from sim.jobs import SeededJobs


class Lives:
    """One process after another; what one left on the drive the next one finds."""

    def __init__(
        self,
        options: Options,
        clock: VirtualClock,
        journal: Journal,
        meets: Meeting,
        policy: StackConfig | None,
    ) -> None:
        """Starts the first one; raises BadInput. `policy` replaces the profile's caches."""
        profile = options.profile
        self._options = options
        self._clock = clock
        self._journal = journal
        self._meets = meets
        self._policy = policy
        drives = profile.disk or profile.spill
        assert drives or options.cache_dir is None
        there = options.cache_dir, options.adopt_from
        self._bay = Bay(profile, clock, options.seed, *there) if drives else None
        self._disk_seen = self._spill_seen = None
        if self._bay is not None:
            self._disk_seen = DiskSeen(journal, self._bay.heads_moved)
            self._spill_seen = SpillSeen(journal, self._bay.sessions_moved)
        self._restarts = deque(options.restarts)
        self._deploys = 0
        self._opened: Opened | None = None
        self.count = 0
        """Restarts so far."""
        self.process = self._started()

    # starts and ends

    def _started(self) -> Process:
        """Engine and caches made anew, on the files that are there; raises BadInput."""
        options, own = self._options, None
        engine = build(options.model, options.profile, options.seed, knobs=options.knobs)
        if self._bay is not None:
            self._opened = self._bay.open(engine, self._deploys)
            own = self._opened.jobs
        suffixes = options.suffixes
        others = suffixes.jobs if suffixes is not None else None
        if own is not None and others is not None:
            together: Jobs = Together(own, others)
        else:
            together = own or others or SeededJobs(options.seed)
        disk, spill = (self._opened.disk, self._opened.spill) if self._opened else (None, None)
        ports = Ports(self._clock, together, self._journal, suffixes, disk, spill)
        process = Process(engine, options.profile, ports, self._meets, self._policy)
        self._read_back(process)
        return process

    def _read_back(self, process: Process) -> None:
        """The conversation in place at the planned stop comes back, as part of the start."""
        clock, seen = self._clock, self._spill_seen
        if process.box.stack.spill is None or seen is None:
            return
        with clock.aside(clock.mono_s()):
            begun_s = clock.mono_s()
            line = read_back(process.box.stack, process.engine)
            seconds = clock.mono_s() - begun_s
        if line is not None:
            seen.read_backs.append({"tokens": line.tokens, "kind": line.kind, "seconds": seconds})

    def restart(self, count: int) -> None:
        """End the process where that is asked for after `count` requests, and start the next."""
        while self._restarts and self._restarts[0].after == count:
            restart = self._restarts.popleft()
            self._deploys += restart.deploys
            if not restart.kills:
                self.stop()
            self.count += 1
            self._told()
            self.process = self._started()

    def stop(self) -> None:
        """A planned stop: conversations go to the drive, then what jobs have in hand ends.

        It takes time, as it does on a box: whoever asks meanwhile waits in the queue.
        """
        stack, seen = self.process.box.stack, self._spill_seen
        if stack.spill is not None and seen is not None and self._bay is not None:
            begun_s, before = self._clock.mono_s(), self._bay.sessions_moved.written_bytes
            saved = drain(stack, self.process.engine)
            seconds = self._clock.mono_s() - begun_s
            written = self._bay.sessions_moved.written_bytes - before
            told = {"seconds": seconds, "conversations": saved, "written_bytes": written}
            seen.drains.append(told)
        self.process.box.jobs.drain()

    def _told(self) -> None:
        """Journal what a process that ends has not."""
        box = self.process.box
        if box.stack.disk is not None:
            box.stack.disk.keeper.absorb()
        for event in box.stack.events():
            self._journal.note(event, self._clock.wall_s(), box.jobs)

    def end(self) -> None:
        """The last request was served. A directory is left as a planned stop leaves it."""
        if self._options.cache_dir is not None:
            self.stop()
        jobs = self.process.box.jobs
        jobs.drain()
        self._told()
        jobs.drain()

    def close(self) -> None:
        """Let go of a real directory; nothing is served then."""
        if self._bay is not None:
            self._bay.close()

    # between requests

    def rest(self, until_s: float) -> None:
        """Nobody asks for anything before `until_s`: what is in memory is written ahead."""
        clock, box = self._clock, self.process.box
        spill = box.stack.spill
        if spill is not None and spill.config.idle_s:
            idle_s = clock.mono_s() + spill.config.idle_s
            if idle_s <= until_s:
                clock.advance_to(idle_s)
                box.jobs.pump()
                pause(box.stack, self.process.engine, lambda: clock.mono_s() >= until_s)
        clock.advance_to(until_s)
        # What the drive did while nobody asked for anything.
        box.jobs.pump()

    # what was seen

    @property
    def save_s(self) -> float:
        """Seconds that this process has spent on writing conversations."""
        spill = self.process.box.stack.spill
        return sum(spill.writer.spent.seconds.values()) if spill is not None else 0.0

    def disk_use(self) -> DiskUse | None:
        """What the disk tier did since this was last asked."""
        disk = self.process.box.stack.disk
        return self._disk_seen.use(disk) if self._disk_seen and disk else None

    def spill_use(self, save_s: float) -> SpillUse | None:
        """What the spill did since this was last asked; `save_s` of a request's time went there."""
        spill = self.process.box.stack.spill
        return self._spill_seen.use(spill, save_s) if self._spill_seen and spill else None

    @property
    def disk(self) -> dict[str, Any] | None:
        """What the disk tier did and holds, in plain numbers; None without one."""
        disk = self.process.box.stack.disk
        return self._disk_seen.figures(disk) if self._disk_seen and disk else None

    @property
    def spill(self) -> dict[str, Any] | None:
        """What the spill did and holds, in plain numbers; None without one."""
        spill = self.process.box.stack.spill
        return self._spill_seen.figures(spill) if self._spill_seen and spill else None

    @property
    def writes(self) -> dict[str, Any] | None:
        """What was written by day, beside the day's budget; None without a drive."""
        if self._spill_seen is None or self._opened is None:
            return None
        return self._spill_seen.writes(self._opened.guard)
