"""The disk tier in the case it was built for: folders, a deploy; and threads that write for real.

Method: heads with the structure of an agent's (tools, fixed prompt, folder, instructions, message)
on a grid of 64, played through the real turn: two sessions in two folders, a deploy, a third in the
first folder, a fourth in a new one. Then jobs on threads write real files while the next prompts
take the rows away, again and again; whatever was written is held to a cold prefill.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from support import GRID, MODELS, box, engine, forced, joined, plain, serve, tier, tokens, verifier

from cache.budget import DRIVE, freely
from cache.direct import DirectFiles
from cache.disk.work import COUNTS
from cache.disk.writer import DiskWriter
from cache.host import SystemClock, ThreadJobs
from cache.journal import TurnRow
from cache.types import Gate, Ids
from engine.turn import Prompt, Ready, turn
from sim.files import SimFiles

TOOLS, FIXED = tokens(3 * GRID + 11, 1), tokens(2 * GRID + 5, 2)
"""Up to the folder's path all sessions of a client are the same."""
BRANCH = (len(TOOLS) + len(FIXED)) // GRID * GRID
FOLDERS = {name: tokens(4 * GRID + 7 * n, 10 + n) for n, name in enumerate(("one", "two", "new"))}


def head(folder: str) -> Ids:
    """Tools, system text, and the instructions of a folder."""
    return joined(TOOLS, FIXED, FOLDERS[folder])


class Play:
    """One box through deploys."""

    def __init__(self, model: str, **settings: Any) -> None:
        self.model, self.settings, self.files, self.count = model, settings, SimFiles(), 0
        self.deploys("1")

    def deploys(self, build: str) -> None:
        """The process starts with this build of the engine."""
        if hasattr(self, "tier"):
            self.rests()
            self.tier.close()
        self.of = engine(self.model)
        self.tier = tier(self.files, self.of, identity=plain(build * 64), **self.settings)
        self.on = box(self.of, disk=self.tier)
        self.check = verifier(self.of)

    def rests(self) -> None:
        self.tier.keeper.jobs.drain()
        self.on.stack.leave()
        self.tier.keeper.jobs.drain()
        self.tier.check()

    def starts(self, folder: str) -> TurnRow:
        """A new session's first prompt in a folder; afterwards the caches in memory are empty."""
        self.count += 1
        start = head(folder)
        ids = joined(start, tokens(50, 100 + self.count))
        prompt = Prompt(
            ids,
            f"session {self.count}",
            tools=len(TOOLS),
            system=len(start) - len(TOOLS),
            last_user=len(start),
        )
        for event in turn(self.on, prompt, forced(tokens(9)), limit=9):
            # Each chunk of a real prefill takes longer than an anchor's file.
            self.tier.keeper.jobs.drain()
            if isinstance(event, Ready):
                verdict = self.check.check(event.ids, event.logits, Gate.BITS, 0)
                assert verdict.ok, verdict
        self.rests()
        row = self.on.journal.rows[-1]
        self.on = box(self.of, disk=self.tier)
        return row

    @property
    def lines(self) -> set[int]:
        return {entry.line for entry in self.tier.index}


@pytest.mark.parametrize("model", MODELS)
def test_two_folders_a_deploy_a_third_session_and_a_fourth(model: str) -> None:
    play = Play(model)
    assert play.starts("one").source == play.starts("two").source == "cold"
    # The second prompt parted from the first at the folder's path: the line below is kept, and the
    # last four of each head.
    top = len(head("one")) // GRID * GRID
    assert play.lines >= {BRANCH, top, top - 3 * GRID}
    play.deploys("2")
    assert not play.lines and not [n for n in play.files.list() if n.endswith(("rows", "anchor"))]
    row = play.starts("one")
    assert row.source == "cold"
    # Its own head, its repeated line, and the line where the second folder's sessions part.
    assert play.lines >= {BRANCH, top, top - GRID, top - 2 * GRID, top - 3 * GRID}
    row = play.starts("new")
    assert (row.source, row.cached, row.gate) == ("disk.grid", BRANCH, "bits")


def test_without_the_branch_rule_the_fourth_session_starts_cold() -> None:
    play = Play("witness", branches=0)
    for folder in ("one", "two"):
        play.starts(folder)
    play.deploys("2")
    play.starts("one")
    assert play.starts("new").cached < BRANCH


def test_without_the_counts_of_before_the_deploy_the_fourth_session_starts_cold() -> None:
    play = Play("witness")
    for folder in ("one", "two"):
        play.starts(folder)
    play.tier.clear()
    play.deploys("2")
    play.starts("one")
    assert play.starts("new").cached < BRANCH


