"""What the notebooks share: results read and checked, and pictures in the house colours."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import Image, display
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from replay.colours import COLOURS, MORE

BLUE, YELLOW, RED, GREEN, VIOLET, INK, PINK, OLIVE = MORE
GREY = COLOURS["new"]
SOURCES = {
    "end": COLOURS["end"],
    "park.end": INK,
    "checkpoint": PINK,
    "park.checkpoint": VIOLET,
    "grid": COLOURS["grid"],
    "park.grid": "#b3d4d8",
    "pin.grid": "#b0a27a",
    "store.grid": OLIVE,
    "spill.end": YELLOW,
    "spill.checkpoint": "#d9a441",
    "spill.grid": "#f3cf8e",
    "disk.grid": COLOURS["disk.grid"],
    "cold": COLOURS["cold"],
}
"""Where a request resumed, the best first; others get what is left of the house colours."""
PICTURE_BYTES_MAX = 150_000


class Missing(Exception):
    """A result is not there, or has not the columns that are read; one line."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve as an experiment wrote it: a line's name to its points, ascending in x."""

    title: str
    x: str
    y: str
    lines: Mapping[str, pd.DataFrame]


class Results:
    """A folder of results: a folder a replay or an experiment, as the commands wrote them."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def has(self, name: str) -> bool:
        """Whether anything of this name was run."""
        return (self._folder / name).is_dir()

    def ledger(self, name: str, columns: Iterable[str]) -> pd.DataFrame:
        """A replay's requests, one a row, with at least these columns; raises Missing."""
        return _with(pd.read_parquet(self._path(name, "ledger.parquet")), columns, name)

    def summary(self, name: str) -> dict[str, Any]:
        """What `moorage replay --json` printed; raises Missing."""
        data: dict[str, Any] = json.loads(self._path(name, "summary.json").read_text())
        return data

    def figures(self, name: str) -> pd.DataFrame:
        """An experiment's figures by key: seed, ours, unit, note; raises Missing."""
        return self.table(name, "figures", ("key", "seed", "ours", "unit", "note")).set_index("key")

    def table(self, name: str, table: str, columns: Iterable[str]) -> pd.DataFrame:
        """One CSV of an experiment, with at least these columns; raises Missing."""
        frame = pd.read_csv(self._path(name, f"{table}.csv"))
        return _with(frame, columns, f"{name}/{table}.csv")

    def curves(self, name: str) -> list[Curve]:
        """An experiment's curves; raises Missing."""
        curves = []
        for row in self.table(name, "curves", ("file", "title", "x", "y")).itertuples():
            points = self.table(name, str(row.file).removesuffix(".csv"), ("line", "x", "y"))
            lines = {str(line): part for line, part in points.groupby("line", sort=False)}
            curves.append(Curve(str(row.title), str(row.x), str(row.y), lines))
        return curves

    def _path(self, name: str, file: str) -> Path:
        path = self._folder / name / file
        if not path.exists():
            raise Missing(f"no {name}/{file} among the results: run `make notebooks`")
        return path


def _with(frame: pd.DataFrame, columns: Iterable[str], what: str) -> pd.DataFrame:
    absent = [column for column in columns if column not in frame.columns]
    if absent:
        raise Missing(f"{what} has no column {', '.join(absent)}")
    return frame


def value(figures: pd.DataFrame, key: str) -> float:
    """One figure of an experiment; raises Missing."""
    if key not in figures.index:
        raise Missing(f"no figure {key} among {len(figures)}")
    return float(figures.loc[key, "ours"])


def axes(height: float = 3.4, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure of the house's width, and its axes side by side."""
    figure = Figure(figsize=(9.0, height), layout="constrained")
    made = list(figure.subplots(1, columns, squeeze=False)[0])
    for one in made:
        one.spines[["top", "right"]].set_visible(False)
    return figure, made


def label(one: Axes, x: str, y: str, title: str = "") -> None:
    """Names of the axes with their units."""
    one.set_xlabel(x)
    one.set_ylabel(y)
    if title:
        one.set_title(title, loc="left", fontsize=10)


def legend(one: Axes, **where: Any) -> None:
    """A legend without a frame, if anything has a name."""
    if one.get_legend_handles_labels()[0]:
        one.legend(frameon=False, fontsize=8, **where)


def tokens(count: float, _: object = None) -> str:
    """A count of tokens as a person reads it."""
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if abs(count) >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"


def percent(share: float, _: object = None) -> str:
    """A share as a percentage."""
    return f"{100 * share:.0f} %"


def log(*axes: Axis) -> None:
    """Logarithmic axes of tokens, with few marks."""
    for axis in axes:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_major_formatter(TOKENS)
        axis.set_minor_formatter(NullFormatter())


TOKENS, PERCENT = FuncFormatter(tokens), FuncFormatter(percent)


def colours(names: Iterable[str]) -> list[str]:
    """A colour a source."""
    return [SOURCES.get(name, MORE[at % len(MORE)]) for at, name in enumerate(names)]


def by_source(names: Iterable[str]) -> list[str]:
    """Sources in the house's order; `cold` last."""
    known = list(SOURCES)
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else 99, name))


def stacked(one: Axes, frame: pd.DataFrame, of: Mapping[str, str]) -> None:
    """Horizontal bars, a row of the frame each, its columns side by side in their colours."""
    left = pd.Series(0.0, index=frame.index)
    for name, colour in of.items():
        one.barh(
            [str(row) for row in frame.index], frame[name], left=left, color=colour, label=name
        )
        left = left + frame[name]
    one.invert_yaxis()


def curve(drawn: Curve, height: float = 3.4) -> Figure:
    """A curve's lines with their points, as `moorage experiment --out` draws them."""
    figure, (one,) = axes(height)
    for at, (name, points) in enumerate(drawn.lines.items()):
        colour = MORE[at % len(MORE)]
        one.plot(points["x"], points["y"], "o-", color=colour, label=name, markersize=3)
    label(one, drawn.x, drawn.y, drawn.title)
    one.set_ylim(bottom=0)
    legend(one)
    return figure


def show(figure: Figure, says: str) -> None:
    """The figure as a small PNG; `says` is what a reader who can't see it is told."""
    buffer = io.BytesIO()
    # No time and no version inside: the same figure is the same file.
    figure.savefig(buffer, format="png", dpi=90, metadata={"Software": None})
    data = buffer.getvalue()
    assert len(data) <= PICTURE_BYTES_MAX, f"a picture of {len(data):,} bytes"
    display(Image(data=data, format="png", alt=says))


def listed(rows: Sequence[Mapping[str, object]], index: str) -> pd.DataFrame:
    """A small table to end a cell with."""
    return pd.DataFrame(rows).set_index(index)
