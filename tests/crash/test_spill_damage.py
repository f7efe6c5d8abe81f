"""Goal: no byte of a damaged file of the spill reaches an engine; the entry goes, and no more.

Method: a directory with a saved conversation, in which one bit of one byte is another, a file is
cut short, two files have each other's name, or an old file has a new one's name; each is opened,
everything in it is brought back and compared as bytes, goes on, is saved again and comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from rig import Refused
from spill_owed import Owed
from spill_rig import PLANES, SpillRig, astray
from spill_scenarios import (
    CODECS,
    Begin,
    beside_others,
    flipped,
    grows,
    left,
    name_of,
    saved,
    talked,
    unowed,
)
from states import Files, Tally
from support import tokens
from test_damage import Damage, anothers, cuts, flips, swaps, swept

from cache.spill.codec import CodecConfig
from cache.spill.names import MARKER
from sim.files import SimFiles

Told = Callable[[Tally], Tally]


def grown(codec: CodecConfig) -> Begin:
    """A conversation whose last block and end were others before."""

    def play(rig: SpillRig) -> None:
        talked("a")(rig)
        grows_in_place(rig)

    return left(play, codec)


def another(codec: CodecConfig) -> Begin:
    """Files that say of themselves what those of `grown` say, and hold another conversation."""

    def play(rig: SpillRig) -> None:
        rig.said["a"] = tokens(1, 9)
        rig.turn("a", more=5)
        assert rig.save().ok
        grows_in_place(rig)

    return left(play, codec)


def grows_in_place(rig: SpillRig) -> None:
    rig.turn("a", more=4, answer=2)
    assert rig.save().ok


def directory(codec: CodecConfig = PLANES) -> Files:
    """What there is to damage: the lock's file is empty."""
    return {name: data for name, data in saved(codec, "a").files.items() if data}


MAY_COME = Owed.by(unowed(saved(PLANES, "a").notes + grown(PLANES).notes + another(PLANES).notes))
"""Nothing else may, with either codec; and nothing is owed. A directory whose manifest is another's
holds that conversation, whole."""


def comes(state: Files) -> tuple[SpillRig | None, list[str], int]:
    """(the process, what is wrong, conversations that came back) of a damaged directory.

    Where the marker is another's file there is no process: it is refused.
    """
    try:
        rig = SpillRig(SimFiles(state))
    except Refused:
        return None, ([] if MARKER in anothers(state) else ["it was refused"]), 0
    shots = [rig.brings(entry) for entry in rig.spill.shelf.whole()]
    there = [shot for shot in shots if shot is not None]
    return rig, MAY_COME.against(there), len(there)


def reads(state: Files) -> list[str]:
    """What is wrong when everything comes back, and goes on."""
    rig, found, _ = comes(state)
    if rig is None:
        return found
    if "a" in rig.said:
        rig.reset()
        rig.turn("a")
    rig.close()
    return found + rig.wrong + [f"handle {handle} is open" for handle in rig.files.handles]


def serves(state: Files) -> list[str]:
    """What is wrong then, and when it is saved again.

    Where another's file has a name of ours, nobody touches it.
    """
    rig, found, _ = comes(state)
    if rig is None:
        return found
    rig.reset()
    rig.turn("a")
    shot, outcome = rig.shot(), rig.save()
    entry = rig.spill.shelf.like(rig.stack.resident.account)
    back = rig.brings(entry) if entry is not None else None
    if not outcome.ok or back is None or back.conversation != shot.conversation:
        found.append(f"what was saved again does not come back: {outcome.why}")
    others = anothers(state)
    kept = rig.files.snapshot()
    found += [f"{name} was touched" for name in others if kept.get(name) != state[name]]
    found += astray(rig, state) if not others else []
    rig.close()
    return found + rig.wrong + [f"handle {handle} is open" for handle in rig.files.handles]


def stale(codec: CodecConfig) -> Iterator[Damage]:
    """A file of the conversation as it was, or of another one as long, under a name that it has."""
    now = grown(codec).files
    for before in (saved(codec, "a").files, another(codec).files):
        for name, kind in ((name, name.split(".")[-1]) for name in sorted(now)):
            for old, data in sorted(before.items()):
                if old.endswith(kind) and now.get(name) != data and data:
                    yield f"has {old}", name, {**now, name: data}


