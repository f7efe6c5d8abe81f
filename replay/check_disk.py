"""`moorage check disk`: the disk tier's gate and its rates, on a real drive"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from cache.host import OsFiles, sigterm_unwinds
from replay.bad import BadInput
from replay.commands import board_of
from replay.disk_gate import STEPS, Case, gate
from replay.drive_rates import Bench, Changed, Round, Sizes, medians
from replay.models import MODELS
from replay.progress import progress
from sim.profile import Profile

GATE_BYTES = 64 << 20
"""More than the gate's small model ever writes."""
ROUNDS_MAX = 1_000
WARM_UP = 2
"""Rounds after which each of the tier's buffers, two of a kind, has been used."""
RATES = (
    *("read_ratio", "write_ratio", "read_bytes_s", "write_bytes_s"),
    *("raw_read_bytes_s", "raw_write_bytes_s"),
)
_MEMINFO = Path("/proc/meminfo")
_CGROUP, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


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


def run_check_disk(
    directory: Path,
    *,
    model: str,
    gib: float,
    rounds: int,
    profile: str,
    settings: Sequence[str],
    seed: int,
    as_json: bool,
) -> int:
    """`moorage check disk`; returns the exit status, 1 when the gate failed. Raises BadInput."""
    board = board_of(profile, settings)
    if model not in MODELS:
        raise BadInput("--model", None, f"{model!r} is none of {', '.join(MODELS)}")
    if not 0 < gib < math.inf:
        raise BadInput("--gib", None, f"{gib} is no amount to write")
    if not 0 < rounds <= ROUNDS_MAX:
        raise BadInput("--rounds", None, f"{rounds} is not within 1 and {ROUNDS_MAX:,}")
    sizes = Sizes.of(board, gib * 2**30)
    refuse_small(directory, sizes)
    pairs = tuple((key, value) for key, _, value in (text.partition("=") for text in settings))
    with own_folder(directory) as folder:
        found = check(folder, Case(model, profile, pairs, seed), board, sizes, rounds)
    if as_json:
        sys.stdout.write(json.dumps(found.figures()) + "\n")
    else:
        print_found(Console(), directory, found)
    return 1 if found.gate else 0


def refuse_small(directory: Path, sizes: Sizes) -> None:
    """Raise BadInput for a directory, a drive or a memory that won't do."""
    place, files = str(directory), OsFiles(directory, readonly=True)
    if why := files.unfit():
        raise BadInput(place, None, why)
    free, need = files.free_bytes(), sizes.drive_bytes + GATE_BYTES
    if free < need:
        raise BadInput(place, None, f"{need:,} bytes are needed, {free:,} are free")
    memory = free_memory_bytes()
    if memory is not None and memory < sizes.memory_bytes:
        what = f"{sizes.memory_bytes:,} bytes of memory are needed, {memory:,} are free"
        raise BadInput("--gib", None, what)


def free_memory_bytes() -> int | None:
    """Memory that this process may still take; None where nobody says."""
    free: list[int] = []
    with suppress(OSError, ValueError):
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free.append(int(fields["MemAvailable"].removesuffix("kB")) * 1_024)
    with suppress(OSError, ValueError):
        group = _CGROUPS / _CGROUP.read_text().splitlines()[-1].split(":", 2)[2].lstrip("/")
        limit, held = (group / f"memory.{name}" for name in ("max", "current"))
        # "max" is no number: there is no limit.
        free.append(int(limit.read_text()) - int(held.read_text()))
    return min(free, default=None)


@contextmanager
def own_folder(directory: Path) -> Iterator[Path]:
    """A folder below, gone afterwards, also after SIGTERM; raises BadInput."""
    with sigterm_unwinds():
        try:
            folder = TemporaryDirectory(prefix="moorage-check-", dir=directory)
        except OSError as error:
            raise BadInput(str(directory), None, f"cannot be used: {error.strerror}") from None
        with folder as name:
            try:
                yield Path(name)
            except OSError as error:
                why = error.strerror or str(error)
                raise BadInput(str(directory), None, f"cannot be used: {why}") from None


def check(folder: Path, case: Case, board: Profile, sizes: Sizes, rounds: int) -> Found:
    """Gate and rates in a folder of their own; raises BadInput and OSError."""
    with progress("checking", STEPS, unit="steps") as advance:
        why = gate(folder / "gate", case, advance)
    made: list[Round] = []
    if why:
        return Found(why, "", 0, (), ())  # How fast wrong bytes are is nobody's question.
    with progress("moving bytes", WARM_UP + rounds, unit="rounds") as advance:
        bench = Bench(folder / "rates", board, sizes, case.seed)
        try:
            for number in range(WARM_UP + rounds):
                # Raw, ours, ours, raw: what drifts falls on both.
                made.append(bench.round(ours_first=number % 2 == 1))
                advance(1)
        except Changed as changed:
            why = why or str(changed)
        finally:
            bench.close()
    return Found(why, bench.said, bench.nbytes, tuple(made[WARM_UP:]), tuple(made[:WARM_UP]))


# for a person


def print_found(console: Console, directory: Path, found: Found) -> None:
    """The gate, every round, the medians, and where the time went."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    say(f"gate  {found.gate or 'ok'}")
    if found.said:
        say(f"page cache  {found.said}")
    if not found.rounds:
        return
    say(f"{found.nbytes / 1e9:.2f} GB saved and restored below {directory}, GB/s; raw: direct I/O")
    table = Table("round", "first", *(f"{a} {b}" for a in ("save", "restore") for b in _COLUMNS))
    names = ["warm-up"] * len(found.warm_up) + [str(n + 1) for n in range(len(found.rounds))]
    for name, one in zip(names, found.warm_up + found.rounds, strict=True):
        figures = one.figures()
        table.add_row(name, figures["first"], *_cells(figures))
    table.add_section()
    table.add_row("median", "", *_cells(medians(found.rounds)))
    console.print(table)
    console.print(_spent(found.rounds))


_COLUMNS = ("tier", "raw", "ratio")
_SIDES = ("write", "raw_write", "read", "raw_read")


def _cells(figures: dict[str, Any]) -> list[str]:
    cells = []
    for side in ("write", "read"):
        rates = (figures[f"{side}_bytes_s"], figures[f"raw_{side}_bytes_s"])
        cells += [*(f"{rate / 1e9:.2f}" for rate in rates), f"{figures[f'{side}_ratio']:.2f}"]
    return cells


def _spent(rounds: Sequence[Round]) -> Table:
    """Median seconds by what they were spent on; the rest is Python, and waits between threads."""
    table = Table("seconds, median", "save", "raw write", "restore", "raw read")
    sides = [[getattr(one, side) for one in rounds] for side in _SIDES]
    for what in ("copy", "checksum", "drive", "fsync", "names", "rest", "all"):
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
