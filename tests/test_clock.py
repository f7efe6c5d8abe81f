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
