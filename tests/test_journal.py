"""The journal: rows in memory, counters over all of them, and lines in a file through a job.

Method: a real directory, seeded jobs, and a drive that fails.
"""

import json
from pathlib import Path

from support import box, engine, serve, tokens

from cache.host import OsFiles
from cache.journal import Journal, TurnRow
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
