"""Goal: a drive that fails costs the spill what it failed on: nothing raised, no wrong byte, none
left, and the older entry of a conversation stays until the newer one is whole.

Method: one life of a spill (opened with an older entry, read back, saved again, saved a second
conversation, evicted, opened again) over simulated files; every call of it fails in turn with every
error, once and for ever, with and without half a transfer made. Then the process itself and the
directory opened anew are looked at. Drives that fill, floors and budgets too.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from rig import Refused
from spill_oracle import SpillOracle
from spill_owed import Owed
from spill_rig import CONFIG, PLANES, RAW, SpillRig, astray
from spill_scenarios import CODECS, saved, unowed
from states import Tally
from test_errors import READS, Short, Traced, faults

from cache.drive_config import Mode
from cache.spill.codec import CodecConfig
from sim.faults import Fault
from sim.files import SimFiles
from sim.micro import Note, Rename

Told = Callable[[Tally], Tally]


def life(files: SimFiles, rigs: list[SpillRig], codec: CodecConfig = PLANES) -> None:
    """Open, read back, go on, save, save another one, evict, close; open again, read, save.

    `rigs` has the one that is open.
    """
    config = replace(CONFIG, codec=codec)
    rig = SpillRig(files, config=config, notes=saved(codec, "a").notes)
    rigs.append(rig)
    rig.comes_back()
    rig.turn("a")
    rig.save()
    rig.turn("b")
    rig.save()
    rig.spill.remember(rig.stack.resident.account)
    held = rig.spill.shelf.held_bytes()
    rig.spill.configure(replace(config, budget_bytes=max(0, held - 1)))
    rigs.pop()
    rig.close()
    assert not rig.wrong, rig.wrong
    rigs.append(SpillRig(files, config=config))
    rigs[-1].comes_back()
    rigs[-1].turn("b")
    rigs[-1].save()


@dataclass(frozen=True, slots=True)
class After:
    """What a life left that a fault struck."""

    files: Traced
    rigs: list[SpillRig]
    hits: int
    raised: str

    def wrong(self, oracle: SpillOracle, *, strict: bool) -> list[str]:
        """All that is wrong; `strict`: what may be left depends on no call that failed."""
        found = [self.raised] if self.raised else []
        for rig in self.rigs if not self.raised else ():
            found += again(rig)
            found += astray(rig) if strict else []
            rig.close()
        found += [f"handle {handle} is open" for handle in self.files.handles]
        return found + oracle.noted(self.files.snapshot(), said(self.files))


def said(files: SimFiles) -> list[str]:
    """What was noted."""
    return [op.what for op in files.log if isinstance(op, Note)]


def again(rig: SpillRig) -> list[str]:
    """With a drive that works, in the same process: what is new is saved, and comes back."""
    rig.reset()
    rig.turn("other")
    shot, outcome = rig.shot(), rig.save()
    if not outcome.ok:
        return [f"nothing can be saved any more: {outcome.why}", *rig.wrong]
    entry = rig.spill.shelf.like(rig.stack.resident.account)
    assert entry is not None
    back = rig.brings(entry)
    found = [] if back and back.conversation == shot.conversation else ["it was saved in vain"]
    return found + rig.wrong


def struck(fault: Fault, codec: CodecConfig = PLANES) -> After:
    """A life with a fault; then the drive works."""
    files, rigs, raised = Traced(dict(saved(codec, "a").files)), list[SpillRig](), ""
    files.fault = fault
    try:
        life(files, rigs, codec)
    except Refused:
        pass  # It runs without a spill.
    except Exception as error:
        raised = f"raised {type(error).__name__} {error}"
    files.fault = None
    return After(files, rigs, files.failed, raised)


def calls(codec: CodecConfig = PLANES) -> list[str]:
    """Every call of a life by kind."""
    files = Traced(dict(saved(codec, "a").files))
    life(files, [], codec)
    return files.kinds


def looped(name: str, codec: CodecConfig, *, every: bool) -> Tally:
    """Every fault in turn."""
    tally, oracle = Tally(name), SpillOracle(replace(CONFIG, codec=codec))
    kinds = calls(codec)
    for kind, fault in faults(kinds, every=every):
        if not every and fault.call % 8 and fault.call != kinds.index(kind):
            continue  # Some calls, and the first of each kind; the others are among all.
        after = struck(fault, codec)
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
        *("rename", "unlink", "size", "list", "exists", "free_bytes"),
        "preallocate",
    }


def test_any_call_may_fail(tallied: Told) -> None:
    tally = tallied(looped("spill errors, every eighth call", PLANES, every=False))
    assert tally.violations == []


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_every_call_may_fail_with_every_error(codec: str, tallied: Told) -> None:
    name = f"spill errors, every call and error, {codec}"
    assert tallied(looped(name, CODECS[codec], every=True)).violations == []


@pytest.mark.parametrize("short", [0, 1, 4_095, 4_096, 8_191])
def test_a_read_may_give_less(short: int) -> None:
    """Of any file, whenever it is read."""
    begin = saved(PLANES, "a")
    files = SimFiles(begin.files)
    rig = SpillRig(files, notes=unowed(begin.notes))
    files.short = lambda name, found: min(found, short)
    entry = rig.spill.shelf.whole()[0]
    assert rig.brings(entry) is None or short > 4_096
    rig.turn("a")
    files.short = None
    assert again(rig) + astray(rig) == []
    rig.close()
    assert SpillOracle().noted(files.snapshot(), said(files)) == []


@pytest.mark.parametrize("at", range(1, 6))
def test_a_write_may_take_less(at: int) -> None:
    """One of two pages, of a block, a copy or the manifest; the older entry stays."""
    begin = saved(PLANES, "a")
    files = Short(begin.files)
    rig = SpillRig(files, notes=begin.notes)
    rig.comes_back()
    rig.turn("a")
    files.at = at
    assert not rig.save().ok
    assert astray(rig) + again(rig) + astray(rig) == []
    rig.close()
    assert SpillOracle().noted(files.snapshot(), said(files)) == []


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("room", range(0, 60_000, 4_096))
def test_a_full_drive_keeps_what_it_has(room: int, codec: str) -> None:
    """The drive has room for some of what is to be written; an older entry stays."""
    begin, config = saved(CODECS[codec], "a"), replace(CONFIG, codec=CODECS[codec])
    held = sum(map(len, begin.files.values()))
    files = SimFiles(begin.files, capacity_bytes=held + room)
    rig = SpillRig(files, config=config, notes=begin.notes)
    rig.comes_back()
    rig.turn("a")
    rig.save()
    rig.turn("b")
    rig.save()
    found = rig.wrong + astray(rig)
    rig.close()
    assert found + SpillOracle(config).noted(files.snapshot(), said(files)) == []
    assert "a" in Owed.by(said(files)).saved


def test_a_drive_that_fills_meanwhile_is_left_free() -> None:
    """Others write while a save runs; the floor holds before every file."""
    begin = saved(PLANES, "a")
    files = SimFiles(begin.files)
    config = replace(CONFIG, floor_bytes=100_000)
    rig = SpillRig(files, config=config, notes=begin.notes)
    rig.comes_back()
    rig.turn("a")
    rooms = [100_000 + 8_192, 100_000 + 8_191]
    files.free = lambda: rooms[0] if len(rooms) == 1 else rooms.pop(0)
    assert rig.save().why == "floor"
    assert astray(rig) == []
    files.free = None
    assert rig.save().ok
    rig.close()
    assert rig.wrong + SpillOracle().noted(files.snapshot(), said(files)) == []


def test_without_a_budget_nothing_is_written() -> None:
    begin = saved(PLANES, "a")
    files = SimFiles(begin.files)
    rig = SpillRig(files, notes=begin.notes)
    rig.spill.configure(replace(CONFIG, budget_bytes=0))
    assert rig.spill.shelf.held_bytes() == 0 and astray(rig) == []
    rig.turn("b")
    assert rig.save().why == "budget"
    assert astray(rig) == []
    rig.spill.configure(CONFIG)
    assert rig.save().ok
    rig.close()
    assert SpillOracle().noted(files.snapshot(), said(files)) == []


@pytest.mark.parametrize("mode", ["read", "off"])
def test_a_spill_that_may_not_write_leaves_all_as_it_is(mode: Mode) -> None:
    begin = saved(PLANES, "a")
    rig = SpillRig(SimFiles(begin.files), config=replace(CONFIG, mode=mode))
    assert (rig.comes_back() > 0) == (mode == "read")
    rig.turn("a")
    assert rig.save().why == "off"
    assert rig.files.snapshot() == begin.files and not rig.wrong
    rig.close()


def test_a_second_process_is_refused() -> None:
    files = SimFiles(saved(PLANES, "a").files)
    rig = SpillRig(files)
    with pytest.raises(Refused, match="another process"):
        SpillRig(files)
    rig.close()
    assert not files.handles
    SpillRig(files).close()


@pytest.mark.parametrize("number", range(4))
def test_what_the_drive_says_nothing_of_is_not_written_over(number: int) -> None:
    """The older manifest says how long each file is, and another codec's would be longer."""
    begin = saved(PLANES, "a")
    files = Traced(dict(begin.files))
    rig = SpillRig(files, config=replace(CONFIG, codec=RAW), notes=begin.notes)
    rig.comes_back()
    files.fault = Fault(files.calls + number, errno.EIO)
    rig.save()
    assert files.failed
    renamed = {op.new for op in files.log if isinstance(op, Rename)}
    assert not any(name.endswith((".block", ".anchor")) for name in renamed & begin.files.keys())
    files.fault = None
    assert again(rig) == []
    rig.close()
