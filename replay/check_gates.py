"""`moorage check gates`: every tier's gate on one engine, in memory and on a drive"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.knobs import Knobs
from replay import disk_gate, memory_gate, spill_gate
from replay.commands import board_of
from replay.gate_case import Case
from replay.memory_gate import Resumed, resumes
from replay.models import known
from replay.place import own_folder
from replay.progress import progress

TIERS = ("memory", "disk", "spill")
Gated = tuple[str, Callable[[Path, Case, Callable[[int], None]], str], int]
_ON_DRIVE: tuple[Gated, ...] = (
    ("disk", disk_gate.gate, disk_gate.STEPS),
    ("spill", spill_gate.gate, spill_gate.STEPS),
)


def run_check_gates(
    directory: Path | None,
    *,
    model: str,
    profile: str,
    settings: Sequence[str],
    seed: int,
    knobs: Knobs,
    as_json: bool,
) -> int:
    """`moorage check gates`; returns the exit status, 1 when a gate failed. Raises BadInput.

    Files lie in a folder of their own under `directory`, or in the system's for temporary ones.
    """
    board_of(profile, settings)
    pairs = tuple((key, value) for key, _, value in (text.partition("=") for text in settings))
    case = Case(known(model), profile, pairs, seed, knobs)
    steps = memory_gate.STEPS + sum(count for _, _, count in _ON_DRIVE)
    seen: list[Resumed] = []
    drive: dict[str, str] = {}
    with _folder(directory) as folder, progress("checking", steps, unit="steps") as advance:
        for one in resumes(case):
            seen.append(one)
            advance(1)
        for name, gate, _ in _ON_DRIVE:
            drive[name] = gate(folder / name, case, advance)
    failed = any(one.why for one in seen) or any(drive.values())
    if as_json:
        sys.stdout.write(json.dumps(_figures(seen, drive)) + "\n")
    else:
        _print(Console(highlight=False), seen, drive)
    return int(failed)


@contextmanager
def _folder(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        with own_folder(directory) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix="moorage-") as name:
        yield Path(name)


def _figures(seen: Sequence[Resumed], drive: dict[str, str]) -> dict[str, object]:
    first = next((f"{one.what}: {one.why}" for one in seen if one.why), "")
    gates = {"memory": first, **drive}
    return {
        "gate": next((why for why in gates.values() if why), "ok"),
        "tiers": {name: why or "ok" for name, why in gates.items()},
        "resumes": [
            {"what": one.what, "source": one.source, "cached": one.cached, "gate": one.gate}
            for one in seen
        ],
    }


def _print(console: Console, seen: Sequence[Resumed], drive: dict[str, str]) -> None:
    table = Table("resume", "source", "rows", "gate", "held")
    for one in seen:
        table.add_row(one.what, one.source, f"{one.cached:,}", one.gate, one.why or "ok")
    console.print(table)
    for name, why in drive.items():
        console.print(f"{name:<6} {why or 'ok'}", markup=False, soft_wrap=True)
