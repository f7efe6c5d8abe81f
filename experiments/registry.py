"""The experiments by name; a module is imported when its experiment is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from engine.bad import BadInput
from experiments.figure import Curve, Figure
from experiments.results import Rows
from sim.profile import Profile

MODULES = {
    "title-guest": "experiments.title_guest",
    "guest-sizes": "experiments.guest_sizes",
    "a-b-a": "experiments.a_b_a",
    "a-b-c-a": "experiments.a_b_c_a",
    "compaction-head": "experiments.compaction_head",
    "compaction-continued": "experiments.compaction_continued",
    "think-33k": "experiments.think_33k",
    "owui-reasoning": "experiments.owui_reasoning",
    "reserialised-tools": "experiments.reserialised_tools",
    "anchor-rules": "experiments.anchor_rules",
    "align-speed": "experiments.align_speed",
    "chunk-size": "experiments.chunk_size",
    "shared-system-prompt": "experiments.shared_system_prompt",
    "three-users": "experiments.three_users",
    "end-resumes": "experiments.end_resumes",
    "suffix-growth": "experiments.suffix_growth",
    "drafts": "experiments.drafts",
    "memory-night": "experiments.memory_night",
    "two-folders": "experiments.two_folders",
    "restart": "experiments.restart",
    "slow-drive": "experiments.slow_drive",
    "deploy-mid-afternoon": "experiments.deploy",
    "stranger-10k": "experiments.stranger",
    "second-eviction-writes-one-block": "experiments.second_eviction",
    "drive-rested-and-not": "experiments.drive_rested_and_not",
    "pacing": "experiments.pacing",
    "budget-sweep": "experiments.budget_sweep",
    "fourteen-days": "experiments.fourteen_days",
    "three-at-night": "experiments.three_at_night",
    "codec": "experiments.codec",
    "prefill-vs-transformers": "experiments.prefill_vs_transformers",
    "serve-overhead": "experiments.serve_overhead",
}


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment, as its module says.

    A module has NAME, ABOUT (one line) and `run(board)`, or TRACES (names of the traces it replays
    when none are given) and `run(board, names, skip_bad)`, or the same with READS_TRACES where
    traces only change what it asks. With `curves(board)` it can be plotted; with `tables`, which
    takes what its `run` takes, it writes rows beside its figures: a table's name to its rows. The
    disk tier is off, unless the module says DISK, and the spill, unless it says SPILL: the others
    ask about the caches in memory.
    """

    name: str
    about: str
    traces: tuple[str, ...]
    """Traces it replays when none are given; an experiment without any makes its own requests."""
    run: Callable[..., list[Figure]]
    """Takes the board, names of traces, whether bad lines in them are passed over, and the folder
    of a suffix store, for those with SUFFIX."""
    curves: Callable[[Profile], list[Curve]] | None
    tables: Callable[..., Mapping[str, Rows]] | None
    """Takes what `run` takes."""


def find(name: str) -> Experiment:
    """The experiment of this name; raises BadInput."""
    if name not in MODULES:
        known = ", ".join(MODULES)
        raise BadInput("experiment", None, f"{name!r} is none of list, {known}")
    module = import_module(MODULES[name])
    assert name == module.NAME
    traces: tuple[str, ...] = getattr(module, "TRACES", ())
    off = {name.lower(): False for name in ("DISK", "SPILL") if not getattr(module, name, False)}
    drafts = getattr(module, "SUFFIX", False)
    reads = bool(traces) or getattr(module, "READS_TRACES", False) or drafts

    def called(
        function: str, board: Profile, names: Sequence[str], skip_bad: bool, suffix_dir: Path | None
    ) -> Any:
        if suffix_dir is not None and not drafts:
            raise BadInput("--suffix-dir", None, f"experiment {name} reads no suffix store")
        if names and not reads:
            raise BadInput("--traces", None, f"experiment {name} makes its own requests")
        asked = (names or traces, skip_bad) if reads else ()
        more = (suffix_dir,) if drafts else ()
        board = replace(board, **off)
        return getattr(module, function)(board, *asked, *more)

    def run(
        board: Profile,
        names: Sequence[str] = (),
        skip_bad: bool = False,
        suffix_dir: Path | None = None,
    ) -> list[Figure]:
        figures: list[Figure] = called("run", board, names, skip_bad, suffix_dir)
        keys = [figure.key for figure in figures]
        assert len(keys) == len(set(keys)), "two figures of one name"
        return figures

    def tables(
        board: Profile,
        names: Sequence[str] = (),
        skip_bad: bool = False,
        suffix_dir: Path | None = None,
    ) -> Mapping[str, Rows]:
        rows: Mapping[str, Rows] = called("tables", board, names, skip_bad, suffix_dir)
        return rows

    curves = getattr(module, "curves", None)
    has_tables = hasattr(module, "tables")
    return Experiment(name, module.ABOUT, traces, run, curves, tables if has_tables else None)
