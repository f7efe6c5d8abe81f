"""The journal's files: rotation, torn ends, and drives that fail or lose power at any call.

Method: lines of known numbers in files in memory with every call failing once, and in every state
that a power cut may leave; what is read back must be whole lines, in order, none twice. Canaries:
a journal that pads nothing over a failed write, and one that opens a torn file as it is.
"""

from __future__ import annotations

import errno
import json
import stat
from itertools import product
from pathlib import Path

import pytest

from cache.host import OsFiles
from cache.journal_files import NEWEST, JournalFiles
from sim.crash import crash_states
from sim.faults import Fault
from sim.files import SimFiles
from sim.pending import Start

SMALL = 200
"""Bytes of a file: a few lines."""


def line(number: int, size: int = 0) -> bytes:
    return json.dumps({"n": number, "x": "y" * size}).encode() + b"\n"


def files(state: dict[str, bytes] | None = None) -> SimFiles:
    return SimFiles(state, direct=False)


def numbers(state: dict[str, bytes]) -> list[int]:
    """Of all lines in order of their files, every one whole."""
    names = [*sorted(name for name in state if name != NEWEST), NEWEST]
    text = b"".join(state.get(name, b"") for name in names)
    assert not text or text.endswith(b"\n"), text[-80:]
    return [json.loads(one.decode("latin-1"))["n"] for one in text.splitlines()]


def test_a_full_file_gets_the_next_number_and_the_oldest_go() -> None:
    at = files()
    journal = JournalFiles(at, SMALL, kept=2)
    for number in range(40):
        assert journal.append([line(number)])
    state = at.snapshot()
    found = numbers(state)
    assert found == list(range(40))[-len(found) :]
    assert len(state) == 3 and all(len(data) <= SMALL for data in state.values())
    older = sorted(name for name in state if name != NEWEST)
    assert older[1] > older[0] > "journal.000001.jsonl"


def test_the_next_process_goes_on_with_numbers_and_lines() -> None:
    at = files()
    for start in range(0, 60, 20):
        journal = JournalFiles(at, SMALL, kept=99)
        for number in range(start, start + 20):
            assert journal.append([line(number)])
        assert journal.cut == 0
    assert numbers(at.snapshot()) == list(range(60))


def test_a_batch_is_never_parted_and_other_files_stay() -> None:
    at = files({"journal.7.jsonl": b"mine", "notes": b"mine", "journal.000009.jsonl": line(-1)})
    journal = JournalFiles(at, SMALL, kept=0)
    assert journal.append([line(n) for n in range(30)]), "larger than a file"
    assert journal.append([line(30)])
    state = at.snapshot()
    assert state[NEWEST] == line(30)
    assert set(state) == {NEWEST, "journal.7.jsonl", "notes"}


@pytest.mark.parametrize(
    "torn",
    [
        line(2)[:-1],
        line(2)[:5],
        b"\0" * 30,
        line(2)[:7] + b"\0" * 9 + b"\n" + line(3)[4:],
        b"\n",
        b"x" * 4_000,
    ],
)
def test_a_torn_end_is_cut_when_it_is_opened(torn: bytes) -> None:
    at = files({NEWEST: line(0) + line(1) + torn})
    journal = JournalFiles(at)
    assert journal.cut >= 1
    assert numbers(at.snapshot()) == [0, 1]
    assert journal.append([line(4)])
    assert numbers(at.snapshot()) == [0, 1, 4]
    assert set(at.snapshot()) == {NEWEST}


def test_lines_behind_a_torn_one_stay() -> None:
    at = files({NEWEST: line(0) + line(1)[:6] + b"\0" * 9 + b"\n" + line(2)})
    assert JournalFiles(at).cut == 1
    assert numbers(at.snapshot()) == [0, 2]


def test_what_can_not_be_cut_is_written_over() -> None:
    at = files({NEWEST: line(0) + b"\0" * 3_000})
    at.fault = Fault(6, errno.ENOSPC, for_ever=True)
    journal = JournalFiles(at)
    at.fault = None
    assert at.failed
    assert journal.append([line(1)])
    assert numbers(at.snapshot()) == [0, 1]


