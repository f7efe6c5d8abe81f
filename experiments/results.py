"""What an experiment writes for others to read: its figures, tables and curves as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.figure import Curve, Figure

Row = Mapping[str, float | str]
Rows = Sequence[Row]
"""Rows with the same columns in the same order; a column's name ends in its unit."""

FIGURES = "figures"
CURVES = "curves"
"""Files that every experiment has, and that no table may be named after."""


def figure_rows(figures: Sequence[Figure]) -> list[Row]:
    """key, seed, ours, unit, note; `seed` is empty where nothing was measured."""
    return [
        {
            "key": figure.key,
            "seed": "" if figure.seed is None else figure.seed,
            "ours": figure.ours,
            "unit": figure.unit,
            "note": figure.note,
        }
        for figure in figures
    ]


def curve_rows(curve: Curve) -> list[Row]:
    """line, x, y: a row a point."""
    return [
        {"line": line, "x": x, "y": y} for line, points in curve.lines.items() for x, y in points
    ]


def curve_name(experiment: str, at: int, curves: int) -> str:
    """A curve's files are named after the experiment, and numbered where it has several."""
    return f"{experiment}-{at + 1}" if curves > 1 else experiment


def csv_text(columns: Sequence[str], rows: Rows) -> str:
    """A head and a line a row. Numbers are written so that they are read back the same."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        assert tuple(row) == tuple(columns), f"columns {tuple(row)}, not {tuple(columns)}"
        writer.writerow(row.values())
    return buffer.getvalue()


def data_of(
    name: str, figures: Sequence[Figure], tables: Mapping[str, Rows], curves: Sequence[Curve]
) -> dict[str, str]:
    """File name to CSV text: figures.csv, a file a table and a curve, and curves.csv.

    `curves.csv` says which file holds which curve (file, title, x, y), so that a reader finds a
    curve and the names of its axes without the experiment's code.
    """
    index: list[Row] = []
    files = {FIGURES: csv_text(("key", "seed", "ours", "unit", "note"), figure_rows(figures))}
    for at, curve in enumerate(curves):
        file = curve_name(name, at, len(curves))
        files[file] = csv_text(("line", "x", "y"), curve_rows(curve))
        index.append({"file": f"{file}.csv", "title": curve.title, "x": curve.x, "y": curve.y})
    files[CURVES] = csv_text(("file", "title", "x", "y"), index)
    for table, rows in tables.items():
        assert re.fullmatch(r"[a-z0-9_-]+", table), f"table {table!r} makes no file name"
        assert table not in files, f"table {table!r} has the name of another file"
        assert rows, f"table {table!r} is empty"
        files[table] = csv_text(tuple(rows[0]), rows)
    return {f"{file}.csv": text for file, text in files.items()}


def write_data(out: Path, data: Mapping[str, str]) -> None:
    """Write them; raises OSError."""
    for file, text in data.items():
        (out / file).write_text(text)
