"""Rates of the disk tier beside raw direct I/O: the same bytes, and all of them checked.

Goal: both sides move as many bytes; what comes back is what was saved, or it is said; nothing is
left between rounds, and closing ends what is under way.
Method: a small board on real files. No rate is judged here. The canary plants one wrong byte on the
way back. Covers replay.drive_rates, replay.rounds and replay.raw_io.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cache.disk import reader as reader_module
from cache.disk.writer import DiskWriter
from engine.bad import BadInput
from replay.drive_rates import Bench, Sizes
from replay.rounds import Changed, Parts, Round, in_order, medians
from sim.profile import Profile, load, with_settings

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
    """Sizes of chunks, anchors, what is unfinished, and the raw file."""
    suffixes = (".rows", ".anchor", ".tmp", "raw")
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {p.name: p.stat().st_size for p in found if p.name.endswith(suffixes)}


def test_both_sides_move_as_many_bytes(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, int]] = []
    restore = Bench._restore

    def look(self: Bench, sums: list[int]) -> Parts:
        seen.append(files_of(tmp_path))
        return restore(self, sums)

    monkeypatch.setattr(Bench, "_restore", look)
    for number in range(2):
        bench.round(ours_first=number == 1)
    for files in seen:
        assert files.pop("raw") == sum(files.values()) == bench.nbytes <= SIZES.nbytes
        assert len(files) == SIZES.chunks + 1 == 5
    assert files_of(tmp_path) == {}


def test_where_the_time_went_is_told(bench: Bench) -> None:
    one = bench.round(ours_first=False)
    for parts in (one.write, one.read):
        assert {"copy", "checksum", "drive", "fsync", "names", "all"} == set(parts)
        assert all(parts[what] > 0 for what in ("copy", "checksum", "drive", "all"))
    assert one.write["fsync"] > 0 and one.raw_write["fsync"] > 0 < one.raw_read["all"]


def test_canary_a_byte_that_comes_back_changed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = reader_module.put_chunk

    def short(tensors: Any, state: Any, start: int, stop: int) -> None:
        put(tensors, state, start, stop)
        for view in state.views:
            view.rows(stop - 1, stop).zero_()

    monkeypatch.setattr(reader_module, "put_chunk", short)
    with pytest.raises(Changed):
        bench.round(ours_first=True)


def test_a_drive_that_fails_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench._files, "preallocate", full)
    with pytest.raises(BadInput, match="nothing was saved: ENOSPC"):
        bench.round(ours_first=True)


def test_closing_ends_what_is_being_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path, BOARD, SIZES, 0)
    writer = DiskWriter(bench.tier, bench.model)
    writer.begin(bench._ask, bench._ask.ids, 0, clean=True)
    for line in range(64, bench.top + 1, 64):
        writer.passed(line)
    writer.prefilled()
    bench.close()
    assert not [name for name in files_of(tmp_path) if name.endswith((".anchor", ".tmp"))]


def test_too_little_memory_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not enough memory"):
        Bench(tmp_path, BOARD, Sizes(1 << 40, SIZES.chunk_bytes, SIZES.anchor_bytes), 0)


def test_ratios_are_of_pairs_and_medians_of_those() -> None:
    def made(write_s: float, raw_s: float) -> Round:
        parts, raw = {"all": write_s}, {"all": raw_s}
        return Round(False, 8, parts, raw, raw, parts)

    rounds = [made(2.0, 1.0), made(4.0, 1.0), made(1.0, 0.9)]
    found = medians(rounds)
    assert found["write_ratio"] == 0.5 == rounds[0].write_ratio
    assert found["read_ratio"] == 2.0 == rounds[0].read_ratio
    assert found["write_bytes_s"] == 4.0 and found["raw_write_bytes_s"] == 8.0
    assert rounds[0].figures()["first"] == "raw"


def test_sizes_are_in_whole_chunks_one_at_least() -> None:
    board: Profile = load("spark-27b")
    assert Sizes.of(board, 1.0).chunks == 1 and Sizes.of(board, 2 * 2**30).chunks == 20
    sizes = Sizes.of(board, 2 * 2**30)
    assert sizes.drive_bytes == 2 * sizes.nbytes < sizes.memory_bytes + sizes.nbytes


def test_the_order_is_the_one_asked_for() -> None:
    ran: list[str] = []

    def side(name: str) -> Parts:
        ran.append(name)
        return {name: 1.0}

    for first in (True, False):
        assert in_order(lambda: side("ours"), lambda: side("raw"), first) == (
            {"ours": 1.0},
            {"raw": 1.0},
        )
    assert ran == ["ours", "raw", "raw", "ours"]
