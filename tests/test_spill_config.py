"""The spill's settings: the seed's figures, one line for what can't be, and a floor.

Method: direct, every setting with values on both sides of what it may be; those that the disk tier
has too are held in test_disk_config, and here once more as the spill's.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from cache.drive_config import FREE_FLOOR_BYTES
from cache.spill.config import SpillConfig

BAD = {
    "mode": ("", "ON"),
    "budget_bytes": (-1,),
    "ttl_s": (0.0, float("nan")),
    "min_free_bytes": (-1,),
    "floor_bytes": (-1,),
    "read_bytes_s": (0.0, float("nan")),
    "rate_memory_s": (0.0, float("nan")),
    "tokens_min": (0,),
    "park_tokens_min": (0,),
    "anchors_kept": (-1,),
    "block_rows": (0,),
    "idle_s": (-1.0, float("nan")),
    "idle_tokens_min": (0,),
}
LEAST = {
    "budget_bytes": 0,
    "ttl_s": 1e-9,
    "min_free_bytes": 0,
    "floor_bytes": 0,
    "read_bytes_s": 1.0,
    "rate_memory_s": 1e-9,
    "tokens_min": 1,
    "park_tokens_min": 1,
    "anchors_kept": 0,
    "block_rows": 1,
    "idle_s": 0.0,
    "idle_tokens_min": 1,
}


def test_every_setting_is_among_these() -> None:
    assert {*BAD, "codec"} == {field.name for field in fields(SpillConfig)}
    assert {*LEAST, "mode"} == set(BAD)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
def test_what_cannot_be_is_one_line_that_names_the_setting(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must [^\n]*$"):
        SpillConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(LEAST))
def test_the_least_that_can_be_is_taken(name: str) -> None:
    config = SpillConfig(**{name: LEAST[name]})  # type: ignore[arg-type]
    assert getattr(config, name) == LEAST[name]


def test_the_seeds_figures() -> None:
    config = SpillConfig()
    assert (config.budget_bytes, config.ttl_s) == (64_000_000_000, 48 * 3_600)
    assert (config.tokens_min, config.park_tokens_min, config.anchors_kept) == (16_384, 4_096, 4)
    assert (config.block_rows, config.codec.frame_bytes) == (1_024, 8 << 20)
    assert config.free_bytes == FREE_FLOOR_BYTES == 50_000_000_000