def test_a_short_prompt_is_neither_counted_nor_written() -> None:
    play = Play("witness", tokens_min=len(head("one")) + 51)
    play.starts("one")
    assert not play.lines and not len(play.tier.keeper.counts)


def test_read_only_writes_nothing_and_off_reads_nothing() -> None:
    play = Play("witness")
    play.starts("one")
    before = play.files.snapshot()
    play.settings["mode"] = "read"
    play.deploys("1")
    assert play.starts("one").source == "disk.grid"
    play.rests()
    data = {name for name in before if name.endswith(("rows", "anchor"))}
    assert data == {n for n in play.files.list() if n.endswith(("rows", "anchor"))}
    play.settings["mode"] = "off"
    play.deploys("1")
    assert play.starts("one").source == "cold"


def test_without_memory_nothing_is_staged_or_read_and_every_prompt_is_served() -> None:
    play = Play("witness")
    play.tier.grow = lambda name, nbytes: name != DRIVE
    assert play.starts("one").source == "cold" and not play.lines
    assert play.tier.held_bytes() == 0
    play.tier.grow = freely
    play.starts("one")
    assert play.lines and play.tier.held_bytes() > 0
    for asked in (1, 2):
        # The copy of the sections, then the buffers to read into.
        play.deploys("1")
        answers = [True] * (asked - 1)
        play.tier.grow = lambda name, nbytes, left=answers: bool(left) and left.pop()
        row = play.starts("one")
        assert row.source == "cold" and play.tier.notes.counters["fail"]
        assert not play.tier.notes.counters["damage"], "nothing is wrong with the files"


class Unreadable(SimFiles):
    """A drive that would not read the counts just now."""

    def open(self, name: str) -> int:
        if name == COUNTS:
            raise OSError(errno.EIO, "planted")
        return super().open(name)


def test_counts_that_could_not_be_read_are_not_written_over() -> None:
    play = Play("witness")
    play.starts("one")
    counted = play.tier.keeper.counts.plain()
    state = play.files.snapshot()
    play.files = Unreadable(state)
    play.deploys("1")
    assert not len(play.tier.keeper.counts)
    play.starts("two")
    play.rests()
    assert play.files.snapshot()[COUNTS] == state[COUNTS]
    play.files = SimFiles(play.files.snapshot())
    play.deploys("1")
    assert play.tier.keeper.counts.plain() == counted


# threads


def hammer(folder: Path, model: str, rounds: int) -> set[str]:
    """Sessions one after another without a pause, jobs on a thread; why anchors were dropped."""
    of, jobs = engine(model), ThreadJobs()
    held = tier(DirectFiles(folder), of, jobs=jobs, clock=SystemClock())
    on, check = box(of, disk=held), verifier(of)
    why: set[str] = set()
    for round_ in range(rounds):
        for ids in (joined(head("one"), tokens(40, round_)), tokens(5 * GRID, 900 + round_)):
            _, verdict = serve(on, ids, tokens(3), check=check, session=f"{round_} {len(ids)}")
            assert verdict is not None and verdict.ok, verdict
    jobs.drain()
    on.stack.leave()
    jobs.drain()
    held.check()
    why = {event.why for event in on.journal.events if event.event == "drop"}
    held.close()
    # What lies there now is read by another process.
    of = engine(model)
    held = tier(DirectFiles(folder), of, jobs=jobs, clock=SystemClock())
    on, check = box(of, disk=held), verifier(of)
    asked = [joined(head("one"), tokens(40, 77))]
    asked += [tokens(5 * GRID, 900 + number) for number in range(3)]
    for ids in asked:
        _, verdict = serve(on, joined(ids, tokens(9)), tokens(3), check=check, session="after")
        assert verdict is not None and verdict.ok, verdict
    jobs.drain()
    held.close()
    jobs.close()
    return why


@pytest.mark.parametrize("model", ("witness", "hybrid-float32", "third"))
def test_threads_write_while_other_prompts_take_the_rows(model: str, tmp_path: Path) -> None:
    assert hammer(tmp_path / "tier", model, rounds=12) <= {"window", "staging"}


def test_canary_threads_without_a_fence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskWriter, "fence", lambda self, row: self.prefilled())
    with pytest.raises(AssertionError):
        for attempt in range(20):
            hammer(tmp_path / f"tier {attempt}", "witness", rounds=12)
