"""The drive bay: the files of the tiers and the drive they lie on, which outlive every process"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cache.counted import CountedFiles
from cache.direct import DirectFiles
from cache.disk.config import DAY_S, SESSIONS, DiskConfig
from cache.disk.open import MARKER, Identity, open_tier
from cache.disk.shapes import Shapes
from cache.disk.tier import DiskTier
from cache.ports import Files
from cache.rows import BLOCK_ROWS
from cache.saving import TMP
from cache.spill.open import open_spill
from cache.spill.shapes import Shapes as SpillShapes
from cache.spill.tier import Spill
from cache.types import Refusal
from cache.writeguard import WRITES, WriteGuard
from engine.adapter import Engine
from engine.bad import BadInput
from engine.identity import identity_of
from replay.spilling import guard_config, spill_config, workers_of
from sim.clock import VirtualClock
from sim.drive import Drive, Rates
from sim.driven_files import DrivenFiles, Moved, Weigh
from sim.files import SimFiles
from sim.profile import Profile
from sim.timed_jobs import TimedJobs, TimedLock
from sim.timed_workers import TimedWay


@dataclass(frozen=True, slots=True)
class Opened:
    """What a process has of the drive."""

    jobs: TimedJobs
    guard: WriteGuard
    disk: DiskTier | None = None
    spill: Spill | None = None


class Bay:
    """Opens the tiers of one directory for every process that a replay starts, one after another.

    Heads of prompts lie in the directory itself, whole conversations in a folder of it.
    """

    def __init__(
        self,
        profile: Profile,
        clock: VirtualClock,
        seed: int,
        directory: Path | None = None,
        adopt_from: Sequence[str] = (),
    ) -> None:
        """Without a directory the files are simulated. Raises BadInput for one that is no good.

        `adopt_from` are folders that this tree lay in when files there were written.
        """
        self._profile = profile
        self._clock = clock
        self._seed = seed
        self._adopt_from = adopt_from
        self._directory = directory
        self._place = str(directory) if directory is not None else "the simulated drive"
        self._files: Files = SimFiles(logs=False) if directory is None else _opened(directory)
        self._sessions: Files | None = None
        self.drive = Drive(Rates.of(profile))
        self.heads_moved, self.sessions_moved = Moved(), Moved()
        self._way = TimedWay(clock)
        self._driven: list[DrivenFiles] = []
        self._starts = 0

    @property
    def held_bytes(self) -> int:
        """Board bytes of everything in the directory."""
        return sum(files.held_bytes() for files in self._driven)

    @property
    def said(self) -> str:
        """Why a real directory's files go through the page cache; "" while none had to."""
        return self._files.said if isinstance(self._files, DirectFiles) else ""

    def open(self, engine: Engine, deploys: int) -> Opened:
        """The tiers for a process that starts now, and the jobs they write in; raises BadInput.

        The process before it has ended: what its jobs had not done is left as it was. After
        another number of `deploys` other code computes the rows. A start takes no time: how long
        an engine takes to load is no cache's matter.
        """
        profile, clock = self._profile, self._clock
        self.end()
        jobs = TimedJobs(clock, self._seed + self._starts)
        self._starts += 1
        chunk_s = profile.grid * profile.row_bytes / profile.device_copy_bytes_s
        engine.device_lock = TimedLock(clock, chunk_s)
        # A deploy in a replay stands for other code.
        more = {"deploys": str(deploys)} if deploys else None
        identity = identity_of(engine, self._adopt_from, more)
        guard = WriteGuard(clock, guard_config(profile))
        with clock.aside(clock.mono_s()):
            heads = self._drives(self._files, Shapes(engine, "").weigh, self.heads_moved)
            disk = self._open_disk(heads, jobs, engine, identity, guard) if profile.disk else None
            if disk is None:
                self._refuse_strangers(heads)
                guard.load(heads)
            self._make_private(self._files)
            spill = self._open_spill(engine, identity, guard) if profile.spill else None
        if spill is not None:
            spill.writer.wrote = disk.keeper.save_record if disk else partial(guard.save, heads)
        return Opened(jobs, guard, disk, spill)

    def _drives(self, files: Files, weigh: Weigh, moved: Moved) -> DrivenFiles:
        """Files on the drive, which all of them fill."""

        def beside() -> int:
            return sum(other.held_bytes() for other in self._driven if other is not driven)

        size = self._profile.drive_bytes
        driven = DrivenFiles(files, self.drive, self._clock, weigh, size, moved, beside)
        self._driven.append(driven)
        return driven

    def _open_disk(
        self,
        files: DrivenFiles,
        jobs: TimedJobs,
        engine: Engine,
        identity: Identity,
        guard: WriteGuard,
    ) -> DiskTier:
        config = disk_config(self._profile)
        tier = open_tier(files, self._clock, jobs, config, engine, identity, guard, self._way)
        if isinstance(tier, Refusal):
            raise self._refused(tier)
        return tier

    def _open_spill(self, engine: Engine, identity: Identity, guard: WriteGuard) -> Spill:
        if self._sessions is None:
            folder = self._directory / SESSIONS if self._directory is not None else None
            self._sessions = SimFiles(logs=False) if folder is None else _opened(folder)
        profile, clock = self._profile, self._clock
        weigh = SpillShapes(engine, "", BLOCK_ROWS).weigh
        driven = self._drives(self._sessions, weigh, self.sessions_moved)
        files = CountedFiles(driven, partial(guard.wrote, "spill"), weigh)
        workers = workers_of(profile, clock, engine)
        config = spill_config(profile)
        spill = open_spill(files, clock, config, engine, identity, workers, guard, self._way)
        if isinstance(spill, Refusal):
            raise self._refused(spill, SESSIONS)
        self._make_private(self._sessions)
        return spill

    def _refused(self, refusal: Refusal, *folder: str) -> BadInput:
        place = "/".join((self._place, *folder, *filter(None, [refusal.name])))
        return BadInput(place, None, refusal.why)

    def _refuse_strangers(self, files: Files) -> None:
        """A folder that conversations alone are to lie in is a tier's, or has nothing else."""
        try:
            names = files.list()
        except OSError as error:
            raise BadInput(self._place, None, f"cannot be listed: {error.strerror}") from None
        others = [name for name in names if name not in (SESSIONS, WRITES, WRITES + TMP)]
        if others and MARKER not in names:
            first = others[0] if others[0].isprintable() else ascii(others[0])
            why = f"holds {first}, which is no tier's: give it a folder of its own"
            raise BadInput(self._place, None, why)

    def _make_private(self, files: Files) -> None:
        """A real directory is nobody else's: once it is known to be a tier's, not before."""
        if isinstance(files, DirectFiles):
            try:
                files.make_private()
            except OSError as error:
                raise BadInput(self._place, None, f"cannot be used: {error.strerror}") from None

    def end(self) -> None:
        """The process that opened it is over; its locks are the next one's."""
        for driven in self._driven:
            driven.abandon()
        self._driven.clear()

    def close(self) -> None:
        """No other process will open it."""
        self.end()
        for files in (self._files, self._sessions):
            if isinstance(files, DirectFiles):
                files.close_all()


def _opened(directory: Path) -> Files:
    """A real directory around the page cache; raises BadInput."""
    place = str(directory)
    try:
        files = DirectFiles(directory)
        if why := files.unfit():
            raise BadInput(place, None, why)
    except FileExistsError:
        raise BadInput(place, None, "not a directory") from None
    except OSError as error:
        raise BadInput(place, None, f"cannot be used: {error.strerror}") from None
    return files


def disk_config(profile: Profile) -> DiskConfig:
    """The tier's settings of a board."""
    return DiskConfig(
        budget_bytes=profile.disk_bytes,
        ttl_s=profile.disk_ttl_days * DAY_S,
        min_free_bytes=profile.disk_min_free_bytes,
        admit_after=profile.disk_admit_after,
        head_anchors=profile.disk_head_anchors,
        branches=profile.disk_branches,
        tokens_min=profile.disk_tokens_min,
    )
