"""Rates of the spill beside raw direct I/O: the same bytes, and all of them checked.

Goal: both sides move as many bytes, under either codec; what comes back is what was saved, or it is
said; nothing is left between rounds.
Method: a small board on real files. No rate is judged here. The canary plants one wrong row on the
way back. Covers replay.spill_rates.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cache.spill.codec import Mode
from cache.spill.reader import Reader
from engine.bad import BadInput
from replay.rounds import Changed, Parts
from replay.spill_gate import MODES
from replay.spill_rates import Bench, Sizes
from sim.profile import load, with_settings

BOARD = with_settings(
    load("spark-27b"), {"grid": "64", "row_bytes": "4100", "anchor_bytes": "200000"}
)
SIZES = Sizes.of(BOARD, 4 * 64 * 4_100)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, BOARD, SIZES, 0)
    yield made
    made.close()


def files_of(folder: Path) -> dict[str, int]:
    """Sizes of blocks, copies, what is unfinished, and the raw file."""
    suffixes = (".block", ".anchor", ".tmp", "raw")
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {p.name: p.stat().st_size for p in found if p.name.endswith(suffixes)}


@pytest.mark.parametrize("mode", MODES)
def test_both_sides_move_as_many_bytes(
    mode: Mode, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, int]] = []
    restore = Bench._restore

    def look(self: Bench) -> Parts:
        seen.append(files_of(tmp_path))
        return restore(self)

    monkeypatch.setattr(Bench, "_restore", look)
    first = bench.round(mode, ours_first=True)
    second = bench.round(mode, ours_first=False, nbytes=first.nbytes)
    assert (first.nbytes, first.ours_first) == (second.nbytes, not second.ours_first)
    for files in seen:
        assert files.pop("raw") == sum(files.values()) == first.nbytes <= SIZES.nbytes
        assert sum(name.endswith(".block") for name in files) == SIZES.blocks == 4
        assert sum(name.endswith(".anchor") for name in files) == SIZES.copies == 5
    assert files_of(tmp_path) == {}
    more = {"raw": first.nbytes > bench.conversation_bytes}
    assert more.get(mode, first.nbytes < bench.conversation_bytes)


@pytest.mark.parametrize("mode", MODES)
def test_where_the_time_went_is_told(mode: Mode, bench: Bench) -> None:
    one = bench.round(mode, ours_first=True)
    parts = {"sums", "pack", "copy", "checksum", "drive", "fsync", "names", "all"}
    assert (set(one.read), set(one.write)) == (parts, parts | {"manifest"})
    for of in (one.write, one.read):
        assert all(of[what] > 0 for what in ("sums", "copy", "checksum", "drive", "all"))
        assert (of["pack"] > 0) == (mode == "planes")
        assert sum(of[what] for what in of if what != "all") <= of["all"]


@pytest.mark.parametrize("mode", MODES)
def test_canary_a_byte_of_a_row_that_comes_back_changed(
    mode: Mode, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = Reader._placed

    def off(self: Reader, *rest: Any) -> str:
        why = placed(self, *rest)
        bench.model.cache_state().views[0].rows(1, 2).zero_()
        return why

    monkeypatch.setattr(Reader, "_placed", off)
    with pytest.raises(Changed, match="rows that came back"):
        bench.round(mode, ours_first=True)


def test_a_spill_that_brings_nothing_back_is_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader, "_placed", lambda *_: "its sums are others")
    with pytest.raises(Changed, match="did not come back"):
        bench.round("raw", ours_first=True)


def test_too_little_memory_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not enough memory"):
        Bench(tmp_path, BOARD, Sizes(1 << 40, SIZES.block_bytes, SIZES.copy_bytes), 0)


def test_fewer_lines_than_anchors_are_no_matter(tmp_path: Path) -> None:
    sizes = Sizes.of(BOARD, 1)
    assert (sizes.blocks, sizes.copies) == (1, 2)
    bench = Bench(tmp_path, BOARD, sizes, 0)
    assert bench.round("raw", ours_first=True).nbytes <= sizes.nbytes
    bench.close()
