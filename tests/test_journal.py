"""The journal: rows in memory, counters over all of them, and lines in a file through a job.

Method: a real directory, seeded jobs, and a drive that fails.
"""

import json
from dataclasses import replace
from pathlib import Path

from support import box, engine, serve, tokens

from cache.host import OsFiles, ThreadJobs
from cache.journal import CacheEvent, Journal, TurnRow
from sim.jobs import SeededJobs


def row(prompt: int = 10) -> TurnRow:
    on = box(engine("witness"))
    return serve(on, tokens(prompt), tokens(3))[0]


def test_counters_outlive_the_rows_kept() -> None:
    journal = Journal(rows_kept=2)
    for _ in range(5):
        journal.add(row(100))
    assert len(journal.rows) == 2
    assert journal.counters["turns"] == 5
    assert journal.counters["prompt_tokens"] == 500
    assert journal.counters["source.cold"] == 5
    assert journal.counters["why.new"] == 5


def test_rows_reach_the_file_once_and_a_second_journal_appends(tmp_path: Path) -> None:
    for start in (0, 3):
        journal, jobs = Journal(OsFiles(tmp_path)), SeededJobs(start)
        for prompt in range(start, start + 3):
            journal.add(row(prompt + 1), jobs)
            jobs.pump()
        jobs.drain()
    lines = (tmp_path / Journal.FILE).read_text().splitlines()
    assert [json.loads(line)["prompt"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert json.loads(lines[0])["why"] == "new"


def test_a_full_drive_costs_rows_in_the_file_and_nothing_else(tmp_path: Path) -> None:
    class Full(OsFiles):
        def write(self, handle: int, offset: int, data: bytes | memoryview) -> None:
            raise OSError(28, "No space left on device")

    journal, jobs = Journal(Full(tmp_path)), SeededJobs(0)
    journal.add(row(), jobs)
    jobs.drain()
    assert journal.counters["journal_rows_unwritten"] == 1
    assert len(journal.rows) == 1
    assert (tmp_path / Journal.FILE).read_text() == ""


def test_a_full_file_makes_way_and_every_row_is_kept_once(tmp_path: Path) -> None:
    journal, jobs = Journal(OsFiles(tmp_path), file_bytes=2_000, files_kept=20), SeededJobs(1)
    for prompt in range(1, 21):
        journal.add(row(prompt), jobs)
        jobs.pump()
    jobs.drain()
    *older, newest = sorted(path.name for path in tmp_path.iterdir())
    assert newest == Journal.FILE and len(older) >= 3
    text = "".join((tmp_path / name).read_text() for name in (*older, newest))
    lines = text.splitlines()
    assert [json.loads(line)["prompt"] for line in lines] == list(range(1, 21))


def test_rows_added_while_a_job_writes_are_not_lost(tmp_path: Path) -> None:
    """The turn's thread adds, the job's thread writes: every row reaches the file."""
    journal, jobs, one = Journal(OsFiles(tmp_path)), ThreadJobs(), row()
    try:
        for prompt in range(2_000):
            journal.add(replace(one, prompt=prompt), jobs)
        jobs.drain()
    finally:
        jobs.close()
    lines = (tmp_path / Journal.FILE).read_text().splitlines()
    assert [json.loads(line)["prompt"] for line in lines] == list(range(2_000))


def test_events_carry_when_the_journal_was_told(tmp_path: Path) -> None:
    journal, jobs = Journal(OsFiles(tmp_path)), SeededJobs(0)
    told = CacheEvent("disk", "hit", None, 64)
    journal.note(told, 12.5, jobs)
    jobs.drain()
    assert journal.events[0] == told and journal.events[0].wall_s == 12.5
    assert json.loads((tmp_path / Journal.FILE).read_text())["wall_s"] == 12.5


def test_cached_tokens_are_counted_by_source() -> None:
    journal = Journal()
    for source, cached in (("park.end", 5), ("park.end", 7), ("cold", 0)):
        journal.add(replace(row(), source=source, cached=cached))
    assert journal.counters["cached.park.end"] == 12
    assert journal.counters["cached.cold"] == 0
