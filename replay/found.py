"""What a check on a real drive found: a gate and rates, as figures and as tables for a person"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from replay.rounds import RATES, Round, medians

_COLUMNS = ("tier", "raw", "ratio")
_SIDES = ("write", "raw_write", "read", "raw_read")


@dataclass(frozen=True, slots=True)
class Found:
    """What a check found."""

    gate: str
    """Empty when it held."""
    said: str
    """Why files went through the page cache; empty when none had to."""
    nbytes: int
    """Of one save, and of one restore."""
    rounds: tuple[Round, ...]
    warm_up: tuple[Round, ...]
    """Rounds before those, in which buffers were touched for the first time: not in the medians."""

    def figures(self) -> dict[str, Any]:
        """In plain values; rates are null where nothing was measured."""
        none = dict.fromkeys(RATES)
        return {
            "gate": self.gate or "ok",
            **(medians(self.rounds) if self.rounds else none),
            "direct": not self.said,
            "bytes": self.nbytes,
            "rounds": [one.figures() for one in self.rounds],
            "warm_up": [one.figures() for one in self.warm_up],
        }


def say(console: Console, line: str) -> None:
    """A line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_gate(console: Console, gate: str, said: str) -> None:
    """Whether the gate held, and why files went through the page cache."""
    say(console, f"gate  {gate or 'ok'}")
    if said:
        say(console, f"page cache  {said}")


def print_rounds(
    console: Console, directory: Path, found: Found, parts: Sequence[str], what: str = ""
) -> None:
    """Every round, the medians, and where the time went, by the names of `parts`."""
    moved = f"{found.nbytes / 1e9:.2f} GB saved and restored below {directory}"
    say(console, f"{moved}{what}, GB/s; raw: direct I/O")
    table = Table("round", "first", *(f"{a} {b}" for a in ("save", "restore") for b in _COLUMNS))
    names = ["warm-up"] * len(found.warm_up) + [str(n + 1) for n in range(len(found.rounds))]
    for name, one in zip(names, found.warm_up + found.rounds, strict=True):
        figures = one.figures()
        table.add_row(name, figures["first"], *_cells(figures))
    table.add_section()
    table.add_row("median", "", *_cells(medians(found.rounds)))
    console.print(table)
    console.print(_spent(found.rounds, parts))


def _cells(figures: dict[str, Any]) -> list[str]:
    cells = []
    for side in ("write", "read"):
        rates = (figures[f"{side}_bytes_s"], figures[f"raw_{side}_bytes_s"])
        cells += [*(f"{rate / 1e9:.2f}" for rate in rates), f"{figures[f'{side}_ratio']:.2f}"]
    return cells


def _spent(rounds: Sequence[Round], parts: Sequence[str]) -> Table:
    """Median seconds by what they were spent on; the rest is Python, and waits between threads."""
    table = Table("seconds, median", "save", "raw write", "restore", "raw read")
    sides = [[getattr(one, side) for one in rounds] for side in _SIDES]
    for what in (*parts, "rest", "all"):
        cells = []
        for side in sides:
            if what == "rest":
                known = [
                    one["all"] - sum(one[name] for name in one if name != "all") for one in side
                ]
                cells.append(f"{median(known):.3f}")
            else:
                cells.append(f"{median(one[what] for one in side):.3f}" if what in side[0] else "")
        table.add_row(what, *cells)
    return table
