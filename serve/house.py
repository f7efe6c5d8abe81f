"""The house: one engine with its slots, caches and files, from its start to its end"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cache.align import Alignment
from cache.counted import CountedFiles
from cache.direct import DirectFiles
from cache.disk.config import SESSIONS
from cache.disk.open import open_tier
from cache.disk.tier import DiskTier
from cache.host import OsFiles, SystemClock, ThreadJobs
from cache.journal import Journal
from cache.levels import levels_of
from cache.meet import Switch
from cache.planned import drain, pause, read_back
from cache.responses import Responses
from cache.rows import BLOCK_ROWS
from cache.saving import TMP, said, save_now
from cache.spill.open import open_spill
from cache.spill.shapes import Shapes
from cache.spill.tier import Spill
from cache.stack import Stack
from cache.suffix_store import SuffixConfig, SuffixStore
from cache.types import Line, Refusal
from cache.workers import ThreadWay, ThreadWorkers
from cache.writeguard import WriteGuard
from engine.adapter import Engine
from engine.bad import BadInput
from engine.box import Box
from engine.chat.dialect import Dialect
from engine.identity import identity_of
from engine.pictures.leave_out import Cap
from engine.slots import Slots, side_stack
from serve.host_memory import HostBudget, total_bytes
from serve.settings import Settings
from serve.settings_apply import Running, put
from serve.settings_file import NAME, SettingsFile

HEADS, JOURNAL, SUFFIXES = "heads", "journal", "suffixes"
"""Folders of the directory: the drive's tiers, the journal's files, the suffix store."""
KEY, KEY_BYTES = "key", 16
OURS = frozenset({HEADS, JOURNAL, SUFFIXES, "recordings", NAME, KEY})
AnyFiles = TypeVar("AnyFiles", bound=OsFiles)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a house is built with; it can't change while it stands."""

    cache_dir: Path | None = None
    """Where files are kept; without one all is in memory and gone at the end."""
    parallel: int = 2
    side_window: int = 32_768
    adopt_from: tuple[str, ...] = ()
    response_mb: int = 0
    """MiB of answers that are given again to identical greedy requests; 0 computes every answer."""


