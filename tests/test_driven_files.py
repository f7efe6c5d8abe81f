"""Files on a modelled drive: times, the board's bytes, and handles that a dead process leaves.

Method: the same calls on a directory in memory and on a real one must take the same virtual time,
which is worked out by hand; the contents are the files' own business.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cache.direct import DirectFiles
from cache.ports import PAGE, Files
from sim.clock import VirtualClock
from sim.drive import Drive, Rates
from sim.driven_files import DrivenFiles, Moved
from sim.files import SimFiles

WRITE, READ, SYNC = 1e6, 2e6, 0.5
FACTOR = 1_000
CAPACITY = 10**9
Make = Callable[[Path], Files]


def weigh(name: str, nbytes: int) -> int:
    return nbytes * FACTOR if name.endswith("rows") else nbytes


@pytest.fixture(params=["memory", "real"])
def make(request: pytest.FixtureRequest) -> Make:
    return (lambda _: SimFiles()) if request.param == "memory" else DirectFiles


@pytest.fixture
def driven(make: Make, tmp_path: Path) -> DrivenFiles:
    drive = Drive(Rates(WRITE, READ, SYNC))
    return DrivenFiles(make(tmp_path), drive, VirtualClock(), weigh, CAPACITY)


def filled(files: Files, pages: int, value: int) -> memoryview:
    buffer = files.buffer(pages * PAGE)
    buffer[:] = bytes([value]) * len(buffer)
    return buffer


def test_a_call_takes_what_its_board_bytes_take(driven: DrivenFiles) -> None:
    clock, image = driven._clock, filled(driven, 2, 7)
    handle = driven.create("a.rows")
    transfer = driven.start_write(handle, 0, image)
    assert clock.mono_s() == 0.0, "nobody waited yet"
    transfer.wait()
    board = 2 * PAGE * FACTOR
    assert clock.mono_s() == pytest.approx(board / WRITE)
    driven.fsync(handle)
    driven.fsyncdir()
    assert clock.mono_s() == pytest.approx(board / WRITE + 2 * SYNC)
    before, into = clock.mono_s(), driven.buffer(2 * PAGE)
    assert driven.start_read(handle, 0, into).wait() == 2 * PAGE
    assert bytes(into) == bytes(image)
    assert clock.mono_s() == pytest.approx(before + board / READ)
    assert (driven._drive.written_bytes, driven._drive.read_bytes) == (board, board)
    driven.close(handle)


def test_two_transfers_share_the_drive_and_the_second_waits(driven: DrivenFiles) -> None:
    clock = driven._clock
    first, second = driven.create("a.rows"), driven.create("b")
    one = driven.start_write(first, 0, filled(driven, 1, 1))
    two = driven.start_write(second, 0, filled(driven, 1, 2))
    two.wait()
    assert clock.mono_s() == pytest.approx((PAGE * FACTOR + PAGE) / WRITE)
    one.wait()  # It had ended before.
    assert clock.mono_s() == pytest.approx((PAGE * FACTOR + PAGE) / WRITE)
    driven.write(second, PAGE, filled(driven, 1, 3))
    assert driven.read(second, PAGE, PAGE) == bytes([3]) * PAGE
    assert clock.mono_s() == pytest.approx((PAGE * FACTOR + 2 * PAGE) / WRITE + PAGE / READ)
    driven.close(first)
    driven.close(second)


def test_what_waits_aside_lets_only_its_own_time_pass(driven: DrivenFiles) -> None:
    clock, handle = driven._clock, driven.create("a.rows")
    with clock.aside(3.0):
        driven.start_write(handle, 0, filled(driven, 1, 1)).wait()
        assert clock.mono_s() == pytest.approx(3.0 + PAGE * FACTOR / WRITE)
    assert clock.mono_s() == 0.0
    driven.close(handle)


def test_free_space_is_the_modelled_drives(driven: DrivenFiles) -> None:
    assert driven.free_bytes() == CAPACITY
    handle = driven.create("a.rows")
    driven.preallocate(handle, 2 * PAGE)
    driven.write(handle, 0, filled(driven, 2, 1))
    driven.close(handle)
    assert driven.held_bytes() == 2 * PAGE * FACTOR
    assert driven.free_bytes() == CAPACITY - 2 * PAGE * FACTOR
    driven.rename("a.rows", "b")
    assert driven.free_bytes() == CAPACITY - 2 * PAGE
    driven.unlink("b")
    assert driven.free_bytes() == CAPACITY and driven.list() == []


def test_a_real_drive_that_is_fuller_counts(make: Make, tmp_path: Path) -> None:
    drive = Drive(Rates(WRITE, READ))
    driven = DrivenFiles(make(tmp_path), drive, VirtualClock(), weigh, 1 << 60)
    assert 0 < driven.free_bytes() < 1 << 60


def test_a_dead_process_leaves_no_lock_and_no_handle(driven: DrivenFiles) -> None:
    assert driven.lock("lock") is not None and driven.lock("lock") is None
    driven.create("a.rows")
    driven.abandon()
    after = again(driven)
    handle = after.lock("lock")
    assert handle is not None
    after.close(handle)
    if isinstance(driven._real, SimFiles):
        assert not driven._real.handles


def again(driven: DrivenFiles) -> DrivenFiles:
    """The same directory, as the next process has it."""
    return DrivenFiles(driven._real, driven._drive, driven._clock, weigh, CAPACITY)


def test_what_a_dead_process_left_behind_can_do_nothing_to_the_next(driven: DrivenFiles) -> None:
    """Its handles' numbers are the next one's, and a job of it may be collected at any time."""
    clock, image = driven._clock, filled(driven, 2, 7)
    handle = driven.create("a.rows")
    transfer = driven.start_write(handle, 0, image)
    driven.abandon()
    after = again(driven)
    lock = after.lock("lock")
    assert after.size("a.rows") == 2 * PAGE, "bytes that were on their way arrive"
    for step in (
        transfer.wait,
        lambda: driven.close(handle if lock is None else lock),
        lambda: driven.unlink("a.rows"),
        lambda: driven.rename("a.rows", "b"),
        lambda: driven.create("c"),
        lambda: driven.fsync(handle),
    ):
        with pytest.raises(OSError, match="has ended"):
            step()
    assert clock.mono_s() == 0.0 and after.list() == ["a.rows", "lock"]
    assert again(driven).lock("lock") is None, "it is held by the one that lives"
    assert lock is not None
    after.close(lock)


@pytest.mark.parametrize("make", ["memory"], indirect=True)
def test_canary_a_dead_process_that_may_go_on_is_seen(
    driven: DrivenFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DrivenFiles, "_files", property(lambda self: self._real))
    with pytest.raises((AssertionError, KeyError, pytest.fail.Exception)):
        test_what_a_dead_process_left_behind_can_do_nothing_to_the_next(driven)


def test_errors_pass(driven: DrivenFiles) -> None:
    with pytest.raises(FileNotFoundError):
        driven.open("none.rows")
    handle = driven.create("a.rows")
    with pytest.raises(OSError, match=r"Invalid argument|whole pages|EINVAL"):
        driven.start_write(handle, 1, filled(driven, 1, 1)).wait()
    assert driven.exists("a.rows") and driven.size("a.rows") == 0
    driven.close(handle)


def test_what_is_held_is_kept_up_with(make: Make, tmp_path: Path) -> None:
    """Beside a naive sum over all names, after every call that may change it; two share a drive."""
    drive, clock, moved = Drive(Rates(1e6, 1e6)), VirtualClock(), Moved()
    others = DrivenFiles(SimFiles(), drive, clock, weigh, CAPACITY)
    driven = DrivenFiles(
        make(tmp_path), drive, clock, weigh, CAPACITY, moved, beside=others.held_bytes
    )
    data, real = memoryview(driven.buffer(2 * PAGE)), driven._real

    def naive() -> int:
        return sum(weigh(name, real.size(name)) for name in real.list())

    assert driven.held_bytes() == naive() == 0
    steps = [
        lambda: handles.append(driven.create("a")),
        lambda: driven.preallocate(handles[0], 2 * PAGE),
        lambda: driven.start_write(handles[0], 0, data[: 2 * PAGE]).wait(),
        lambda: driven.close(handles[0]),
        lambda: driven.rename("a", "b.rows"),
        lambda: handles.append(driven.create("c")),
        lambda: driven.write(handles[1], 0, data[:PAGE]),
        lambda: driven.close(handles[1]),
        lambda: driven.rename("c", "b.rows"),
        lambda: driven.unlink("b.rows"),
    ]
    handles: list[int] = []
    most = 0
    for step in steps:
        step()
        most = max(most, naive())
        assert driven.held_bytes() == naive()
    assert most > 0 and moved.written_bytes == drive.written_bytes > 0 and moved.read_bytes == 0
    free = driven.free_bytes()
    handle = others.create("theirs")
    others.write(handle, 0, data[:PAGE])
    assert driven.free_bytes() == min(real.free_bytes(), free - weigh("theirs", PAGE))
