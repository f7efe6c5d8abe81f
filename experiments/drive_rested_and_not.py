"""A drive that is rested and one that is not: the same save, and every figure of the fit.

The seed's save of 58,278 tokens took 1.46 s on a rested drive and 4.9 s right after 17.5 GB of the
tier's files. The board's drive is put in each situation that was measured; then the fit is made
again from its constants, so that the board's numbers can be told from anybody's choice.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.figure import Curve, Figure
from experiments.results import Rows
from sim.drive import Rates
from sim.drive_seen import (
    BURSTS,
    GB,
    OBSERVED,
    Files,
    Observed,
    after,
    beside,
    free_that_gives,
    seen,
)
from sim.profile import Profile

NAME = "drive-rested-and-not"
ABOUT = "a save on a rested drive, after a burst, after rests; the drive's parameters fitted again"
DISK = True

BESIDE_S = 7.23
"""The seed's save of 5.20 GB while the tier wrote 1.8 GB; how rested its drive was is not told."""
BOUND_S, BOUND_BYTES = 20.0, 7.0 * GB
"""What it reckons the slowest save to take, at the slowest rate it saw, 0.36 GB/s."""
BELIEFS = ("sustained", "cache", "settle")
UNITS = {
    "write_bytes_s": ("write", "GB/s", GB),
    "sustained_bytes_s": ("sustained", "GB/s", GB),
    "cache_bytes": ("cache", "GB", GB),
    "recover_bytes_s": ("recover", "MB/s", 1e6),
    "settle_s": ("settle", "s", 1.0),
    "pause_bytes_s": ("pause", "MB/s", 1e6),
    "fsync_s": ("fsync", "ms", 1e-3),
}
"""How a fitted parameter is told."""


def off(seed: float, ours: float) -> str:
    """How far ours is from what was measured."""
    return f"{100 * (ours / seed - 1):+.1f} %"


def how(one: Observed) -> str:
    """What the fit makes of a figure."""
    if one.key in BELIEFS:
        return "believed"
    return "fitted" if one.error else "not fitted"


def run(board: Profile) -> list[Figure]:
    """Each figure as the board's drive gives it, its residual in the note; the fit's parameters."""
    rates = Rates.of(board)
    ours = seen(rates)
    figures = []
    for one in OBSERVED:
        note = f"{off(one.seed, ours[one.key])} {how(one)}: {one.what.removesuffix('; not fitted')}"
        figures.append(Figure(one.key, one.seed, ours[one.key], one.unit, note))
    return [*figures, *_others(rates), *_fitted(rates)]


def _others(rates: Rates) -> list[Figure]:
    """What is no figure of the drive alone, and what the model would give without its pauses."""
    alone_s, free = beside(rates, rates.cache_bytes), free_that_gives(rates, BESIDE_S)
    note = f"{off(BESIDE_S, alone_s)} not fitted: 5.20 GB beside 1.8 GB of files, a rested drive"
    full_s = BOUND_BYTES / min(rates.sustained_bytes_s, rates.write_bytes_s)
    bound = f"{off(BOUND_S, full_s)} not fitted: 7.0 GB with no cache; there at its slowest"
    calm = seen(replace(rates, pause_bytes_s=0.0))
    paced = f"{off(8.2, calm['paced_7_77'])} were a short pause to take nothing"
    return [
        Figure("beside_5_20", BESIDE_S, alone_s, "s", note),
        Figure("beside_5_20.free", None, free / GB, "GB", "cache with which it takes that long"),
        Figure("slowest_7_0", BOUND_S, full_s, "s", bound),
        Figure("paced_7_77.no_pause", 8.2, calm["paced_7_77"], "s", paced),
    ]


def _fitted(rates: Rates) -> list[Figure]:
    """What the fit gives, beside the board's."""
    # Only this needs JAX, which takes a second to import.
    from sim.drive_fit import FITTED, fitted, standard_errors

    params, misses = fitted()
    errors = standard_errors(params)
    figures = []
    for name in FITTED:
        short, unit, size = UNITS[name]
        found, boards = getattr(params, name) / size, getattr(rates, name) / size
        error = f"standard error {100 * errors[name]:.0f} %"
        note = f"{error}; the board's {boards:.4g}, off by {off(found, boards)}"
        figures.append(Figure(f"fit.{short}", None, found, unit, note))
    note = "sum of squares of what was fitted, in standard errors"
    return [*figures, Figure("fit.misses", None, misses, "", note)]


def tables(board: Profile) -> dict[str, Rows]:
    """Every observed figure with its residual."""
    ours = seen(Rates.of(board))
    rows = [
        {
            "key": one.key,
            "what": one.what,
            "unit": one.unit,
            "seed": one.seed,
            "ours": ours[one.key],
            "residual_percent": 100 * (ours[one.key] / one.seed - 1),
            "standard_error_percent": 100 * one.error,
        }
        for one in OBSERVED
    ]
    return {"residuals": rows}


WRITTEN_GB = (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28)
RESTED_S = (0, 10, 20, 30, 45, 60, 90, 120, 180, 240, 300, 360)


def curves(board: Profile) -> list[Curve]:
    """The save's seconds over what was written just before, and over the rest after 17.5 GB."""
    rates, save = Rates.of(board), BURSTS["after_7_77"].then_bytes
    before = [(gb, after(rates, Files(gb * GB, 0.0, save))[0]) for gb in WRITTEN_GB]
    rests = {
        f"after {gb:g} GB": [(rest, _rested_s(rates, gb * GB, rest, save)) for rest in RESTED_S]
        for gb in (17.5, 30.0)
    }
    return [
        Curve("A save of 7.77 GB", "GB of files right before it", "s", {"the board's": before}),
        Curve("A save of 7.77 GB after a burst", "seconds of rest", "s", rests),
    ]


def _rested_s(rates: Rates, nbytes: float, rest_s: float, save: float) -> float:
    return after(rates, Files(nbytes, 0.0, save), rest_s)[0]