class House:
    """Everything that a request meets behind the desk."""

    def __init__(
        self, engine: Engine, dialect: Dialect, setup: Setup, settings: Settings | None = None
    ) -> None:
        """Opens the files; raises BadInput for a directory that is no good. The settings are those
        that were written there last, else the ones given, else what suits the machine."""
        self.engine, self.dialect, self.setup = engine, dialect, setup
        self.clock = SystemClock()
        self.jobs = ThreadJobs()
        self._closers: list[Callable[[], Any]] = [self.jobs.close]
        self.file: SettingsFile | None = None
        self.key = secrets.token_bytes(KEY_BYTES)
        """Of the names that conversations without one get; a directory keeps it."""
        self.disk: DiskTier | None = None
        self.spill: Spill | None = None
        self.suffixes: SuffixStore | None = None
        self.journal = Journal()
        with ExitStack() as undo:
            undo.callback(self._let_go)
            self.settings = settings or Settings.for_machine(total_bytes())
            if setup.cache_dir is not None:
                folder = self._closes(_own_folder(setup.cache_dir))
                self.key = _kept_key(folder, self.key)
                self.file = SettingsFile(folder, str(setup.cache_dir))
                self.settings = self.file.load(self.settings)
            self.guard = WriteGuard(self.clock, self.settings.guard_config())
            if setup.cache_dir is not None:
                self._open_drive(setup.cache_dir)
                self.suffixes = self._open_suffixes(setup.cache_dir / SUFFIXES)
                place = setup.cache_dir / JOURNAL
                self.journal = _open_journal(self._closes(_private(OsFiles(place))), str(place))
            undo.pop_all()
        self._sees()
        self.budget = HostBudget(self.settings.limits(), engine)
        self._furnish()
        self.read_back: Line | None = None
        parts = (self.disk, self.spill, self.guard if self.disk is not None else None)
        self.running = Running(self.box, self.meets, *parts)

    def change(self, patch: Mapping[str, Any]) -> Settings:
        """Other settings, from now on; raises what `put` does. On the engine's thread, while no
        request is served."""
        self.settings = put(patch, self.settings, self.running, self.file)
        self._sees()
        self.report()
        return self.settings

    def _sees(self) -> None:
        """As many of a conversation's images are read as the settings say."""
        serving = self.settings.serving
        self.dialect.cap = Cap(serving.images_max, serving.image_rows_max)

    # building

    def _furnish(self) -> None:
        """Caches, slots, and the memory they share."""
        engine, grow, settings = self.engine, self.budget.grow, self.settings
        meets = self.meets = Switch(Alignment(self.dialect.tokenizer, text=True))
        meets.on = settings.alignment == "full"
        config = settings.stack_config()
        stack = Stack(engine, config, meets, grow=grow, disk=self.disk, spill=self.spill)
        self.box = Box(engine, stack, self.clock, self.jobs, self.journal, budget=self.budget)
        self.box.suffixes = self.suffixes
        if self.setup.response_mb:
            self.box.responses = Responses(self.setup.response_mb << 20)
        self.slots = Slots.beside(
            self.box,
            self.setup.parallel,
            min(self.setup.side_window, engine.window),
            lambda side: side_stack(side, meets, stack.store, grow, self.disk),
        )
        boxes = [(box.stack, box.engine) for box in self.slots]
        self.budget.over(levels_of(boxes, engine.encoded))
        for tier in (engine.encoded, self.disk, self.spill and self.spill.buffers):
            if tier is not None:
                tier.grow = grow

    def _open_drive(self, directory: Path) -> None:
        """The tiers on the drive; raises BadInput."""
        engine, clock, settings, guard = self.engine, self.clock, self.settings, self.guard
        identity, way = identity_of(engine, self.setup.adopt_from), ThreadWay()
        heads = self._direct(directory / HEADS)
        disk = open_tier(
            heads, clock, self.jobs, settings.disk_config(), engine, identity, guard, way
        )
        if isinstance(disk, Refusal):
            raise BadInput(str(directory / HEADS / disk.name), None, disk.why)
        self._closers.append(disk.close)
        self.disk = disk
        folder = directory / HEADS / SESSIONS
        sessions = self._direct(folder)
        weigh = Shapes(engine, "", BLOCK_ROWS).weigh
        files = CountedFiles(sessions, partial(guard.wrote, "spill"), weigh)
        workers = ThreadWorkers()
        config = settings.spill_config()
        spill = open_spill(files, clock, config, engine, identity, workers, guard, way)
        if isinstance(spill, Refusal):
            raise BadInput(str(folder / spill.name), None, spill.why)
        self._closers += [workers.close, spill.close]
        self.spill = spill
        spill.writer.wrote = disk.keeper.save_record

    def _direct(self, folder: Path) -> DirectFiles:
        """A folder around the page cache, this user's own; raises BadInput."""
        try:
            files = DirectFiles(folder)
            if why := files.unfit():
                raise BadInput(str(folder), None, why)
        except FileExistsError:
            raise BadInput(str(folder), None, "not a directory") from None
        except OSError as error:
            raise BadInput(str(folder), None, f"cannot be used: {error.strerror}") from None
        return _private(self._closes(files))

    def _closes(self, files: AnyFiles) -> AnyFiles:
        """Files whose threads end with the house."""
        self._closers.append(files.close_all)
        return files

    def _open_suffixes(self, folder: Path) -> SuffixStore:
        """What was read and written before, for lookups; raises BadInput."""
        files = self._closes(_private(OsFiles(folder)))
        tokenizer = bytes.fromhex(self.dialect.tokenizer.sha256)
        store = SuffixStore.open(files, tokenizer, SuffixConfig(), self.clock, self.jobs)
        if isinstance(store, Refusal):
            raise BadInput(str(folder / store.name), None, store.why)
        self._closers.append(store.close)
        return store

    # a process's life; all of it on the engine's thread

    def start(self) -> None:
        """What was in place at the last planned stop comes back."""
        self.read_back = read_back(self.box.stack, self.engine)

    def idle(self, wanted: Callable[[], bool], rested_s: float) -> bool:
        """Nobody has asked for anything for `rested_s`: what was written meanwhile is told, and
        what is in memory is written ahead."""
        spill = self.spill
        if self.disk is not None:
            self.disk.keeper.absorb()
            self.report()
        if spill is None or not spill.config.idle_s or rested_s < spill.config.idle_s:
            return False
        saved = pause(self.box.stack, self.engine, wanted)
        self.report()
        return saved > 0

    def report(self) -> None:
        """Journal what the caches have to say beside turns."""
        for box in self.slots:
            for event in box.stack.events():
                self.journal.note(event, self.clock.wall_s(), self.jobs)

    def stop(self) -> int:
        """A planned stop: conversations go to the drive; how many are there."""
        saved = drain(self.box.stack, self.engine)
        self.jobs.drain()
        if self.disk is not None:
            self.disk.keeper.absorb()
        self.report()
        self.jobs.drain()
        return saved

    def close(self) -> None:
        """Let go of files and threads; nothing is served any more."""
        self.jobs.drain()
        self._let_go()

    def _let_go(self) -> None:
        for close in reversed(self._closers):
            close()
        self._closers.clear()


def _private(files: AnyFiles) -> AnyFiles:
    """A folder of ours becomes nobody else's; raises BadInput."""
    try:
        files.make_private()
    except OSError as error:
        raise BadInput(str(files.root), None, f"cannot be used: {error.strerror}") from None
    return files


def _own_folder(directory: Path) -> OsFiles:
    """The server's directory: empty, or one of its own; raises BadInput."""
    place = str(directory)
    try:
        files = OsFiles(directory)
        if why := files.unfit():
            raise BadInput(place, None, why)
        foreign = [name for name in files.list() if name.removesuffix(TMP) not in OURS]
    except FileExistsError:
        raise BadInput(place, None, "not a directory") from None
    except OSError as error:
        raise BadInput(place, None, f"cannot be used: {error.strerror}") from None
    if foreign:
        first = foreign[0] if foreign[0].isprintable() else ascii(foreign[0])
        why = f"holds {first}, which is no server's: give it a folder of its own"
        raise BadInput(place, None, why)
    return _private(files)


def _kept_key(folder: OsFiles, fresh: bytes) -> bytes:
    """The directory's key, written when it has none; raises BadInput."""
    try:
        if folder.exists(KEY):
            handle = folder.open(KEY)
            try:
                kept = folder.read(handle, 0, KEY_BYTES)
            finally:
                folder.close(handle)
            if len(kept) == KEY_BYTES:
                return kept
        why = save_now(folder, KEY, memoryview(fresh))
    except OSError as error:
        why = said(error)
    if why:
        raise BadInput(str(folder.root / KEY), None, why)
    return fresh


def _open_journal(files: OsFiles, place: str) -> Journal:
    """The journal with its files; raises BadInput."""
    try:
        return Journal(files)
    except OSError as error:
        raise BadInput(place, None, f"cannot be used: {said(error)}") from None
