"""What `moorage experiment` does: the list, a table or JSON, and a folder with plots."""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Plot
from rich.console import Console, JustifyMethod
from rich.table import Table

from engine.bad import BadInput
from experiments.figure import Curve, Figure
from experiments.registry import MODULES, Experiment, find
from experiments.results import Rows, curve_name, data_of, write_data
from experiments.traffic import GateFailed
from replay.colours import MORE
from replay.commands import board_of
from replay.page import STYLE
from replay.plots import to_svg
from sim.profile import Profile


def run_experiment(
    name: str,
    *,
    traces: Sequence[str],
    profile: str,
    settings: Sequence[str],
    out: Path | None,
    skip_bad: bool,
    as_json: bool,
    suffix_dir: Path | None = None,
) -> int:
    """`moorage experiment`; returns the exit status, 1 when a gate failed."""
    console = Console(stderr=as_json)
    if name == "list":
        _print_list(as_json)
        return 0
    experiment, board = find(name), board_of(profile, settings)
    if out is not None:
        _made(out)
    try:
        figures = experiment.run(board, traces, skip_bad, suffix_dir)
        data = {"name": name, "figures": as_data(figures)}
        if out is not None:
            asked = (traces, skip_bad, suffix_dir)
            tables = experiment.tables(board, *asked) if experiment.tables is not None else {}
            write_folder(out, experiment, board, figures, data, tables)
    except GateFailed as failure:
        Console(stderr=True, soft_wrap=True).print(f"moorage: gate failed: {failure}", markup=False)
        return 1
    if as_json:
        sys.stdout.write(json.dumps(data) + "\n")
    else:
        console.print(_table(experiment, board, figures))
        if out is not None:
            console.print(f"figures: {out / 'figures.json'}   page: {out / 'index.html'}")
    return 0


def _made(out: Path) -> None:
    """A folder to write in, before anything is computed for it; raises BadInput."""
    if out.exists() and not out.is_dir():
        raise BadInput(str(out), None, "is in the way of the folder to write")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(str(out), None, f"cannot write there: {error.strerror}") from None


def as_data(figures: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """The figures as `--json` prints them."""
    return {f.key: {"seed": f.seed, "ours": f.ours, "unit": f.unit} for f in figures}


def number(value: float | None) -> str:
    """A figure as a person reads it."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _print_list(as_json: bool) -> None:
    known = [find(name) for name in MODULES]
    if as_json:
        sys.stdout.write(json.dumps({each.name: each.about for each in known}) + "\n")
        return
    table = Table(header_style="bold")
    table.add_column("experiment")
    table.add_column("what it asks")
    for each in known:
        table.add_row(each.name, each.about)
    Console().print(table)


def _table(experiment: Experiment, board: Profile, figures: Sequence[Figure]) -> Table:
    title = f"{experiment.name}: {experiment.about}, as {board.name}"
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in ("figure", "seed", "ours", "unit", "note"):
        justify: JustifyMethod = "right" if column in ("seed", "ours") else "left"
        table.add_column(column, justify=justify, no_wrap=column != "note")
    for figure in figures:
        seed, ours = number(figure.seed), number(figure.ours)
        table.add_row(figure.key, seed, ours, figure.unit, figure.note)
    return table


def write_folder(
    out: Path,
    experiment: Experiment,
    board: Profile,
    figures: Sequence[Figure],
    data: dict[str, Any],
    tables: Mapping[str, Rows],
) -> None:
    """figures.json, its CSV files, index.html, and a PNG a curve; raises BadInput."""
    curves = experiment.curves(board) if experiment.curves is not None else []
    plots = [plot(curve) for curve in curves]
    files = data_of(experiment.name, figures, tables, curves)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "figures.json").write_text(json.dumps(data, indent=1) + "\n")
        write_data(out, files)
        (out / "index.html").write_text(page(experiment, board, figures, plots, tuple(files)))
        for at, drawn in enumerate(plots):
            name = curve_name(experiment.name, at, len(plots))
            drawn.savefig(out / f"{name}.png", dpi=120, bbox_inches="tight")
    except OSError as error:
        raise BadInput(str(out), None, f"cannot write there: {error.strerror}") from None


def plot(curve: Curve) -> Plot:
    """The curve's lines with their points."""
    drawn = Plot(figsize=(9.0, 3.8))
    axes = drawn.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # Lines that lie on one another stay visible: the later ones are thinner.
    for at, (name, points) in enumerate(curve.lines.items()):
        x, y = zip(*points, strict=True)
        width = 3.6 - 2.4 * at / max(1, len(curve.lines) - 1)
        axes.plot(x, y, "o-", color=MORE[at], label=name, linewidth=width, markersize=3.5)
    axes.set_xlabel(curve.x)
    axes.set_ylabel(curve.y)
    axes.set_title(curve.title, loc="left")
    axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.legend(frameon=False)
    return drawn


def page(
    experiment: Experiment,
    board: Profile,
    figures: Sequence[Figure],
    plots: Sequence[Plot],
    files: Sequence[str] = (),
) -> str:
    """Table and plots as one HTML page that needs nothing from elsewhere; it names its files."""
    links = ", ".join(f'<a href="{html.escape(f)}">{html.escape(f)}</a>' for f in files)
    rows = "".join(
        f"<tr><td>{html.escape(f.key)}</td><td class=number>{number(f.seed)}</td>"
        f"<td class=number>{number(f.ours)}</td><td>{html.escape(f.unit)}</td>"
        f"<td>{html.escape(f.note)}</td></tr>"
        for f in figures
    )
    heads = "<tr><th>figure</th><th class=number>seed</th><th class=number>ours</th>"
    title = html.escape(experiment.name)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>\n"
        f'<h1>{title}</h1><p class="about">{html.escape(experiment.about)}; '
        f"{html.escape(board.about)}</p>\n{''.join(to_svg(drawn) for drawn in plots)}\n"
        f"<table>{heads}<th>unit</th><th></th></tr>{rows}</table>\n"
        f"{f'<p>{links}</p>' if links else ''}\n</body></html>\n"
    )
