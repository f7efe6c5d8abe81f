"""The drive bay: the disk tier's files and the drive they lie on, which outlive every process"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cache.direct import DirectFiles
from cache.disk.config import DAY_S, DiskConfig
from cache.disk.open import open_tier
from cache.disk.shapes import Shapes
from cache.disk.tier import DiskTier
from cache.ports import Files
from cache.types import Refusal
from engine.adapter import Engine
from engine.identity import identity_of
from replay.bad import BadInput
from sim.clock import VirtualClock
from sim.drive import Drive, Rates
from sim.driven_files import DrivenFiles
from sim.files import SimFiles
from sim.profile import Profile
from sim.timed_jobs import TimedJobs, TimedLock


class Bay:
    """Opens the tier of one directory for every process that a replay starts, one after another."""

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
        self._place = str(directory) if directory is not None else "the simulated drive"
        self._files: Files = SimFiles(logs=False) if directory is None else _opened(directory)
        self.drive = Drive(Rates.of(profile))
        self._driven: DrivenFiles | None = None
        self._starts = 0

    @property
    def held_bytes(self) -> int:
        """Board bytes of everything in the directory."""
        return self._driven.held_bytes() if self._driven is not None else 0

    @property
    def said(self) -> str:
        """Why a real directory's files go through the page cache; "" while none had to."""
        return self._files.said if isinstance(self._files, DirectFiles) else ""

    def open(self, engine: Engine, deploys: int) -> tuple[DiskTier, TimedJobs]:
        """The tier for a process that starts now, and the jobs it writes in; raises BadInput.

        The process before it has ended: what its jobs had not done is left as it was. After
        another number of `deploys` other code computes the rows. A start takes no time: how long
        an engine takes to load is no cache's matter.
        """
        profile, clock = self._profile, self._clock
        self.end()
        weigh = Shapes(engine, "").weigh
        self._driven = DrivenFiles(self._files, self.drive, clock, weigh, profile.drive_bytes)
        jobs = TimedJobs(clock, self._seed + self._starts)
        self._starts += 1
        chunk_s = profile.grid * profile.row_bytes / profile.device_copy_bytes_s
        engine.device_lock = TimedLock(clock, chunk_s)
        # A deploy in a replay stands for other code.
        more = {"deploys": str(deploys)} if deploys else None
        identity = identity_of(engine, self._adopt_from, more)
        with clock.aside(clock.mono_s()):
            tier = open_tier(self._driven, clock, jobs, disk_config(profile), engine, identity)
        if isinstance(tier, Refusal):
            name = f"/{tier.name}" if tier.name else ""
            raise BadInput(f"{self._place}{name}", None, tier.why)
        self._make_private()
        return tier, jobs

    def _make_private(self) -> None:
        """A real directory is nobody else's: once it is known to be a tier's, not before."""
        if isinstance(self._files, DirectFiles):
            try:
                self._files.make_private()
            except OSError as error:
                raise BadInput(self._place, None, f"cannot be used: {error.strerror}") from None

    def end(self) -> None:
        """The process that opened it is over; its lock is the next one's."""
        if self._driven is not None:
            self._driven.abandon()

    def close(self) -> None:
        """No other process will open it."""
        self.end()
        if isinstance(self._files, DirectFiles):
            self._files.close_all()


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
