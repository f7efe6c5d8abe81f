"""Knobs: how a model is run, beside what its files say"""

from __future__ import annotations

from dataclasses import dataclass

from engine.bad import BadInput

DTYPES = ("", "float32", "bfloat16")
KV = ("model", "e4m3")
TABLES = ("warm", "cold")


@dataclass(frozen=True, slots=True)
class Knobs:
    """One choice for all engines over a model's weights. Raises BadInput, which names the flag."""

    dtype: str = ""
    """Of weights and rows; empty is the files' own, and float32 for a random model."""
    kv: str = "model"
    """Rows of keys and values: in the model's dtype, or e4m3 with a scale a row."""
    device: str = "cpu"
    threads: int = 0
    """Of one product; 0 is one for a narrow random model, else what torch takes by itself: every
    core, or what OMP_NUM_THREADS says."""
    table: str = "warm"
    """An n-gram table is read through the page cache, or cold: past it, with rows kept that are
    asked for often."""
    table_cache_bytes: int = 2 << 30
    """What a cold table may keep of its rows (the seed's 2 GB)."""
    graphs: bool = True
    """Whether a device may capture its verify blocks and replay them."""

    def __post_init__(self) -> None:
        _one_of("--dtype", self.dtype, DTYPES)
        _one_of("--kv", self.kv, KV)
        _one_of("--table", self.table, TABLES)
        if not 0 <= self.threads <= 1_024:
            raise BadInput("--threads", None, f"{self.threads} is not in 0..1024")
        if self.table_cache_bytes < 0:
            raise BadInput("--table-cache-mb", None, "must not be negative")


def _one_of(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadInput(flag, None, f"{value!r} is none of {', '.join(filter(None, known))}")


PLAIN = Knobs()
"""As the files say, on the processor."""
