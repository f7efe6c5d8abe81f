"""Staging buffers: made once, all or so many as the machine has room for, never lost.

Method: direct, with a machine that refuses memory at every point; then random takes and gives.
"""

from __future__ import annotations

import errno

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.budget import freely
from cache.disk.staging import Staging
from cache.ports import PAGE
from sim.files import SimFiles


class Short(SimFiles):
    """Files of a machine that has memory for so many buffers."""

    def __init__(self, room: int, error: type[BaseException] = MemoryError) -> None:
        super().__init__()
        self.room, self._error = room, error

    def buffer(self, nbytes: int) -> memoryview:
        """The buffer, while there is room."""
        if not self.room:
            raise self._error(errno.ENOMEM, "no memory")
        self.room -= 1
        return super().buffer(nbytes)


def test_nothing_is_allocated_before_its_first_use() -> None:
    files = Short(9)
    staging = Staging(files, 2, 3 * PAGE - 1, 1_000)
    assert staging.held_bytes() == 0 and staging.take() is None and files.room == 9
    assert staging.make(freely) and staging.held_bytes() == 2_000 and files.room == 7
    assert staging.make(freely) and files.room == 7, "made once"


def test_buffers_are_whole_pages_and_two_different_ones() -> None:
    staging = Staging(SimFiles(), 2, PAGE + 1, 1)
    staging.make(freely)
    first, second = staging.take(), staging.take()
    assert first is not None and second is not None and staging.take() is None
    assert len(first) == len(second) == 2 * PAGE
    assert np.frombuffer(first, np.uint8).ctypes.data % PAGE == 0
    first[:3], second[:3] = b"abc", b"xyz"
    assert bytes(first[:3]) == b"abc"
    staging.give(second)
    assert staging.take() is second


@pytest.mark.parametrize("room", [0, 1])
@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_without_memory_it_says_so_and_goes_on_later(room: int, error: type[BaseException]) -> None:
    files = Short(room, error)
    staging = Staging(files, 2, PAGE, 10)
    assert not staging.make(freely) and staging.held_bytes() == 10 * room
    assert not staging.make(freely), "and again"
    files.room = 9
    assert staging.make(freely) and staging.held_bytes() == 20 and files.room == 9 - (2 - room)


def test_the_budget_is_asked_before_each_and_may_refuse() -> None:
    asked: list[tuple[str, int]] = []

    def once(what: str, nbytes: int) -> bool:
        asked.append((what, nbytes))
        return len(asked) < 2

    files = Short(9)
    staging = Staging(files, 2, PAGE, 123)
    assert not staging.make(once)
    assert asked == [("disk", 123)] * 2 and files.room == 8 and staging.held_bytes() == 123


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 4))
def test_takes_and_gives_lose_none(steps: list[bool], count: int) -> None:
    staging, out = Staging(SimFiles(), count, PAGE, 7), list[memoryview]()
    staging.make(freely)
    for take in steps:
        if take:
            buffer = staging.take()
            assert (buffer is None) == (len(out) == count)
            if buffer is not None:
                assert all(buffer is not other for other in out)
                out.append(buffer)
        elif out:
            staging.give(out.pop(0))
    assert staging.held_bytes() == 7 * count