def test_a_shorter_batch_covers_what_a_failed_write_left() -> None:
    at = files()
    journal = JournalFiles(at)
    assert journal.append([line(0)])
    at.fault = Fault(at.calls + 1, errno.ENOSPC, half=True)
    assert not journal.append([line(1, 500)])
    at.fault = None
    assert journal.append([line(2)])
    assert numbers(at.snapshot()) == [0, 2]
    assert journal.append([line(3)])
    assert numbers(at.snapshot()) == [0, 2, 3]


def played(at: SimFiles, count: int = 30) -> set[int]:
    """Lines that were written, as the journal says."""
    journal = JournalFiles(at, SMALL, kept=3)
    return {number for number in range(count) if journal.append([line(number, number % 7)])}


def test_a_failure_anywhere_loses_what_it_says_and_nothing_else() -> None:
    clean = files()
    opening = files()
    JournalFiles(opening, SMALL)
    assert played(clean) == set(range(30))
    for number in range(opening.calls, clean.calls):
        for half, reverts in product((False, True), repeat=2):
            at = files()
            at.fault = Fault(number, errno.EIO, half=half, reverts=reverts)
            told = played(at)
            at.fault = None
            JournalFiles(at, SMALL, kept=3)
            state = at.snapshot()
            # A drive that loses what it fails to sync leaves zeros in the file before.
            found = numbers({NEWEST: state[NEWEST]} if reverts else state)
            assert found == sorted(set(found)), "in order, none twice"
            assert len(told) >= 29
            lost = [n for n in sorted(told)[-12:] if n not in found]
            assert reverts or not lost, (number, half, lost, found)
            assert not at.handles


def test_a_drive_that_is_full_for_ever_stops_nobody() -> None:
    at = files()
    journal = JournalFiles(at, SMALL)
    at.fault = Fault(at.calls, errno.ENOSPC, for_ever=True)
    assert not any(journal.append([line(n)]) for n in range(20))
    at.fault = None
    assert journal.append([line(20)])
    assert numbers(at.snapshot()) == [20]


def test_after_a_power_cut_the_next_opening_has_whole_lines_in_order() -> None:
    at = files()
    journal = JournalFiles(at, SMALL, kept=2)
    for number in range(14):
        assert journal.append([line(number, 9)])
    states = 0
    for left in crash_states(Start.of({}), at.log, combinations_max=64):
        again = files(left.files)
        opened = JournalFiles(again, SMALL, kept=2)
        found = numbers({NEWEST: again.snapshot()[NEWEST]})
        assert found == sorted(set(found))
        assert opened.append([line(99)])
        assert numbers({NEWEST: again.snapshot()[NEWEST]})[-1] == 99
        states += 1
    assert states > 50


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    journal = JournalFiles(OsFiles(tmp_path / "journal"), SMALL)
    for number in range(20):
        assert journal.append([line(number)])
    paths = list((tmp_path / "journal").iterdir())
    assert len(paths) > 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}


def test_canary_without_padding_a_failed_write_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def plainly(journal: JournalFiles, data: bytes) -> None:
        journal._torn = 0
        assert journal._offset is not None
        handle = journal._files.open(NEWEST)
        journal._files.write(handle, journal._offset, data)
        journal._files.close(handle)
        journal._offset += len(data)

    monkeypatch.setattr(JournalFiles, "_write", plainly)
    with pytest.raises(AssertionError):
        test_a_shorter_batch_covers_what_a_failed_write_left()


def test_canary_a_torn_file_opened_as_it_is_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_it_is(journal: JournalFiles) -> None:
        journal._offset = journal._torn = journal._files.size(NEWEST)

    monkeypatch.setattr(JournalFiles, "_mend", as_it_is)
    with pytest.raises((AssertionError, json.JSONDecodeError)):
        test_after_a_power_cut_the_next_opening_has_whole_lines_in_order()
