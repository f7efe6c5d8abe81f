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
