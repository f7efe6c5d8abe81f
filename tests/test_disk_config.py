"""The disk tier's settings: the seed's figures, one line for what can't be, and a floor.

Method: direct, every setting with values on both sides of what it may be.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from cache.disk.config import DAY_S, DiskConfig
from cache.drive_config import FREE_FLOOR_BYTES, MODES

BAD = {
    "mode": ("", "ON", "write"),
    "budget_bytes": (-1,),
    "ttl_s": (0.0, -1.0, float("nan")),
    "min_free_bytes": (-1,),
    "floor_bytes": (-1,),
    "admit_after": (0, -2),
    "head_anchors": (-1,),
    "branches": (-1,),
    "tokens_min": (0,),
    "read_bytes_s": (0.0, -1.0, float("nan")),
    "rate_memory_s": (0.0, float("nan")),
    "lines_max": (0,),
    "sessions_max": (0,),
}
LEAST = {
    "budget_bytes": 0,
    "ttl_s": 1e-9,
    "min_free_bytes": 0,
    "floor_bytes": 0,
    "admit_after": 1,
    "head_anchors": 0,
    "branches": 0,
    "tokens_min": 1,
    "read_bytes_s": 1.0,
    "rate_memory_s": 1e-9,
    "lines_max": 1,
    "sessions_max": 1,
}


def test_every_setting_is_among_these() -> None:
    assert set(BAD) == {field.name for field in fields(DiskConfig)} == {*LEAST, "mode"}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
def test_what_cannot_be_is_one_line_that_names_the_setting(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must [^\n]*$"):
        DiskConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(LEAST))
def test_the_least_that_can_be_is_taken(name: str) -> None:
    assert getattr(DiskConfig(**{name: LEAST[name]}), name) == LEAST[name]  # type: ignore[arg-type]


def test_the_seeds_figures() -> None:
    config = DiskConfig()
    assert (config.mode, config.budget_bytes, config.ttl_s) == ("on", 16_000_000_000, 7 * DAY_S)
    assert (config.admit_after, config.head_anchors, config.branches) == (2, 4, 4)
    assert (config.tokens_min, config.min_free_bytes) == (4_096, FREE_FLOOR_BYTES)


def test_the_free_space_is_never_below_the_floor() -> None:
    assert DiskConfig(min_free_bytes=1).free_bytes == FREE_FLOOR_BYTES == 50_000_000_000
    assert DiskConfig(min_free_bytes=FREE_FLOOR_BYTES + 1).free_bytes == FREE_FLOOR_BYTES + 1


def test_modes_read_and_write() -> None:
    can = {mode: (DiskConfig(mode=mode).reads, DiskConfig(mode=mode).writes) for mode in MODES}
    assert can == {"on": (True, True), "read": (True, False), "off": (False, False)}
