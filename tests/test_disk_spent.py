"""Where the time of saves and restores goes.

Goal: every second counts once, as what it was spent on, also when the work fails.
Method: a virtual clock that the work itself moves; and a tier on a modelled drive, whose own times
must add up to what its save and restore took. Covers cache.disk.spent.
"""

from __future__ import annotations

import pytest
from support import GRID, box, engine, serve, tier, tokens

from cache.disk.spent import Spent
from sim.clock import VirtualClock
from sim.drive import Drive, Rates
from sim.driven_files import DrivenFiles
from sim.files import SimFiles


def test_seconds_add_up_by_what_they_were_spent_on() -> None:
    clock = VirtualClock()
    spent = Spent(clock)
    for _ in range(2):
        with spent.on("copy"):
            clock.charge(1.5)
        clock.charge(7.0)
    with pytest.raises(OSError), spent.on("drive"):
        clock.charge(0.25)
        raise OSError
    of = {"copy": 3.0, "checksum": 0.0, "drive": 0.25, "fsync": 0.0, "names": 0.0}
    assert spent.seconds == of


def test_a_tier_tells_what_its_drive_took() -> None:
    """Nothing but the drive takes time there."""
    clock, of = VirtualClock(), engine("witness")
    files = DrivenFiles(SimFiles(), Drive(Rates(1e6, 1e6, 0.5)), clock, lambda name, n: n, 1 << 40)
    held = tier(files, of, clock=clock, read_bytes_s=1e12)
    on = box(of, disk=held)
    serve(on, tokens(3 * GRID + 9, 1), tokens(3), session="a")
    held.keeper.jobs.drain()
    on.stack.leave()
    saved = held.stats()["write_s"]
    files_there = [name for name in files.list() if name.endswith(("rows", "anchor"))]
    assert saved["fsync"] == pytest.approx(0.5 * len(files_there)) and saved["drive"] > 0
    assert saved["copy"] == saved["checksum"] == 0
    serve(on, tokens(9 * GRID, 2), tokens(3), kind="title")
    row, _ = serve(on, tokens(3 * GRID + 9, 1), tokens(3), session="b")
    assert row.source == "disk.grid" and held.stats()["read_s"]["drive"] > 0
