"""Goal: a drive that fails costs what it failed on: nothing raised, no wrong byte, nothing leaked.

Method: one life of a tier (opened with an older entry, saved, restored, evicted, opened again) over
simulated files; every call of it fails in turn with every error, once and for ever, with and
without half a transfer made. Then the process itself and the directory opened anew are looked at.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from oracle import Oracle, Tally
from rig import CONFIG, LONG, STRANGER, A, Owed, Refused, Rig, astray
from scenarios import saved

from cache.ports import PAGE
from sim.faults import Fault
from sim.files import SimFiles
from sim.micro import Note
from sim.moved import Moved

Told = Callable[[Tally], Tally]
ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS)
READS = ("size", "open", "start_read", "close")
TRANSFERS = ("start_write", "start_read", "fsync")


class Traced(SimFiles):
    """Says which call was which."""

    def __init__(self, state: dict[str, bytes]) -> None:
        self.kinds: list[str] = []
        super().__init__(state)

    def _failure(self) -> OSError | None:
        frame = sys._getframe(1)
        while frame.f_code.co_name.startswith("_") and frame.f_back is not None:
            frame = frame.f_back
        self.kinds.append(frame.f_code.co_name)
        return super()._failure()


def life(files: SimFiles, rigs: list[Rig]) -> None:
    """Open, save, restore, evict, close; open again, restore and save more.

    `rigs` has the one that is open.
    """
    rig = Rig(files)
    rigs.append(rig)
    for ids, session in ((A, "a"), (A, "b")):
        rig.ask(ids, session)
        rig.reset()
    held = rig.tier.index.held_bytes()
    rig.tier.configure(replace(CONFIG, budget_bytes=max(0, held - 1)))
    rig.settle()
    rigs.pop()
    rig.close()
    found_wrong(rig)
    rigs.append(Rig(files))
    rigs[-1].ask(LONG, "d")
    rigs[-1].settle()


def found_wrong(rig: Rig) -> None:
    """No request of a process that is over was served wrong bytes."""
    assert not rig.wrong, rig.wrong


@dataclass(frozen=True, slots=True)
class After:
    """What a life left that a fault struck."""

    files: Traced
    rigs: list[Rig]
    hits: int
    raised: str
    ever: bool

    def wrong(self, oracle: Oracle, *, strict: bool) -> list[str]:
        """All that is wrong; `strict`: what may be left depends on no call that failed."""
        found = [self.raised] if self.raised else []
        for rig in self.rigs if not self.raised else ():
            found += again(rig)
            found += astray(rig) if strict else []
            rig.close()
        found += [f"handle {handle} is open" for handle in self.files.handles]
        owed = Owed.by(op.what for op in self.files.log if isinstance(op, Note))
        if self.ever and self.rigs:
            # A drive that reads nothing any more costs what stands on what it was asked for.
            owed = replace(owed, anchors=owed.anchors & self.rigs[-1].entries())
        return found + oracle.judge(self.files.snapshot(), owed)


def again(rig: Rig) -> list[str]:
    """With a drive that works, in the same process: what is new is saved, and serves."""
    rig.reset()
    rig.ask(STRANGER, "new")
    rig.reset()
    row = rig.ask(STRANGER, "newer")
    rig.settle()
    found = [] if (row.source, row.cached) == ("disk.grid", 8) else [f"{row.source} {row.cached}"]
    return found + rig.wrong


def struck(fault: Fault) -> After:
    """A life with a fault; then the drive works."""
    files, rigs, raised = Traced(dict(saved(1))), list[Rig](), ""
    files.fault = fault
    try:
        life(files, rigs)
    except Refused:
        pass  # It runs without a tier.
    except Exception as error:
        raised = f"raised {type(error).__name__} {error}"
    files.fault = None
    return After(files, rigs, files.failed, raised, fault.for_ever)


def calls() -> list[str]:
    """Every call of a life by kind."""
    files = Traced(dict(saved(1)))
    life(files, [])
    return files.kinds


def faults(kinds: list[str], *, every: bool) -> Iterator[tuple[str, Fault]]:
    """Faults of every call, each with its kind; without `every` one error a call, in turn."""
    for at, kind in enumerate(kinds):
        for n, number in enumerate(ERRORS):
            for ever in (False, True):
                if every or (n == at % len(ERRORS) and (not ever or at % 6 == 0)):
                    yield kind, Fault(at, number, for_ever=ever)
                    if kind in TRANSFERS and (every or at % 2):
                        yield kind, Fault(at, number, for_ever=ever, half=True, reverts=True)


def looped(name: str, *, every: bool) -> Tally:
    """Every fault in turn."""
    tally, oracle, kinds = Tally(name), Oracle(), calls()
    for kind, fault in faults(kinds, every=every):
        if not every and fault.call % 3 and fault.call != kinds.index(kind):
            continue  # A third of the calls, and the first of each kind; the others are among all.
        after = struck(fault)
        assert after.hits
        # What can't be read at the opening stays where it is, and what can't be deleted.
        strict = not fault.for_ever and kind not in ("unlink", *READS)
        for why in after.wrong(oracle, strict=strict):
            tally.violations.append(f"{kind} {fault}: {why}")
        tally.checks += 1
    tally.states = len(oracle.found)
    return tally


def test_a_life_makes_every_call() -> None:
    made = set(calls())
    assert made == {
        *("lock", "create", "open", "start_write", "start_read", "fsync", "close", "fsyncdir"),
        *("rename", "unlink", "size", "list", "free_bytes", "preallocate"),
    }


def test_every_call_may_fail(tallied: Told) -> None:
    assert tallied(looped("errors, every third call", every=False)).violations == []


@pytest.mark.slow
def test_every_call_may_fail_with_every_error(tallied: Told) -> None:
    assert tallied(looped("errors, every call and error", every=True)).violations == []


@pytest.mark.parametrize("short", [0, 1, 4_095, 4_096, 8_191])
def test_a_read_may_give_less(short: int) -> None:
    """Of any file, whenever it is read."""
    files = SimFiles(saved(0))
    rig = Rig(files, trusted=False)
    files.short = lambda name, found: min(found, short)
    rig.ask(A, "a")
    rig.settle()
    files.short = None
    assert again(rig) + astray(rig) == []
    rig.close()
    assert Oracle().judge(files.snapshot(), Owed()) == []


class Short(SimFiles):
    """One write gives less than it was given, and says so instead of failing."""

    at = 0
    """Of the writes to come of more than a page."""

    def start_write(self, handle: int, offset: int, data: memoryview) -> Moved:
        self.at -= len(data) > PAGE
        return super().start_write(handle, offset, data[: PAGE if self.at == 0 else len(data)])


@pytest.mark.parametrize("at", [1, 2])
def test_a_write_may_take_less(at: int) -> None:
    """Of an anchor's or a chunk's two pages one."""
    files = Short(saved(1))
    rig = Rig(files)
    files.at = at
    rig.ask(A, "a")
    rig.settle()
    assert {e.event for e in (*rig.box.journal.events, *rig.tier.events())} >= {"drop"}
    assert again(rig) + astray(rig) == []
    rig.close()
    notes = [op.what for op in files.log if isinstance(op, Note)]
    assert Oracle().judge(files.snapshot(), Owed.by(notes)) == []


@pytest.mark.parametrize("room", range(0, 90_000, 4_096))
def test_a_full_drive_keeps_what_it_has(room: int) -> None:
    """The drive has room for some of what is to be written; an older entry stays."""
    held = sum(map(len, saved(1).values()))
    files = SimFiles(saved(1), capacity_bytes=held + room)
    rig = Rig(files)
    for ids in (A, LONG):
        rig.ask(ids)
        rig.reset()
    found = rig.wrong + astray(rig)
    rig.close()
    notes = [op.what for op in files.log if isinstance(op, Note)]
    assert found + Oracle().judge(files.snapshot(), Owed.by(notes)) == []
    assert Owed.by(notes).anchors >= Rig(SimFiles(saved(1))).entries()


def test_the_free_space_that_is_others_is_left() -> None:
    files = SimFiles(saved(1))
    rig = Rig(files, config=replace(CONFIG, min_free_bytes=100_000))
    before = rig.entries()
    files.free = lambda: 100_000 + 8_191
    rig.ask(A, "a")
    rig.reset()
    assert rig.entries() == before and astray(rig) == []
    told = [*rig.box.journal.events, *rig.tier.events()]
    assert {event.why for event in told if event.event == "drop"} == {"floor"}
    files.free = lambda: 1 << 40
    rig.ask(A, "b")
    rig.settle()
    assert rig.entries() > before
