"""The report's figures: one function a figure, from the ledger alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from replay.colours import COLOURS, MORE
from replay.columns import CAUSES


def reuse_over_time(ledger: pd.DataFrame) -> Figure:
    """Prompt tokens by what became of them, in equal slices of the night."""
    figure, axes = _figure()
    hours = ledger["arrival_s"] / 3600
    if ledger.empty or hours.max() == hours.min():
        return figure
    slices = pd.cut(hours, 60)
    sums = ledger.groupby(slices, observed=False)[["cached", "new", "reread"]].sum()
    middles = [interval.mid for interval in sums.index]
    axes.stackplot(
        middles,
        [sums["cached"], sums["new"], sums["reread"]],
        labels=["reused", "new", "re-read"],
        colors=[COLOURS["cached"], COLOURS["new"], COLOURS["reread"]],
    )
    _label(axes, "hours", "prompt tokens a slice")
    axes.legend(loc="upper left", frameon=False)
    return figure


def reread_by_cause(ledger: pd.DataFrame) -> Figure:
    """Tokens computed again, by why their first rows could not serve."""
    figure, axes = _figure(height=2.6)
    totals = [int(ledger[f"reread_{cause}"].sum()) for cause in CAUSES]
    names = [str(cause) for cause in CAUSES]
    axes.barh(names[::-1], totals[::-1], color=[COLOURS[name] for name in names[::-1]])
    _label(axes, "tokens re-read", "")
    axes.xaxis.set_major_formatter(_tokens)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: names[::-1][int(at)]))
    axes.set_yticks(range(len(names)))
    return figure


def first_token(ledger: pd.DataFrame) -> Figure:
    """Share of requests that had their first token within a time, by where they resumed."""
    figure, axes = _figure()
    for source, group in ledger.groupby("source"):
        seconds = group["ttft_s"].dropna().sort_values()
        if len(seconds):
            part = [(at + 1) / len(seconds) for at in range(len(seconds))]
            label = f"{source} ({len(seconds):,})"
            axes.step(seconds, part, where="post", label=label, color=COLOURS.get(str(source)))
    axes.set_xscale("log")
    _label(axes, "seconds to the first token, queue not counted", "share of requests")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda part, _: f"{100 * part:.0f} %"))
    axes.legend(loc="lower right", frameon=False)
    return figure


def source_shares(ledger: pd.DataFrame) -> Figure:
    """Requests by where they resumed, for each kind of request."""
    figure, axes = _figure(height=3.2)
    counts = pd.crosstab(ledger["kind"], ledger["source"])
    left = pd.Series(0, index=counts.index)
    for source in counts.columns:
        colour = COLOURS.get(str(source))
        axes.barh(counts.index, counts[source], left=left, label=str(source), color=colour)
        left = left + counts[source]
    axes.set_xlabel("requests")
    axes.legend(loc="lower right", frameon=False)
    return figure


def context_growth(ledger: pd.DataFrame) -> Figure:
    """Prompt tokens of each conversation over the night; the longest ones in colour."""
    figure, axes = _figure()
    keys = ledger["trace"] + "/" + ledger["session"].fillna("none")
    longest = ledger.groupby(keys)["prompt"].max().nlargest(len(MORE)).index
    for key, group in ledger.groupby(keys):
        rank = longest.get_loc(key) if key in longest else None
        colour, width = ("#c9d1d5", 0.8) if rank is None else (MORE[rank], 1.4)
        hours = group["arrival_s"] / 3600
        axes.plot(hours, group["prompt"], ".-", markersize=2.5, linewidth=width, color=colour)
    _label(axes, "hours", "tokens of the prompt")
    return figure


HELD_COLOURS = {
    "park": "#2a7f9e",
    "anchors": "#7fb7be",
    "end": "#3d5a6c",
    "stash": "#edae49",
    "store": "#66a182",
    "encoded": "#c98bb9",
    "disk": "#7a7a4b",
    "spill": "#b08968",
    "reserve": "#dfe4e6",
}
"""What lies on the board beside weights and buffers, the dearest to lose at the bottom."""
GIB = 2**30


def memory_over_time(ledger: pd.DataFrame, limits: Mapping[str, int], most: int = 800) -> Figure:
    """Bytes by cache after every request and the highest while it was served, under the limits.

    Of more than `most` requests those are drawn that held most in their slice of time.
    """
    figure, axes = _figure(height=4.4)
    ledger = _fullest(ledger, most)
    hours = (ledger["arrival_s"] + ledger["wait_s"]) / 3600
    base = limits["base_bytes"] / GIB
    bottom = pd.Series(base, index=ledger.index)
    for name, colour in HELD_COLOURS.items():
        column = ledger["reserve" if name == "reserve" else f"held_{name}"] / GIB
        if column.any():
            top = bottom + column
            label = "freed, kept by the allocator" if name == "reserve" else name
            axes.fill_between(hours, bottom, top, step="post", color=colour, label=label, lw=0)
            bottom = top
    peaks = ledger[ledger["peak"] > 0]
    axes.plot(
        *(hours[peaks.index], peaks["peak"] / GIB),
        *(".",),
        color="#1d2b33",
        markersize=2.2,
        label="highest during a request",
    )
    highest = max(limits["peak_bytes"], ledger["peak"].max()) / GIB
    for name, colour in (("ceiling", "#8d6a9f"), ("peak", "#d1495b"), ("board", "#1d2b33")):
        at = limits[f"{name}_bytes"] / GIB
        if at <= 1.05 * highest:
            axes.axhline(at, color=colour, linestyle="--", linewidth=1.1)
            text = f"{name} {at:.1f} GiB"
            where = {"xy": (1.0, at), "xycoords": ("axes fraction", "data")}
            axes.annotate(text, **where, ha="right", va="bottom", color=colour, fontsize=9)
    axes.set_ylim(base - 0.02 * (highest - base), highest + 0.06 * (highest - base))
    axes.set_xlabel("hours")
    axes.set_ylabel(f"GiB, from the {base:.1f} of weights and buffers up")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False, ncols=4)
    return figure


def _fullest(ledger: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most so many of the requests, in time, each the fullest of its slice."""
    ordered = ledger.assign(begun_s=ledger["arrival_s"] + ledger["wait_s"])
    ordered = ordered.sort_values("begun_s", kind="stable").reset_index(drop=True)
    if len(ordered) <= most:
        return ordered
    slices = pd.cut(ordered["begun_s"], most, labels=False)
    return ordered.loc[ordered.groupby(slices)["peak"].idxmax()]


