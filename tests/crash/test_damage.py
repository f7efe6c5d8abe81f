"""Goal: no byte of a damaged file reaches an engine; the file goes, and what stands on it, no more.

Method: a directory of saved prompts, in which one bit of one byte is another, a file is cut short,
two files have each other's name, or an old file comes back under a new name; each such directory is
opened, a prompt that needs the file is asked with every row checked, and asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations

import pytest
from oracle import Tally
from rig import GRID, A, B, Refused, Rig, astray
from scenarios import saved

from cache.disk.open import MARKER
from cache.header import Bad, Prefix
from cache.ports import PAGE
from cache.types import Ids
from sim.files import SimFiles

Told = Callable[[Tally], Tally]
Files = Mapping[str, bytes]
Damage = tuple[str, str, Files]
"""What was done, to which file, and the directory then."""
Serves = Callable[[Files], list[str]]
"""Uses a directory: what is wrong."""
LINE = 12


def flips(files: Files, *, every: bool, step: int = 23) -> Iterator[Damage]:
    """One bit of a byte. Without `every`: each 23rd byte of what is used, or whatever `step` is,
    each 1021st of zeros."""
    for number, (name, data) in enumerate(sorted(files.items())):
        stop = len(data[:PAGE].rstrip(b"\0"))
        for at in range(len(data)):
            in_use = at < stop or PAGE <= at < PAGE + 256
            if every or (at + number) % (step if in_use else 1021) == 0:
                bad = bytearray(data)
                bad[at] ^= 1 << (at % 8)
                yield f"bit of byte {at}", name, {**files, name: bytes(bad)}


def cuts(files: Files) -> Iterator[Damage]:
    """Cut short, or longer by a page."""
    for name, data in sorted(files.items()):
        for size in range(0, len(data), 512):
            yield f"cut to {size}", name, {**files, name: data[:size]}
        yield "a page more", name, {**files, name: data + bytes(PAGE)}


def swaps(files: Files) -> Iterator[Damage]:
    """Two files with each other's name; one file under another's."""
    for a, b in permutations(sorted(files), 2):
        yield f"as {b}", a, {**files, b: files[a]}
        if a < b:
            yield f"swapped with {b}", a, {**files, a: files[b], b: files[a]}


def stale(files: Files) -> Iterator[Damage]:
    """A file of other rows, sound in itself, under the name of one that is needed."""
    for name in sorted(files):
        for old, data in sorted(saved(1).items()):
            if old.split(".")[-1] == name.split(".")[-1] and old not in files:
                yield f"has {old}", name, {**files, name: data}


def directory() -> Files:
    """A is saved: three chunks and two anchors, with the records beside them."""
    # The lock's file is empty: there is nothing to damage.
    return {name: data for name, data in saved(0).items() if data}


def is_anothers(data: bytes) -> bool:
    """Whether a file does not begin as ours do, not even with a bit or two that are others."""
    found = Prefix.parse(data)
    return isinstance(found, Bad) and found.foreign


def anothers(state: Files) -> set[str]:
    """Names of ours that such files have: nobody touches them."""
    return {name for name, data in state.items() if name != "lock" and is_anothers(data)}


def serving(state: Files, ids: Ids = A) -> tuple[list[str], int]:
    """What is wrong when a prompt is asked twice, and the tokens that the drive served first.

    Where another's file has a name that is needed, nothing is saved under it, nor is it removed.
    """
    try:
        rig = Rig(SimFiles(state), trusted=False)
    except Refused:
        return ([] if MARKER in anothers(state) else ["it was refused"]), 0
    row = rig.ask(ids)
    first = row.cached if row.source == "disk.grid" else 0
    rig.reset()
    row = rig.ask(ids)
    rig.settle()
    found, left = rig.wrong, anothers(state)
    if left:
        kept = rig.files.snapshot()
        found += [f"{name} was touched" for name in left if kept.get(name) != state[name]]
    else:
        found += astray(rig, state)
    if not left and (row.source, row.cached) != ("disk.grid", LINE):
        found.append(f"{row.source} {row.cached} served what was saved again")
    rig.close()
    return found + [f"handle {handle} is open" for handle in rig.files.handles], first


def tier_serves(state: Files) -> list[str]:
    """What is wrong when the prompt is asked."""
    return serving(state)[0]


def swept(
    name: str, damages: Iterator[Damage], until: str = "", serves: Serves = tier_serves
) -> Tally:
    """Each damage in turn, up to the first violation that says `until`, where that is given."""
    tally = Tally(name)
    for what, file, state in damages:
        tally.states += 1
        tally.checks += 1
        try:
            found = serves(state)
        except Exception as error:
            found = [f"{type(error).__name__} {error}"]
        tally.violations += [f"{file}: {what}: {why}" for why in found]
        if until and any(until in why for why in tally.violations):
            break
    return tally


def test_undamaged_it_serves() -> None:
    assert serving(directory()) == ([], LINE)
    assert serving(directory(), B)[1] == 8


def test_one_bit(tallied: Told) -> None:
    tally = tallied(swept("one bit, some bytes", flips(directory(), every=False)))
    assert tally.violations == [] and tally.states > 150


@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
def test_one_bit_of_every_byte(number: int, tallied: Told) -> None:
    files = directory()
    name = sorted(files)[number]
    some = (damage for damage in flips(files, every=True) if damage[1] == name)
    tally = tallied(swept(f"one bit, every byte of {name}", some))
    assert tally.violations == [] and tally.states == len(files[name])


def test_cut_short(tallied: Told) -> None:
    assert tallied(swept("cut short", cuts(directory()))).violations == []


def test_in_each_others_place(tallied: Told) -> None:
    assert tallied(swept("in each other's place", swaps(directory()))).violations == []


def test_stale(tallied: Told) -> None:
    assert tallied(swept("stale", stale(directory()))).violations == []


@pytest.mark.parametrize("chunk", range(3))
def test_what_lies_below_the_damage_still_serves(chunk: int) -> None:
    files = directory()
    names = sorted(
        (name for name in files if name.endswith(".rows")), key=lambda n: stop_of(files[n])
    )
    bad = bytearray(files[names[chunk]])
    bad[PAGE] ^= 1
    found, served = serving({**files, names[chunk]: bytes(bad)})
    assert found == []
    # Anchors stand at 8 and 12.
    assert served == (8 if chunk == 2 else 0)


def stop_of(data: bytes) -> int:
    text = data[:PAGE]
    at = text.index(b'"stop":') + len(b'"stop":')
    return int(text[at:].split(b"}")[0].split(b",")[0])


assert (len(A) - 1) // GRID * GRID == LINE