@pytest.mark.parametrize("codec", CODECS)
def test_undamaged_it_comes_back(codec: str) -> None:
    state = directory(CODECS[codec])
    assert comes(state)[1:] == ([], 1) and serves(state) == []


@pytest.mark.parametrize("codec", CODECS)
def test_one_bit(codec: str, tallied: Told) -> None:
    some = flips(directory(CODECS[codec]), every=False, step=199)
    tally = tallied(swept(f"spill, one bit, some bytes, {codec}", some, serves=serves))
    assert tally.violations == [] and tally.states > 30


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("number", range(len(directory())))
def test_one_bit_of_every_byte(number: int, codec: str, tallied: Told) -> None:
    files = directory(CODECS[codec])
    name = sorted(files)[number]
    some = (damage for damage in flips(files, every=True) if damage[1] == name)
    tally = tallied(swept(f"spill, one bit, every byte of {name}", some, serves=reads))
    assert tally.violations == [] and tally.states == len(files[name])


def test_cut_short(tallied: Told) -> None:
    tally = tallied(swept("spill, cut short", cuts(directory()), serves=reads))
    assert tally.violations == []


def test_in_each_others_place(tallied: Told) -> None:
    tally = tallied(swept("spill, in each other's place", swaps(directory()), serves=serves))
    assert tally.violations == []


@pytest.mark.parametrize("codec", CODECS)
def test_stale(codec: str, tallied: Told) -> None:
    tally = tallied(swept(f"spill, stale, {codec}", stale(CODECS[codec]), serves=serves))
    assert tally.violations == [] and tally.states > 5


def over_rows(number: int, shared: int) -> list[str]:
    """A conversation comes back over another's rows, and block `number` of it is no good."""

    def play(rig: SpillRig) -> None:
        rig.turn("a", more=26)
        assert rig.save().ok

    begin = flipped(left(play, PLANES), ".block", number)
    rig = SpillRig(SimFiles(begin.files))
    entry = rig.spill.shelf.whole()[0]
    assert entry.account is not None
    ids = entry.account.ids.copy()
    edit = ids[:shared].copy() if shared else (ids[:20] + 1).astype(ids.dtype)
    rig.ask(edit, "b")
    rig.said["a"] = ids
    rig.turn("a")
    rig.turn("b")
    rig.turn("a")
    events = rig.spill.notes.counters
    found = rig.wrong + astray(rig)
    rig.close()
    return found if events["damage"] else ["the damage was not met"]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("shared", [0, 9, 17, 22])
def test_a_reading_that_fails_leaves_nothing_that_is_not_right(number: int, shared: int) -> None:
    below = shared // 8
    wanted = ["the damage was not met"] if number < below - (shared % 8 == 0) else []
    assert over_rows(number, shared) in ([], wanted)


def test_what_is_others_stays_whatever_happens() -> None:
    begin = beside_others(PLANES)
    rig = SpillRig(SimFiles(begin.files))
    grows(rig)
    rig.spill.clear()
    assert astray(rig, begin.files) == []
    rig.turn("b")
    assert rig.save().ok and astray(rig, begin.files) == []
    rig.close()


def test_a_file_that_went_is_written_again() -> None:
    """Somebody removed it while the process runs."""
    assert gone_meanwhile() == []


def gone_meanwhile() -> list[str]:
    """What is wrong when a conversation is saved again of which a block is not there any more."""
    rig = SpillRig(SimFiles(saved(PLANES, "a").files))
    rig.comes_back()
    rig.files.unlink(name_of(rig.files.snapshot(), ".block"))
    shot, outcome = rig.shot(), rig.save()
    entry = rig.spill.shelf.like(rig.stack.resident.account)
    back = rig.brings(entry) if entry is not None else None
    whole = outcome.ok and back is not None and back.conversation == shot.conversation
    found = rig.wrong + astray(rig)
    rig.close()
    return found if whole else [*found, "it does not come back"]


@pytest.mark.parametrize("name", ["last", "equal"])
def test_a_record_of_somebody_else_is_not_written_over(name: str) -> None:
    begin = saved(PLANES, "a")
    state = {**begin.files, name: b"not of this program"}
    rig = SpillRig(SimFiles(state))
    talked("b")(rig)
    assert rig.files.snapshot()[name] == state[name]
    rig.close()
