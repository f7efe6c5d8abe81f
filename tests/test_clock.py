"""The virtual clock: moves when it is charged, never falls.

Method: direct.
"""

import pytest

from sim.clock import VirtualClock


def test_time_is_what_was_charged() -> None:
    clock = VirtualClock(wall_start_s=1_000.0)
    clock.charge(2.5)
    clock.advance_to(2.0)
    assert (clock.mono_s(), clock.wall_s()) == (2.5, 1_002.5)
    clock.advance_to(10.0)
    assert clock.mono_s() == 10.0


def test_the_date_is_that_of_utc() -> None:
    clock = VirtualClock(wall_start_s=86_400.0 * 20_000 - 1.0)
    assert clock.day() == 19_999
    clock.charge(1.0)
    assert clock.day() == 20_000
    assert VirtualClock().day() == 0 and VirtualClock(-1.0).day() == -1


def test_time_cannot_fall() -> None:
    with pytest.raises(AssertionError, match="cannot fall"):
        VirtualClock().charge(-1.0)


def test_work_aside_has_its_own_time() -> None:
    clock = VirtualClock(wall_start_s=1_000.0)
    clock.charge(5.0)
    with clock.aside(2.0):
        assert clock.is_aside and (clock.mono_s(), clock.wall_s()) == (2.0, 1_002.0)
        clock.charge(9.0)
        with clock.aside(1.0):
            clock.advance_to(4.0)
            assert clock.mono_s() == 4.0
        assert clock.is_aside and clock.mono_s() == 11.0
    assert not clock.is_aside and (clock.mono_s(), clock.wall_s()) == (5.0, 1_005.0)


def test_an_error_aside_leaves_the_clock_as_it_was() -> None:
    clock = VirtualClock()
    with pytest.raises(ValueError, match="no"), clock.aside(3.0):
        raise ValueError("no")
    assert clock.mono_s() == 0.0 and not clock.is_aside