def drive_over_time(ledger: pd.DataFrame, budget_bytes: int, tier: str = "disk") -> Figure:
    """Gigabytes that a tier has on the drive, and what was written and read by then."""
    figure, axes = _figure()
    ordered = ledger.assign(begun_s=ledger["arrival_s"] + ledger["wait_s"])
    ordered = ordered.sort_values("begun_s", kind="stable")
    hours = ordered["begun_s"] / 3600
    for name, label, colour in (
        ("held", "on the drive", "#66a182"),
        ("written", "written so far", "#3d5a6c"),
        ("read", "read so far", "#2a7f9e"),
    ):
        column = ordered[f"{tier}_{name}"]
        gb = (column if name == "held" else column.cumsum()) / 1e9
        axes.step(hours, gb, where="post", label=label, color=colour)
    if 1.5 * axes.get_ylim()[1] >= budget_bytes / 1e9:
        axes.axhline(budget_bytes / 1e9, color="#d1495b", linestyle="--", linewidth=1.1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("hours")
    axes.set_ylabel("GB")
    axes.legend(loc="upper left", frameon=False)
    return figure


FIGURES: dict[str, tuple[str, Callable[[pd.DataFrame], Figure]]] = {
    "reuse": ("What became of the prompts' tokens over the night", reuse_over_time),
    "causes": ("Re-read by cause", reread_by_cause),
    "ttft": ("Time to the first token, cold and resumed", first_token),
    "sources": ("Where requests resumed, by kind", source_shares),
    "growth": ("How the conversations grow", context_growth),
}


def to_svg(figure: Figure) -> str:
    """The figure as an SVG element; the same figure gives the same text."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "moorage", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _figure(height: float = 3.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9.0, height))
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.yaxis.set_major_formatter(_tokens)


_tokens = FuncFormatter(
    lambda count, _: f"{count / 1e6:g} M" if abs(count) >= 1e6 else f"{count / 1e3:g} k"
)
