"""Adoption: an older formula's files are read once, and then only by what was written down then.

Goal: an upgrade of the formula keeps every file; a change of arithmetic that the older formula
can't see still sweeps them; no damage, loss, crash or failing drive ever lets in what was not
adopted; and every fingerprint's inputs are on record.
Method: directories in memory, one call a start; all states a crash may leave; every call failing in
turn; and once the disk tier itself. Canaries forget the record, or adopt anew when it is lost.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support import GRID, box, engine, serve, tier, tokens

from cache import adopt
from cache.adopt import EQUAL, INPUTS, KEPT, accepted, latest
from cache.disk.open import Identity
from cache.fingerprint import FORMULA, digest
from cache.format import Bad, Layout, read_record, write_record
from cache.header import VERSION
from sim.crash import Order, crash_states
from sim.faults import Fault
from sim.files import SimFiles
from sim.pending import Start

NOW = {"file engine/rows.py": "1", "table tiles": "64"}
LATER = NOW | {"table tiles": "32"}
"""After a change that the older formula does not see."""
OLD, OLDER, OTHER = "a" * 64, "b" * 64, "c" * 64
BEFORE = {"1": [OLD]}


def start(
    files: SimFiles, made_of: Mapping[str, str] = NOW, older: Mapping[str, Sequence[str]] = BEFORE
) -> frozenset[str]:
    """One start of a process; the accepted fingerprints but the present one."""
    found = accepted(files, made_of, older)
    assert digest(made_of) in found and not files.handles
    return found - {digest(made_of)}


def again(files: SimFiles) -> SimFiles:
    return SimFiles(files.snapshot())


def test_the_first_start_adopts_and_the_record_keeps_it() -> None:
    files = SimFiles()
    assert start(files) == {OLD} == start(again(files))
    assert read_record(files, EQUAL, EQUAL) == {"1": {OLD: digest(NOW)}}


def test_a_change_the_older_formula_is_blind_to_sweeps_what_was_adopted() -> None:
    files = SimFiles()
    assert start(files) == {OLD}
    assert start(files, LATER) == frozenset()
    assert start(files, LATER) == frozenset(), "and it stays so"
    assert start(files, NOW) == {OLD}, "an older tree is taken back: what held then holds again"


def test_what_the_older_formula_gives_later_is_not_adopted() -> None:
    files = SimFiles()
    start(files)
    assert start(files, LATER, {"1": [OTHER]}) == frozenset()
    assert start(files, NOW, {"1": [OTHER]}) == {OLD}


def test_a_moved_tree_keeps_what_was_adopted_where_it_came_from() -> None:
    """There the older formula gives another fingerprint; the present one is the same."""
    files = SimFiles()
    start(files)
    assert start(files, NOW, {"1": [OTHER]}) == {OLD}


def test_several_folders_are_adopted_together() -> None:
    assert start(SimFiles(), NOW, {"1": [OLD, OTHER]}) == {OLD, OTHER}


def test_a_third_formula_adopts_the_second_and_what_that_had_adopted() -> None:
    files = SimFiles()
    write_record(files, EQUAL, EQUAL, {"0": {OLDER: OLD, OTHER: "d" * 64}})
    assert start(files, NOW, {"0": [OTHER], "1": [OLD]}) == {OLD, OLDER}
    assert start(files, LATER, {"0": [OTHER], "1": [OLD]}) == frozenset()


def test_without_older_formulas_only_the_present_one_counts() -> None:
    files = SimFiles()
    assert start(files, NOW, {}) == frozenset() and EQUAL not in files.list()


# the record is damaged, lost, or not ours


def damaged(data: bytes) -> dict[str, bytes]:
    """Ways in which a record may be no good."""
    flip = bytearray(data)
    flip[60] ^= 1
    return {
        "a bit": bytes(flip),
        "cut": data[:100],
        "longer": data + bytes(4096),
        "of version 2 and no record": record({"1": "x"}),
        "of another shape": record({"1": {OLD: 5}}),
    }


def record(meta: Mapping[str, Any], kind: str = EQUAL) -> bytes:
    files = SimFiles()
    write_record(files, "x", kind, meta)
    return files.snapshot()["x"]


@pytest.mark.parametrize("how", damaged(record({})))
def test_after_damage_nothing_is_adopted_any_more(how: str) -> None:
    files = SimFiles()
    start(files)
    state = files.snapshot()
    broken = SimFiles(state | {EQUAL: damaged(state[EQUAL])[how]})
    assert start(broken, LATER) == frozenset()
    assert start(broken, NOW) == frozenset(), "what was adopted is not known any more"
    assert read_record(broken, EQUAL, EQUAL) == {"1": {}}, "and that is on record"


def test_a_lost_record_is_not_a_first_start() -> None:
    files = SimFiles()
    start(files)
    files.unlink(EQUAL)
    assert start(files, LATER) == frozenset()


def test_a_crash_between_the_two_records_is_a_first_start_still() -> None:
    files = SimFiles()
    start(files)
    files.unlink(EQUAL)
    assert start(files, NOW) == {OLD}, "the same tree: nothing but the adoption is missing"


def test_a_record_that_is_not_ours_is_left_alone() -> None:
    future = bytearray(record({}))
    layout = Layout(EQUAL, {}, ())
    object.__setattr__(layout.header, "version", VERSION + 1)
    future[:] = layout.header.encoded()
    for data in (bytes(future), b"somebody's notes\n" * 9):
        files = SimFiles({EQUAL: data})
        assert start(files) == frozenset()
        assert files.snapshot()[EQUAL] == data


# a drive that fails, and crashes


def rounds(for_ever: bool, state: Mapping[str, bytes]) -> list[tuple[SimFiles, frozenset[str]]]:
    """A start with each of its calls failing in turn, up to one that goes through."""
    done = []
    for call in range(80):
        files = SimFiles(state)
        files.fault = Fault(call, errno.EIO, for_ever)
        done.append((files, start(files)))
        if not files.failed:
            return done
    raise AssertionError("it never went through")


@pytest.mark.parametrize("for_ever", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_any_failing_call_costs_adopted_files_at_most(for_ever: bool, first: bool) -> None:
    state = {} if first else started()
    for files, found in rounds(for_ever, state):
        files.fault = None
        assert found <= {OLD}
        # What was accepted once is on record: on a changed tree it never comes back.
        if found or EQUAL in files.list():
            assert start(again(files), LATER) == frozenset()
        if found:
            assert start(again(files)) == {OLD}
    assert found == {OLD}, "the last one went through"


def started() -> dict[str, bytes]:
    files = SimFiles()
    start(files)
    return files.snapshot()


@pytest.mark.parametrize("order", [Order.WEAK, Order.ORDERED])
@pytest.mark.parametrize("made_of", [NOW, LATER], ids=["same", "changed"])
def test_after_any_crash_nothing_else_is_let_in(order: Order, made_of: dict[str, str]) -> None:
    """Once a start has returned, the next one on the same tree accepts as much."""
    states = 0
    for begun in ({}, started()):
        files = SimFiles(begun)
        took = start(files, made_of)
        files.note("returned")
        for state in crash_states(Start.of(begun), files.log, order):
            states += 1
            same = start(SimFiles(state.files), made_of)
            assert same <= took
            if "returned" in state.notes:
                assert same == took
                # On another tree only what was adopted there before counts.
                other = LATER if made_of is NOW else NOW
                before = {OLD} if begun and other is NOW else set()
                assert start(SimFiles(state.files), other) == before
    assert states > 10


# what fingerprints were made of


def test_inputs_are_on_record_by_their_fingerprint() -> None:
    files = SimFiles()
    start(files)
    start(files, LATER)
    for made_of, number in ((NOW, 1), (LATER, 2)):
        name = f"{INPUTS}-{digest(made_of)[:12]}"
        assert read_record(files, name, INPUTS) == {
            "fingerprint": digest(made_of),
            "formula": FORMULA,
            "inputs": made_of,
            "number": number,
        }
    found = latest(files)
    assert not isinstance(found, Bad) and found["inputs"] == LATER
    start(files, NOW)
    found = latest(files)
    assert not isinstance(found, Bad) and found["inputs"] == NOW


def test_a_start_that_changes_nothing_writes_nothing() -> None:
    files = SimFiles(started())
    start(files)
    assert files.log == []


def test_only_the_latest_records_stay() -> None:
    files = SimFiles({"inputs-notes": b"x", "inputs-" + "0" * 12: b"foreign"})
    for n in range(3 * KEPT):
        start(files, NOW | {"knob n": str(n)})
    names = [name for name in files.list() if name.startswith(INPUTS)]
    assert len(names) == KEPT + 2
    kept = {read["inputs"]["knob n"] for read in map(reading(files), names) if read}
    assert kept == {str(n) for n in range(2 * KEPT, 3 * KEPT)}


def reading(files: SimFiles) -> Any:
    def read(name: str) -> dict[str, Any] | None:
        found = read_record(files, name, INPUTS)
        return None if isinstance(found, Bad) else found

    return read


def test_a_directory_without_records_says_so() -> None:
    assert isinstance(latest(SimFiles()), Bad)


def test_a_damaged_record_of_inputs_is_written_anew() -> None:
    state = started()
    name = f"{INPUTS}-{digest(NOW)[:12]}"
    files = SimFiles(state | {name: state[name][:-5]})
    assert start(files) == {OLD}
    assert files.snapshot() == state


# the tier itself

HEAD = tokens(5 * GRID + 20, 70)


def reads(files: SimFiles, identity: Identity) -> int:
    """Tokens that a new process takes from the drive for a prompt that begins like the others."""
    of = engine("witness")
    opened = tier(files, of, identity=identity)
    on = box(of, disk=opened)
    row, _ = serve(on, HEAD, tokens(9), session=f"s{len(files.log)}")
    opened.keeper.jobs.drain()
    opened.close()
    return row.cached


def made(inputs: Mapping[str, str], older: Mapping[str, Sequence[str]] = BEFORE) -> Identity:
    return Identity(digest(inputs), lambda files: accepted(files, inputs, older))


def test_the_tier_keeps_its_files_over_an_upgrade_and_sweeps_them_after_a_change() -> None:
    files = SimFiles()
    assert reads(files, Identity(OLD, lambda files: ())) == 0
    files = again(files)
    assert reads(files, made(NOW)) == 5 * GRID, "the older formula's files are read"
    assert reads(again(files), made(NOW, {"1": [OTHER]})) == 5 * GRID
    swept = again(files)
    assert reads(swept, made(LATER)) == 0, "another table's rows are not"


# canaries


def test_canary_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adopting at every start lets in what another table computed."""
    monkeypatch.setattr(adopt, "_known", lambda files, started: {})
    files = SimFiles()
    start(files)
    assert start(files, LATER) == {OLD}


def test_canary_a_lost_record_taken_for_a_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "_started", lambda record: False)
    files = SimFiles()
    start(files)
    files.unlink(EQUAL)
    assert start(files, LATER) == {OLD}


def test_canary_an_adoption_that_was_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "write_record", lambda *_: "")
    files = SimFiles()
    start(files)
    assert start(again(files), LATER) == {OLD}
