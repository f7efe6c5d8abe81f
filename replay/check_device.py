"""`moorage check device`: a device's gates, its kernels beside torch's code, and its rates"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from cache.host import SystemClock, sigterm_unwinds
from engine.device import device_of, kernels_for
from engine.machine import libraries, traits
from replay.device_compare import BITS, Compared, Stopwatch, compared, one_line
from replay.device_gates import gates
from replay.device_kernels import LARGE, SMALL, cases
from replay.device_rates import Rate, rates
from replay.found import say
from replay.progress import Advance, progress

STEPS = 34
"""About how many steps a check has."""
SHARES = {"gates": 0.6, "kernels": 0.75, "rates": 0.9}
"""Of the time, after which no further step of a part begins. A step takes seconds, half a minute
where all kernels are compiled for the first time."""


@dataclass(slots=True)
class Found:
    """What a check found so far."""

    device: str
    traits: dict[str, str]
    gates: dict[str, str] = field(default_factory=dict)
    """By name why one failed; empty when it held."""
    kernels: list[Compared] = field(default_factory=list)
    rates: list[Rate] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """For which there was no time."""
    seconds: float = 0.0

    @property
    def why(self) -> str:
        """What failed first; empty when nothing did."""
        failed = [f"{name}: {why}" for name, why in self.gates.items() if why]
        far = (one for one in self.kernels if not one.held)
        failed += [
            f"{one.kernel}, {one.case}: {one.why or f'{one.difference:.3g} apart'}" for one in far
        ]
        return next(iter(failed), "")

    def figures(self) -> dict[str, Any]:
        """In plain values."""
        kernels = [asdict(one) | {"held": one.held} for one in self.kernels]
        for one in kernels:
            # JSON knows neither infinity nor what is no number.
            one["difference"] = one["difference"] if one["difference"] < float("inf") else None
        return {
            "device": self.device,
            "traits": self.traits,
            "gate": self.why or "ok",
            "gates": {name: why or "ok" for name, why in self.gates.items()},
            "kernels": kernels,
            "rates": [asdict(one) for one in self.rates],
            "skipped": self.skipped,
            "seconds": self.seconds,
        }


def run_check_device(device: str, as_json: bool, budget_s: float = 480, seed: int = 0) -> int:
    """`moorage check device`; returns the exit status, 1 when a gate or a kernel failed.

    Raises BadInput for a device that is not there. Begins nothing that could end after `budget_s`.
    """
    place = device_of(device)
    with (
        sigterm_unwinds(),
        TemporaryDirectory(prefix="moorage-check-") as folder,
        progress(f"checking {place}", STEPS, unit="steps") as advance,
    ):
        found = check(place, Path(folder), seed, budget_s, advance)
    if as_json:
        sys.stdout.write(json.dumps(found.figures()) + "\n")
    else:
        print_found(Console(), found)
    return 1 if found.why else 0


def check(
    device: torch.device, folder: Path, seed: int, budget_s: float, went_on: Advance
) -> Found:
    """Gates, kernels and rates, in this order, for as long as there is time."""
    clock = SystemClock()
    watch = Stopwatch(device, clock)
    begun_s = clock.mono_s()
    found = Found(str(device), libraries() | traits(device))

    def time_for(part: str, what: str) -> bool:
        """Whether there is time for one more step, which is named otherwise."""
        if clock.mono_s() - begun_s < SHARES[part] * budget_s:
            return True
        found.skipped.append(what)
        return False

    for name, gate in gates(device, folder, seed):
        if time_for("gates", name):
            found.gates[name] = _why(gate)
            went_on(1)
    kernels = kernels_for(device)
    if kernels is not None:
        for case in cases(kernels, device, LARGE if device.type == "cuda" else SMALL, seed):
            if time_for("kernels", f"{case.kernel}, {case.case}"):
                found.kernels.append(compared(case, watch))
                went_on(1)

    def rated() -> str:
        longer = "rates", "rates after a longer prompt"
        for rate in rates(device, seed, watch, lambda: time_for(*longer)):
            found.rates.append(rate)
            went_on(1)
        return ""

    if why := _why(rated):
        found.gates["rates"] = why
    found.seconds = clock.mono_s() - begun_s
    return found


def _why(gate: Callable[[], str]) -> str:
    """Why a gate failed; what a device refuses, or can't compile, is a failure like any other."""
    try:
        return gate()
    except Exception as error:
        return one_line(error)


def print_found(console: Console, found: Found) -> None:
    """A line of what was looked at, and a table a part."""
    say(console, f"{found.device}  {', '.join(f'{k} {v}' for k, v in found.traits.items())}")
    held = Table("gate", "held")
    for name, why in found.gates.items():
        held.add_row(name, why or "ok")
    console.print(held)
    if found.kernels:
        console.print(_kernels(found.kernels))
    else:
        say(console, "kernels  none are written for this device: torch's code computes")
    table = Table("rate", "after rows", "tokens/s", "of eager")
    for one in found.rates:
        ratio = "" if one.graph_ratio is None else f"{one.graph_ratio:.2f}"
        table.add_row(one.what, f"{one.rows:,}", f"{one.tokens_s:,.0f}", ratio)
    console.print(table)
    if found.skipped:
        say(console, f"no time was left for: {'; '.join(found.skipped)}")
    say(console, f"{found.why or 'all that was looked at held'}; {found.seconds:.0f} s")


def _kernels(kernels: list[Compared]) -> Table:
    table = Table("kernel", "input", "apart", "at most", "held", "torch's time over its")
    for one in kernels:
        bound = "no bit" if one.bound == BITS else f"{one.bound:.1g}"
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
        held = "yes" if one.held else one.why or "NO"
        table.add_row(one.kernel, one.case, f"{one.difference:.2g}", bound, held, ratio)
    return table
