"""`moorage check disk`: the disk tier's gate and its rates, on a real drive"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cache.disk.spent import PARTS
from engine.knobs import PLAIN, Knobs
from replay.commands import board_of
from replay.disk_gate import STEPS, gate
from replay.drive_rates import Bench, Sizes
from replay.found import Found, print_gate, print_rounds
from replay.gate_case import Case
from replay.models import known
from replay.place import own_folder, refuse_small
from replay.progress import progress
from replay.rounds import WARM_UP, Changed, Round, refuse_rounds
from sim.profile import Profile

GATE_BYTES = 64 << 20
"""More than the gate's small model ever writes."""


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
    knobs: Knobs = PLAIN,
) -> int:
    """`moorage check disk`; returns the exit status, 1 when the gate failed. Raises BadInput."""
    board = board_of(profile, settings)
    model = known(model)
    refuse_rounds(gib, rounds)
    sizes = Sizes.of(board, gib * 2**30)
    refuse_small(directory, sizes.drive_bytes + GATE_BYTES, sizes.memory_bytes)
    pairs = tuple((key, value) for key, _, value in (text.partition("=") for text in settings))
    with own_folder(directory) as folder:
        found = check(folder, Case(model, profile, pairs, seed, knobs), board, sizes, rounds)
    if as_json:
        sys.stdout.write(json.dumps(found.figures()) + "\n")
    else:
        print_found(Console(), directory, found)
    return 1 if found.gate else 0


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


def print_found(console: Console, directory: Path, found: Found) -> None:
    """The gate, every round, the medians, and where the time went."""
    print_gate(console, found.gate, found.said)
    if found.rounds:
        print_rounds(console, directory, found, PARTS)
