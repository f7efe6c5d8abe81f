"""`moorage check spill`: the spill's gate and its rates on a real drive, under each codec"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from cache.disk.spent import PARTS
from cache.spill.codec import Mode
from engine.bad import BadInput
from engine.knobs import PLAIN, Knobs
from replay.commands import board_of
from replay.found import Found, print_gate, print_rounds, say
from replay.gate_case import Case
from replay.models import known
from replay.place import own_folder, refuse_small
from replay.progress import progress
from replay.rounds import RATES, WARM_UP, Changed, Round, refuse_rounds
from replay.spill_gate import MODES, STEPS, gate
from replay.spill_rates import Bench, Sizes
from sim.profile import Profile

CODECS = (*MODES, "both")
GATE_BYTES = 64 << 20
"""More than the gate's small model ever writes."""
SPILL_PARTS = ("sums", "pack", *PARTS, "manifest")
"""Where time goes. Sums of buffers, on the engine's device where that has kernels; waits for the
codec's workers; the rest as the disk tier's, `checksum` that of a file's bytes; the manifest with
its syncs, and what goes after it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The gate, and what was found under each codec."""

    gate: str
    """Empty when it held."""
    said: str
    """Why files went through the page cache; empty when none had to."""
    conversation_bytes: int
    """Rows and copies as they are in the engine."""
    codecs: Mapping[Mode, Found]
    """By codec; `bytes` of each are those of its files."""

    def figures(self) -> dict[str, Any]:
        """In plain values; the rates in front are the first codec's, null where there are none."""
        codecs = {mode: self._of(found) for mode, found in self.codecs.items() if found.rounds}
        first = next(iter(codecs.values()), dict.fromkeys(RATES))
        return {
            "gate": self.gate or "ok",
            **{name: first[name] for name in RATES},
            "codec": next(iter(codecs), None),
            "direct": not self.said,
            "conversation_bytes": self.conversation_bytes,
            "codecs": codecs,
        }

    def _of(self, found: Found) -> dict[str, Any]:
        """One codec's, with the rates of the conversation's bytes beside those of its files'."""
        figures = found.figures()
        whole = {}
        for side in ("read", "write"):
            by_s = [getattr(one, side)["all"] for one in found.rounds]
            whole[f"conversation_{side}_bytes_s"] = self.conversation_bytes / median(by_s)
            ratio = figures[f"{side}_ratio"] * self.conversation_bytes / found.nbytes
            whole[f"conversation_{side}_ratio"] = ratio
        for name in ("gate", "direct"):
            del figures[name]
        return {"file_bytes": figures.pop("bytes"), **whole, **figures}


def run_check_spill(
    directory: Path,
    *,
    model: str,
    codec: str,
    gib: float,
    rounds: int,
    profile: str,
    settings: Sequence[str],
    seed: int,
    as_json: bool,
    knobs: Knobs = PLAIN,
) -> int:
    """`moorage check spill`; returns the exit status, 1 when the gate failed. Raises BadInput."""
    board = board_of(profile, settings)
    model = known(model)
    if codec not in CODECS:
        raise BadInput("--codec", None, f"{codec!r} is none of {', '.join(CODECS)}")
    refuse_rounds(gib, rounds)
    sizes = Sizes.of(board, gib * 2**30)
    refuse_small(directory, sizes.drive_bytes + GATE_BYTES, sizes.memory_bytes)
    pairs = tuple((key, value) for key, _, value in (text.partition("=") for text in settings))
    modes = [mode for mode in MODES if codec in (mode, "both")]
    with own_folder(directory) as folder:
        checked = check(
            folder, Case(model, profile, pairs, seed, knobs), board, sizes, modes, rounds
        )
    if as_json:
        sys.stdout.write(json.dumps(checked.figures()) + "\n")
    else:
        print_checked(Console(), directory, checked)
    return 1 if checked.gate else 0


def check(
    folder: Path, case: Case, board: Profile, sizes: Sizes, modes: Sequence[Mode], rounds: int
) -> Checked:
    """Gate and rates in a folder of their own; raises BadInput and OSError."""
    with progress("checking", STEPS, unit="steps") as advance:
        why = gate(folder / "gate", case, advance)
    if why:
        return Checked(why, "", 0, {})  # How fast wrong bytes are is nobody's question.
    made: dict[Mode, list[Round]] = {mode: [] for mode in modes}
    total = (WARM_UP + rounds) * len(modes)
    with progress("moving bytes", total, unit="rounds") as advance:
        bench = Bench(folder / "rates", board, sizes, case.seed)
        try:
            for number in range(WARM_UP + rounds):
                for mode, of in made.items():
                    # Ours, raw, raw, ours: what drifts falls on both. The first tells the sizes.
                    nbytes = of[0].nbytes if of else 0
                    of.append(bench.round(mode, ours_first=number % 2 == 0, nbytes=nbytes))
                    advance(1)
        except Changed as changed:
            why = str(changed)
        finally:
            bench.close()
    said, whole = bench.said, bench.conversation_bytes
    found = {
        mode: Found(why, said, of[0].nbytes, tuple(of[WARM_UP:]), tuple(of[:WARM_UP]))
        for mode, of in made.items()
        if of
    }
    return Checked(why, said, whole, found)


def print_checked(console: Console, directory: Path, checked: Checked) -> None:
    """The gate; under each codec every round, the medians, and where the time went."""
    print_gate(console, checked.gate, checked.said)
    figures = checked.figures()["codecs"]
    for mode, found in checked.codecs.items():
        if not found.rounds:
            continue
        whole = f" as {mode}, of {checked.conversation_bytes / 1e9:.2f} GB of rows and copies"
        print_rounds(console, directory, found, SPILL_PARTS, whole)
        told = (
            f"{side} {figures[mode][f'conversation_{name}_bytes_s'] / 1e9:.2f} GB/s, "
            f"{figures[mode][f'conversation_{name}_ratio']:.2f} of raw"
            for side, name in (("save", "write"), ("restore", "read"))
        )
        say(console, f"of the conversation's own bytes: {'; '.join(told)}")
