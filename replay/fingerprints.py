"""`moorage fingerprint`: what computes rows here, and what two fingerprints have apart."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cache.adopt import INPUTS, latest
from cache.fingerprint import FORMULA, apart, digest
from cache.format import Bad, read_record
from cache.host import OsFiles
from engine.bad import BadInput
from engine.identity import older_fingerprints, tree_inputs
from engine.knobs import PLAIN, Knobs
from replay.commands import board_of
from replay.models import build

_LONG_HEX = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


@dataclass(frozen=True, slots=True)
class Made:
    """A fingerprint and what it was made of."""

    place: str
    fingerprint: str
    formula: str
    inputs: Mapping[str, str]

    def figures(self) -> dict[str, str]:
        """What tells it from another, beside the inputs."""
        return {"place": self.place, "formula": self.formula, "fingerprint": self.fingerprint}


def run_fingerprint(
    places: Sequence[str],
    *,
    model: str,
    profile: str,
    settings: Sequence[str],
    seed: int,
    adopt_from: Sequence[str],
    as_json: bool,
    knobs: Knobs = PLAIN,
) -> None:
    """`moorage fingerprint`: this tree's, or what is apart between two; raises BadInput.

    One place is held against this tree.
    """
    if len(places) > 2:
        raise BadInput("fingerprint", None, f"{len(places)} places; compare two at a time")
    found = [made_in(place) for place in places]
    console = Console(soft_wrap=True, highlight=False)
    if len(found) == 2:
        _compare(console, found[0], found[1], as_json)
        return
    here, older = made_here(model, profile, settings, seed, adopt_from, knobs)
    if found:
        _compare(console, found[0], here, as_json)
    elif as_json:
        data = here.figures() | {"inputs": dict(here.inputs), "older": older}
        sys.stdout.write(json.dumps(data) + "\n")
    else:
        _print(console, here, older)


def made_here(
    model: str,
    profile: str,
    settings: Sequence[str],
    seed: int,
    adopt_from: Sequence[str] = (),
    knobs: Knobs = PLAIN,
) -> tuple[Made, dict[str, list[str]]]:
    """This tree's fingerprint for a model on a board, and what older formulas give."""
    board = board_of(profile, settings)
    # The window is no part of it, and a small one is made at once.
    manifest = build(model, replace(board, window=board.grid), seed, knobs=knobs).manifest()
    try:
        inputs = tree_inputs(manifest)
        older = older_fingerprints(manifest, adopt_from)
    except OSError as error:
        raise BadInput(str(error.filename), None, f"cannot be read: {error.strerror}") from None
    return Made("this tree", digest(inputs), FORMULA, inputs), older


def made_in(place: str) -> Made:
    """What a tier's directory was last opened with, or what a record says; raises BadInput."""
    path = Path(place)
    try:
        if path.is_dir():
            files = OsFiles(path, readonly=True)
            files.list()
            found = latest(files)
        else:
            found = read_record(OsFiles(path.parent, readonly=True), path.name, INPUTS)
    except OSError as error:
        raise BadInput(place, None, f"cannot be read: {error.strerror}") from None
    if isinstance(found, Bad):
        raise BadInput(place, None, found.why)
    return _checked(place, found)


def _checked(place: str, record: Mapping[str, Any]) -> Made:
    names = ("fingerprint", "formula", "inputs")
    fingerprint, formula, inputs = (record.get(name) for name in names)
    texts = isinstance(inputs, dict) and all(isinstance(value, str) for value in inputs.values())
    if not isinstance(inputs, dict) or not texts or digest(inputs) != fingerprint:
        raise BadInput(place, None, "is no record of what a fingerprint was made of")
    return Made(place, str(fingerprint), str(formula), inputs)


def _compare(console: Console, a: Made, b: Made, as_json: bool) -> None:
    differ = apart(a.inputs, b.inputs)
    if as_json:
        rows = [{"name": name, "a": left, "b": right} for name, left, right in differ]
        data = {"a": a.figures(), "b": b.figures(), "apart": rows}
        sys.stdout.write(json.dumps(data) + "\n")
        return
    for made in (a, b):
        console.print(Text(f"{made.fingerprint[:12]}  {made.place}"))
    if not differ:
        console.print("the same: files of the one are read by the other")
        return
    table = Table("input", a.fingerprint[:12], b.fingerprint[:12])
    for name, left, right in differ:
        table.add_row(Text(name), _shown(left), _shown(right))
    console.print(table)


def _print(console: Console, made: Made, older: Mapping[str, Sequence[str]]) -> None:
    console.print(f"fingerprint {made.fingerprint} (formula {made.formula})")
    for formula, fingerprints in older.items():
        for fingerprint in fingerprints:
            console.print(f"formula {formula} gave {fingerprint}")
    table = Table("input", "value")
    for name, value in sorted(made.inputs.items()):
        table.add_row(Text(name), _shown(value))
    console.print(table)


def _shown(value: str | None) -> Text:
    """A value with its digests cut to what tells them apart."""
    return Text("-" if value is None else _LONG_HEX.sub(r"\1", value))
