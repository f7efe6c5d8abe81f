"""Files written slowly before a save: why pacing them does not help it.

The seed spread 17.5 GB of the tier's files over 190 s, and the save after them took 8.2 s, where
right after the same files in one burst it took 4.9 s: "a drive written to the whole time never gets
the rest it needs". The same bytes are written over more and more seconds here, spread evenly, and
in one burst followed by a rest of as many seconds.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.figure import Curve, Figure
from experiments.results import Rows
from sim.drive import Rates
from sim.drive_seen import AFTER, BURSTS, GB, Files, after, files_of
from sim.profile import Profile

NAME = "pacing"
ABOUT = "17.5 GB of files spread over 190 s before a save, in one burst, and in one with a rest"
DISK = True

OVER_S = (0, 30, 60, 95, 190, 380, 760, 1_520, 3_040, 3_800, 4_560, 5_700, 7_600)
BURST, PACED = BURSTS["after_7_77"], BURSTS["paced_7_77"]


def ways(rates: Rates, over_s: float) -> dict[str, tuple[float, float]]:
    """Seconds of the save, and bytes of cache that it finds free."""
    calm = replace(rates, pause_bytes_s=0.0)
    eager = replace(calm, settle_s=0.0)
    spread = Files(BURST.total_bytes, over_s, BURST.then_bytes)
    return {
        "paced": after(rates, spread),
        "burst_then_rest": after(rates, BURST, over_s),
        "paced_no_loss": after(calm, spread),
        "paced_no_settling": after(eager, spread),
    }


ABOUT_WAYS = {
    "paced": "the files spread over those seconds",
    "burst_then_rest": "the same files at once, then left alone for as long",
    "paced_no_loss": "spread, were a short pause to take nothing of the cache",
    "paced_no_settling": "spread, did every pause give back: no drive that was measured",
}


def run(board: Profile) -> list[Figure]:
    """The seed's two saves, and what each way of spending 190 s gives."""
    rates = Rates.of(board)
    burst_s, burst_free = after(rates, BURST)
    count, nbytes, apart_s = files_of(PACED)
    pause_s = apart_s - nbytes / rates.write_bytes_s
    figures = [
        Figure("files", None, count, "files", "17.5 GB of 104 MiB, each synced"),
        Figure("pause_s", None, pause_s, "s", "between two paced files"),
        Figure("settle_s", None, rates.settle_s, "s", "rest before any of the cache comes back"),
        Figure("burst.save_s", AFTER["after_7_77"].seed, burst_s, "s", "right after all of them"),
        Figure("burst.cache_free", None, burst_free / GB, "GB"),
    ]
    for name, (save_s, free) in ways(rates, PACED.over_s).items():
        measured = AFTER["paced_7_77"].seed if name == "paced" else None
        figures.append(Figure(f"{name}.save_s", measured, save_s, "s", ABOUT_WAYS[name]))
        figures.append(Figure(f"{name}.cache_free", None, free / GB, "GB"))
    helps = helps_from_s(rates)
    note = "pauses as long as the drive takes to settle" if helps else "at no pace up to 4 hours"
    return [*figures, Figure("helps_over_s", None, helps, "s", f"paced beats the burst: {note}")]


def helps_from_s(rates: Rates) -> float:
    """The fewest seconds over which pacing makes the save faster than the burst, 0 for none."""
    burst_s, _ = after(rates, BURST)
    for over_s in range(50, 14_401, 50):
        spread = Files(BURST.total_bytes, over_s, BURST.then_bytes)
        if after(rates, spread)[0] < burst_s - 1e-6:
            return over_s
    return 0


def tables(board: Profile) -> dict[str, Rows]:
    """Every way over each duration."""
    rates = Rates.of(board)
    rows = [
        {"way": name, "over_s": over_s, "save_s": save_s, "cache_free_bytes": free}
        for over_s in OVER_S
        for name, (save_s, free) in ways(rates, over_s).items()
    ]
    return {"paces": rows}


def curves(board: Profile) -> list[Curve]:
    """The save and the cache it finds, over the seconds that the files take."""
    rates = Rates.of(board)
    points = {over_s: ways(rates, over_s) for over_s in OVER_S}
    lines = {name.replace("_", " "): name for name in ABOUT_WAYS}

    def drawn(title: str, y: str, at: int, size: float) -> Curve:
        values = {
            line: [(over_s, points[over_s][name][at] / size) for over_s in OVER_S]
            for line, name in lines.items()
        }
        return Curve(title, "seconds for 17.5 GB of files", y, values)

    return [
        drawn("A save of 7.77 GB after 17.5 GB of files", "s", 0, 1.0),
        drawn("Cache that the save finds free", "GB", 1, GB),
    ]
