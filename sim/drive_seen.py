"""What the seed measured of its drive's writes, and the model put in the same situations

What it does not tell is assumed: a rest was told by a write of PROBE_BYTES after a burst that had
filled the cache; a tier's file is 104 MiB and is synced before the next; the paced files were
spread evenly. Ranges that it gives (4 to 5.6 GB/s for the first 16 to 24 GB, then 0.3 to 1.3) are
broad beliefs about a parameter, and so is SETTLE, the one thing that no figure tells alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sim.drive import Drive, Rates

GB = 1e9
FILE_BYTES = 104 * 2**20
"""The seed's bench wrote such files, about a chunk's."""
PROBE_BYTES = 7.77 * GB
"""The save that the seed's probe timed; assumed for its rests too."""
BURST_BYTES = 60 * GB
"""More than any cache of the seed's range."""
SAVED_BYTES, TIERS_BYTES, BLOCK_BYTES = 5.20 * GB, 1.8 * GB, 122e6
"""Of the save that came while the tier wrote, and of a save's block."""
READ_BYTES_S = 7.35 * GB
"""Measured by itself."""
TIMED, TOLD = 0.02, 0.05
"""Standard errors of a figure that is given to the hundredth, and to the tenth, as a share."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A figure of the seed; the fit takes those with an error."""

    key: str
    seed: float
    unit: str
    what: str
    error: float = 0.0
    """Of its logarithm; 0 for what only checks the fit."""


class Files(NamedTuple):
    """Files of the tier over some seconds, each synced, and a write right after the last one."""

    total_bytes: float
    over_s: float
    """0: one right after another."""
    then_bytes: float


ALONE = {
    "rested_5_20": Observed("rested_5_20", 1.03, "s", "5.20 GB on a rested drive", TIMED),
    "rested_7_77": Observed("rested_7_77", 1.46, "s", "7.77 GB on a rested drive", TIMED),
    "rested_4_6": Observed("rested_4_6", 0.90, "s", "4.6 GB, an eviction; not fitted"),
    "rested_7_3": Observed("rested_7_3", 1.41, "s", "7.3 GB, an eviction; not fitted"),
    "rested_3_57": Observed("rested_3_57", 0.88, "s", "3.57 GB, a drain's whole time; not fitted"),
}
AFTER = {
    "after_7_77": Observed("after_7_77", 4.9, "s", "7.77 GB right after 17.5 GB of files", TOLD),
    "after_7_0": Observed("after_7_0", 4.5, "s", "7.0 GB right after 17.6 GB of files", TOLD),
    "paced_7_77": Observed("paced_7_77", 8.2, "s", "7.77 GB after 17.5 GB over 190 s", TOLD),
}
RESTS = {
    30.0: Observed("rest_30", 0.76, "GB/s", "30 s after a burst that filled the cache", TIMED),
    120.0: Observed("rest_120", 2.6, "GB/s", "120 s after it", TOLD),
    300.0: Observed("rest_300", 5.2, "GB/s", "300 s after it", TIMED),
}
FILE = Observed("file", 4.3, "GB/s", "a file of 104 MiB and its sync", TIMED)
SUSTAINED = Observed("sustained", 0.62, "GB/s", "the middle of 0.3 to 1.3, past the cache", 0.7)
CACHE = Observed("cache", 19.6, "GB", "the middle of 16 to 24, taken at the fast rate", 0.2)
SETTLE = Observed("settle", 20.0, "s", "30 s of rest gave next to nothing back", 0.4)

WRITES = {name: float(name.removeprefix("rested_").replace("_", ".")) * GB for name in ALONE}
BURSTS = {
    "after_7_77": Files(17.5 * GB, 0.0, 7.77 * GB),
    "after_7_0": Files(17.6 * GB, 0.0, 7.0 * GB),
    "paced_7_77": Files(17.5 * GB, 190.0, 7.77 * GB),
}
OBSERVED = (*ALONE.values(), *AFTER.values(), *RESTS.values(), FILE, SUSTAINED, CACHE, SETTLE)


def files_of(burst: Files) -> tuple[int, float, float]:
    """How many files there are, their bytes, and the seconds from one's start to the next's."""
    count = max(1, round(burst.total_bytes / FILE_BYTES))
    return count, burst.total_bytes / count, burst.over_s / count


def seen(rates: Rates) -> dict[str, float]:
    """What the model gives for each observed figure, by key: a drive, booked file by file."""
    found = {name: Drive(rates).book(0.0, nbytes, write=True) for name, nbytes in WRITES.items()}
    found |= {name: after(rates, burst)[0] for name, burst in BURSTS.items()}
    for rest_s, observed in RESTS.items():
        drive = Drive(rates)
        now_s = drive.book(0.0, BURST_BYTES, write=True) + rest_s
        found[observed.key] = (
            PROBE_BYTES / (drive.book(now_s, PROBE_BYTES, write=True) - now_s) / GB
        )
    drive = Drive(rates)
    drive.book(0.0, FILE_BYTES, write=True)
    found["file"] = FILE_BYTES / drive.sync(0.0) / GB
    found["sustained"] = min(rates.sustained_bytes_s, rates.write_bytes_s) / GB
    return found | {"cache": rates.cache_bytes / GB, "settle": rates.settle_s}


def after(rates: Rates, burst: Files, rest_s: float = 0.0) -> tuple[float, float]:
    """Seconds of the write after those files and a rest, and what the cache has free by then."""
    drive, now_s = Drive(rates), 0.0
    count, nbytes, apart_s = files_of(burst)
    for number in range(count):
        drive.book(max(now_s, number * apart_s), nbytes, write=True)
        now_s = drive.sync(now_s)
    now_s += rest_s
    free_bytes = drive.cache_free_bytes(now_s)
    return drive.book(now_s, burst.then_bytes, write=True) - now_s, free_bytes


def beside(rates: Rates, free_bytes: float) -> float:
    """Seconds of a save, 5.20 GB in blocks, while the tier writes 1.8 GB in files, each synced.

    Two writers in one queue, each booking its next when its last is there; so much of the cache is
    free when they begin.
    """
    drive = Drive(rates)
    began_s = drive.book(0.0, max(0.0, rates.cache_bytes - free_bytes), write=True)
    saved, tiers = SAVED_BYTES, TIERS_BYTES
    save_s = tier_s = began_s
    while saved > 0:
        if tiers > 0 and tier_s <= save_s:
            drive.book(tier_s, min(FILE_BYTES, tiers), write=True)
            tier_s, tiers = drive.sync(tier_s), tiers - FILE_BYTES
        else:
            save_s = drive.book(save_s, min(BLOCK_BYTES, saved), write=True)
            saved -= BLOCK_BYTES
    return drive.sync(save_s) - began_s


def free_that_gives(rates: Rates, seconds: float) -> float:
    """Free bytes with which `beside` takes so long, to a megabyte; the cache's size if it never
    takes less, 0 if it never takes more."""
    low, high = 0.0, rates.cache_bytes
    while high - low > 1e6:
        middle = (low + high) / 2
        low, high = (middle, high) if beside(rates, middle) > seconds else (low, middle)
    return (low + high) / 2
