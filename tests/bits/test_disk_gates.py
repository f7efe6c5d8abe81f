"""Every resume from the drive against a cold prefill, on every kind of model, after restarts.

Method: prompts through the real turn, with files in memory that keep direct I/O's rules. A restart
is a new engine of the same weights and a tier opened again; the verifier compares logits, sections,
tails and all rows, the drafter's too, after each prefill. One case runs in processes of their own
on real files. The canaries plant one fault each, and a gate must turn red.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    CANARIES,
    GRID,
    MODELS,
    box,
    engine,
    forced,
    joined,
    serve,
    tier,
    tokens,
    verifier,
)

from cache.disk import reader as reader_module
from cache.disk import tier as tier_module
from cache.disk import writer as writer_module
from cache.disk.index import Chunk, Entry, chunk_name
from cache.disk.tier import DiskTier
from cache.disk.work import Work
from cache.disk.writer import DiskWriter
from cache.format import Header
from cache.journal import CacheEvent, TurnRow
from cache.types import Ask, CacheState, Gate, Ids
from engine.adapter import Engine
from engine.turn import Box, Prompt, turn
from sim.files import SimFiles
from sim.jobs import SeededJobs

HEAD = tokens(5 * GRID + 20, 70)
"""What every session of a client begins with: its tools and system text."""


class House:
    """A machine: files that stay, and one process after another over them."""

    def __init__(self, model: str, seed: int = 0, **settings: Any) -> None:
        self.model, self.seed, self.settings = model, seed, settings
        self.files = SimFiles()
        self.count = 0
        self.starts()

    def starts(self, files: SimFiles | None = None, **rooms: Any) -> None:
        """A process begins, with empty caches in memory."""
        self.files = files or self.files
        self.of: Engine = engine(self.model)
        jobs = SeededJobs(self.seed)
        self.tier = tier(self.files, self.of, jobs=jobs, **self.settings)
        self.on: Box = box(self.of, disk=self.tier, **rooms)
        self.check = verifier(self.of)

    def restarts(self, **rooms: Any) -> None:
        """The process ends and another begins."""
        self.ends()
        self.starts(**rooms)

    def ends(self) -> None:
        self.rests()
        self.tier.close()

    def rests(self) -> None:
        """Whatever is to be written is written."""
        self.tier.keeper.jobs.drain()
        self.on.stack.leave()
        self.tier.keeper.jobs.drain()
        self.tier.check()
        for event in self.on.stack.events():
            self.on.journal.note(event, 0.0)

    def sends(self, ids: Ids, answer: int = 9, **how: Any) -> TurnRow:
        """A prompt; whatever served it, its gate must hold."""
        self.count += 1
        written = tokens(answer, 1_000 + self.count)
        row, verdict = serve(self.on, ids, written, check=self.check, **how)
        assert verdict is not None
        assert verdict.ok, verdict
        self.answered = joined(ids, written)
        return row

    def session(self, name: str, more: int = 90) -> TurnRow:
        """A session's first prompt: the head, then a message of its own."""
        self.count += 1
        return self.sends(joined(HEAD, tokens(more, 3_000 + self.count)), session=name)

    def events(self, kind: str = "") -> list[CacheEvent]:
        return [e for e in self.on.journal.events if e.tier == "disk" and kind in ("", e.event)]


def lines(house: House) -> list[int]:
    """Where the drive has anchors."""
    return sorted({entry.line for entry in house.tier.index})


@pytest.mark.parametrize("model", MODELS)
def test_a_head_outlives_the_rows_in_place_and_the_process(model: str) -> None:
    house = House(model)
    assert house.session("a").source == "cold"
    house.rests()
    house.sends(tokens(9 * GRID + 5, 90), kind="title")
    row = house.session("b")
    assert (row.source, row.cached, row.gate) == ("disk.grid", 5 * GRID, "bits")
    house.restarts()
    row = house.session("c")
    assert (row.source, row.cached, row.gate) == ("disk.grid", 5 * GRID, "bits")
    assert len(house.events("hit")) == 1 and house.on.journal.counters["disk.hit"] == 1


@pytest.mark.parametrize("model", MODELS)
def test_chunks_in_place_are_not_read_and_lower_anchors_stay(model: str) -> None:
    """Three chunks of the head are in place, with their anchors; only what is above is read."""
    house = House(model)
    house.session("a")
    house.restarts()
    house.sends(HEAD[: 3 * GRID + 5], kind="title")
    before = house.tier.notes.counters["read_bytes"]
    assert house.session("b").cached == 5 * GRID
    read = house.tier.notes.counters["read_bytes"] - before
    shapes = house.tier.shapes
    assert read == 2 * shapes.bytes_of("rows") + shapes.bytes_of("anchor", 5)
    assert 3 * GRID in house.on.stack.resident.account.anchors.lines


@pytest.mark.parametrize("model", MODELS)
def test_nothing_tainted_is_written(model: str) -> None:
    house = House(model)
    house.sends(tokens(2 * GRID + 3, 6), answer=4 * GRID, session="a")
    house.rests()
    wrote = lines(house)
    row = house.sends(joined(house.answered, tokens(3 * GRID, 7)), session="b")
    assert row.source == "end"
    house.rests()
    assert lines(house) == wrote and max(wrote) == 2 * GRID
    assert house.on.stack.taint is not None


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ("anchor", "rows"))
def test_after_a_damaged_file_the_request_is_served_and_the_head_written_again(
    model: str, kind: str
) -> None:
    house = House(model)
    house.session("a")
    house.ends()
    state = house.files.snapshot()
    name = next(n for n in sorted(state) if n.endswith(kind))
    state[name] = flipped(state[name], len(state[name]) // 2 + 300)
    house.starts(SimFiles(state))
    row = house.session("b")
    damaged = house.events("damage")
    if row.source == "cold":
        assert damaged and damaged[0].why.startswith(name)
    house.restarts()
    for number in range(3):
        house.session(f"c{number}")
        house.rests()
        house.sends(tokens(9 * GRID, 91 + number), kind="title")
    assert house.session("d").source == "disk.grid"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("chunk, source", ((3, "grid"), (5, "disk.grid")))
def test_below_a_damaged_chunk_the_next_best_line_serves(
    model: str, chunk: int, source: str
) -> None:
    """Rows above the base were written over before the bad file was met."""
    house = House(model)
    house.session("a")
    house.ends()
    state = house.files.snapshot()
    (entry,) = (entry for entry in house.tier.index if entry.line == 5 * GRID)
    name = f"{entry.chunks[chunk - 1]:016x}.rows"
    state[name] = flipped(state[name], len(state[name]) - 1)
    house.starts(SimFiles(state))
    house.sends(joined(HEAD[: 2 * GRID], tokens(6 * GRID, 8)), kind="title", session="t")
    row = house.session("b")
    assert (row.source, row.cached) == (source, (chunk - 1) * GRID)
    (event,) = house.events("damage")
    assert event.why.startswith(name) and event.tokens == chunk * GRID
    house.restarts()
    assert house.session("c").cached >= 4 * GRID  # Written again, as far as buffers were free.


def flipped(data: bytes, at: int) -> bytes:
    """With one bit of a byte that holds something changed."""
    while not data[at]:
        at -= 1
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("model", MODELS)
def test_after_a_closed_window_what_was_copied_is_whole(model: str) -> None:
    """Another prompt comes while the rows are copied out: the rest is dropped, and said."""
    dropped = 0
    for seed in range(12):
        house = House(model, seed=seed)
        house.session("a")
        house.sends(tokens(9 * GRID, 92), kind="title")
        house.rests()
        why = {event.why for event in house.events("drop")}
        assert why <= {"window", "staging"}, why
        dropped += "window" in why
        house.restarts()
        house.session("b")
        # The witness sees with certainty, and in no time: it goes through all of them.
        if dropped == 2 and model != "witness":
            break
    assert dropped > 0, "no window was ever closed"


@pytest.mark.parametrize("model", MODELS)
def test_a_turn_that_goes_on_keeps_the_window_open(model: str) -> None:
    """It resumes above the job's highest line, so that no row of the job is written to."""
    house = House(model, seed=1)
    house.session("a", more=30)
    row = house.sends(joined(house.answered, tokens(40, 9)), session="a")
    assert row.source == "end"
    house.rests()
    assert not house.events("drop") and lines(house) == [n * GRID for n in range(2, 6)]


@pytest.mark.parametrize("model", MODELS)
def test_a_guest_starts_from_the_drive_and_gives_the_rows_back(model: str) -> None:
    house = House(model)
    house.session("a", more=30)
    house.restarts(guest_tokens=7 * GRID, stash_rows=1_500, park_rows=4_000)
    house.sends(tokens(30 * GRID, 10), session="long", answer=50)
    text = house.answered
    row = house.session("b", more=30)
    assert row.guest and (row.source, row.cached) == ("disk.grid", 5 * GRID)
    row = house.sends(joined(text, tokens(20, 11)), session="long")
    assert row.source == "end"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("first, source", ((1, "cold"), (5, "disk.grid")))
def test_a_guests_damaged_file_costs_it_the_start_and_the_resident_nothing(
    model: str, first: int, source: str
) -> None:
    """Chunks from the first bad one on are; those below were written over rows it borrows."""
    house = House(model)
    house.session("a", more=30)
    house.ends()
    state = house.files.snapshot()
    (entry,) = (entry for entry in house.tier.index if entry.line == 5 * GRID)
    for chunk in entry.chunks[first - 1 :]:
        name = chunk_name(chunk)
        state[name] = flipped(state[name], len(state[name]) - 1)
    house.starts(SimFiles(state), guest_tokens=7 * GRID, stash_rows=1_500, park_rows=9_000)
    house.sends(tokens(30 * GRID, 10), session="long", answer=50)
    text = house.answered
    assert house.session("b", more=30).source == source
    row = house.sends(joined(text, tokens(20, 11)), session="long")
    assert row.source in ("end", "park.end")


@pytest.mark.parametrize("model", MODELS)
def test_a_side_slot_reads_and_writes_and_counts_nothing(model: str) -> None:
    house = House(model)
    house.session("a")
    house.rests()
    side = house.of.twin(16 * GRID)
    beside = box(side, disk=house.tier, writes=False)
    before = house.files.snapshot(), house.tier.keeper.counts.plain(), dict(house.tier.stats())
    ids = joined(HEAD, tokens(80, 12))
    row, verdict = serve(beside, ids, tokens(5, 13), check=verifier(side), session="s")
    assert (row.source, row.cached) == ("disk.grid", 5 * GRID)
    assert verdict is not None and verdict.gate is Gate.BITS and verdict.ok
    row, verdict = serve(beside, tokens(300, 14), tokens(5, 15), check=verifier(side), session="s")
    house.rests()
    after = house.tier.stats()
    assert house.tier.keeper.counts.plain() == before[1]
    assert after["entries"] == before[2]["entries"] and after["hit"] == 1
    assert set(house.files.list()) == set(before[0])


@pytest.mark.parametrize("model", MODELS)
def test_peeking_changes_nothing_and_says_what_will_be(model: str) -> None:
    house = House(model)
    house.session("a")
    house.restarts()
    ids = joined(HEAD, tokens(50, 16))
    asked = house.tier.stats(), house.tier.keeper.counts.plain(), house.files.calls
    plans = [house.on.stack.plan(Ask(ids, "b")) for _ in range(3)]
    assert len({(p.source, p.line) for p in plans}) == 1
    assert asked == (house.tier.stats(), house.tier.keeper.counts.plain(), house.files.calls)
    row = house.sends(ids, session="b")
    assert (row.source, row.cached) == (plans[0].source, plans[0].line.tokens)


def test_an_entry_is_taken_only_when_reading_it_is_cheaper_than_the_prefill() -> None:
    house = House("witness")
    house.session("a")
    rate = house.tier.shapes.bytes_of("rows") * 5 / (5 * GRID / house.of.cost().prefill_tokens_s)
    for read_bytes_s, source in ((rate / 2, "cold"), (rate * 2, "disk.grid")):
        house.settings["read_bytes_s"] = read_bytes_s
        house.restarts()
        row = house.session(f"at {read_bytes_s}")
        assert (row.source, row.why == "slow") == (source, source == "cold")


def test_an_injected_package_names_the_entry_it_lies_in() -> None:
    house = House("witness")
    ids = joined(HEAD, tokens(60, 17))
    prompt = Prompt(ids, "a", packages=((2 * GRID + 10, "skill one"), (4 * GRID + 1, "skill two")))
    list(turn(house.on, prompt, forced(tokens(4)), limit=4))
    house.restarts()
    named = {entry.line: entry.packages for entry in house.tier.index}
    assert named[3 * GRID] == ("skill one",) and named[5 * GRID] == ("skill one", "skill two")
    house.session("b")
    assert house.events("hit")[0].why == "skill one skill two"
    # The same text after another text is another prefix: nothing of it is reused.
    moved = joined(tokens(GRID, 18), ids[GRID : 5 * GRID], tokens(40, 19))
    assert house.sends(moved, session="c").cached == 0


# in processes of their own


SCRIPT = """
import sys
from pathlib import Path
from support import box, engine, joined, serve, tier, tokens, verifier
from cache.direct import DirectFiles
from cache.host import SystemClock, ThreadJobs
from test_disk_gates import HEAD
folder, model, session = sys.argv[1:]
class Jobs(ThreadJobs):
    # However slow the drive, there is a buffer for the next anchor.
    def pump(self): self.drain()
of, jobs = engine(model), Jobs()
held = tier(DirectFiles(Path(folder)), of, jobs=jobs, clock=SystemClock())
on = box(of, disk=held)
ids = joined(HEAD, tokens(80, len(session)))
row, verdict = serve(on, ids, tokens(5, 9), check=verifier(of), session=session)
jobs.drain(); on.stack.leave(); jobs.drain(); held.check(); held.close()
print(row.source, row.cached, verdict.ok, verdict.gate.name)
"""


def process(folder: Path, model: str, session: str) -> list[str]:
    tests = Path(__file__).parent.parent
    path = ":".join([str(tests), str(tests / "bits"), str(tests.parent)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(folder), model, session],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("model", ("hybrid-float32", "third"))
def test_real_files_threads_and_fresh_processes(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "tier"
    assert process(folder, model, "a") == ["cold", "0", "True", "BITS"]
    for session in ("bb", "ccc"):
        found = process(folder, model, session)
        assert found == ["disk.grid", str(5 * GRID), "True", "BITS"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())


# canaries: one fault each, and a gate is red


def restart_gate(model: str) -> None:
    """A head after a restart, whatever it is served from."""
    house = House(model)
    house.session("a")
    house.restarts()
    row = house.session("b")
    assert row.source == "disk.grid"


@pytest.mark.parametrize("model", CANARIES)
def test_canary_one_bit_of_a_state(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = reader_module._copies

    def off(tensors: list[torch.Tensor], state: CacheState) -> Any:
        made = copies(tensors, state)
        assert made is not None
        made[0].view(torch.uint8).flatten()[3] ^= 1
        return made

    monkeypatch.setattr(reader_module, "_copies", off)
    with pytest.raises(AssertionError):
        restart_gate(model)


@pytest.mark.parametrize("model", CANARIES)
def test_canary_one_row_short(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put = reader_module.put_chunk

    def short(tensors: Any, state: CacheState, start: int, stop: int) -> None:
        put(tensors, state, start, stop)
        for view in state.views:
            view.rows(stop - 1, stop).zero_()

    monkeypatch.setattr(reader_module, "put_chunk", short)
    with pytest.raises(AssertionError):
        restart_gate(model)


@pytest.mark.parametrize("model", CANARIES)
def test_canary_the_state_of_the_line_before(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = DiskWriter.passed

    def late(self: DiskWriter, stop: int) -> None:
        kept = [section.tensor.clone() for section in self._model.cache_state().sections]
        held = self.__dict__.get("held", kept)
        live = self._model.cache_state().sections
        for section, old in zip(live, held, strict=True):
            section.tensor.copy_(old)
        passed(self, stop)
        for section, own in zip(self._model.cache_state().sections, kept, strict=True):
            section.tensor.copy_(own)
        self.__dict__["held"] = kept

    monkeypatch.setattr(DiskWriter, "passed", late)
    with pytest.raises(AssertionError):
        restart_gate(model)


@pytest.mark.parametrize("model", CANARIES)
def test_canary_no_fence(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are copied although another prompt's stand there."""

    def deaf(self: DiskWriter, row: int) -> None:
        self.prefilled()

    monkeypatch.setattr(DiskWriter, "fence", deaf)
    with pytest.raises(AssertionError):
        for seed in range(12):
            house = House(model, seed=seed)
            house.session("a")
            house.sends(tokens(9 * GRID, 92), kind="title")
            house.restarts()
            house.session("b")


@pytest.mark.parametrize("model", CANARIES)
def test_canary_tainted_rows_are_written(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = DiskWriter.begin

    def careless(self: DiskWriter, ask: Any, served: Ids, line: int, *, clean: bool) -> None:
        begin(self, ask, served, line, clean=True)

    monkeypatch.setattr(DiskWriter, "begin", careless)
    with pytest.raises(AssertionError):
        house = House(model)
        house.sends(tokens(2 * GRID + 3, 6), answer=4 * GRID, session="a")
        text = joined(house.answered, tokens(3 * GRID, 7))
        house.sends(text, session="b")
        house.restarts()
        house.sends(joined(text, tokens(9, 8)), session="c")


@pytest.mark.parametrize("model", CANARIES)
def test_canary_rows_in_place_taken_for_a_cold_prefills(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offer forgets the taint, and reads only what lies above the rows in place."""
    offer = DiskTier.offer

    def careless(self: DiskTier, ask: Ask, in_place: Any, cost: Any) -> Any:
        return offer(self, ask, replace(in_place, taint=None), cost)

    monkeypatch.setattr(DiskTier, "offer", careless)
    with pytest.raises(AssertionError):
        tainted_below_an_entry(model)


def tainted_below_an_entry(model: str) -> None:
    """The drive has a text as a prompt; in place are its first rows, half of them generated."""
    first, answer = tokens(2 * GRID + 30, 4), tokens(3 * GRID, 1_001)
    whole = joined(first, answer, tokens(2 * GRID, 5))
    house = House(model)
    house.sends(whole, session="b")
    house.restarts(keeps_end=False)
    house.count = 0
    house.sends(first, answer=3 * GRID, session="a", kind="title")
    assert house.on.stack.taint == len(first)
    row = house.sends(joined(whole, tokens(9, 6)), session="c")
    assert (row.source, row.gate) == ("disk.grid", "bits")


@pytest.mark.parametrize("model", MODELS)
def test_rows_in_place_above_the_taint_are_read_over(model: str) -> None:
    tainted_below_an_entry(model)


@pytest.mark.parametrize("model", CANARIES)
def test_canary_ids_are_not_compared(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "has_ids", lambda *_: True)
    with pytest.raises(AssertionError):
        collision(model, monkeypatch)


@pytest.mark.parametrize("model", MODELS)
def test_of_two_prompts_with_one_hash_each_gets_its_own_rows(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collision(model, monkeypatch)


def collision(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are named by their length alone: every two prompts collide."""

    def by_length(ids: Ids, grid: int) -> list[int]:
        return list(range(1, len(ids) // grid + 1))

    monkeypatch.setattr(tier_module, "lines_of", by_length)
    monkeypatch.setattr(writer_module, "lines_of", by_length)
    house = House(model)
    house.sends(tokens(6 * GRID, 20), session="a")
    house.restarts()
    row = house.sends(tokens(6 * GRID, 21), session="b")
    assert row.source == "cold" and house.events("damage")


@pytest.mark.parametrize("model", CANARIES)
def test_canary_checksums_are_not_looked_at(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(header: Header, image: memoryview, layout: Any) -> str:
        return ""

    monkeypatch.setattr(reader_module, "unsealed", careless)
    with pytest.raises(AssertionError):
        for kind in ("anchor", "rows"):
            house = House(model)
            house.session("a")
            house.ends()
            state = house.files.snapshot()
            for name in list(state):
                if name.endswith(kind):
                    header = Header.parse(state[name])
                    assert isinstance(header, Header)
                    section = header.sections[-1]
                    data = bytearray(state[name])
                    data[section.stop - 1] ^= 1
                    state[name] = bytes(data)
            house.starts(SimFiles(state))
            house.session("b")


def test_canary_an_anchor_without_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anchors get their names although the rows below were dropped."""
    publish = Work._publish

    def blind(self: Work, *arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Work, "_missing", lambda *_: [])
            publish(self, *arguments)

    monkeypatch.setattr(Work, "_publish", blind)
    with pytest.raises(AssertionError):
        for seed in range(12):
            house = House("witness", seed=seed)
            house.session("a")
            house.sends(tokens(9 * GRID, 92), kind="title")
            house.rests()
            assert {event.why for event in house.events("drop")} <= {"window", "staging"}


@pytest.mark.parametrize(("rows", "line"), ((8, 2), (9, 3)))
def test_a_line_in_a_pictures_first_rows_serves_nobody(rows: int, line: int) -> None:
    """Two pictures may agree in so few rows: what stands there may be the other's."""
    house = House("witness")
    picture = np.arange(-60, -20, dtype=np.int32)
    ids = joined(tokens(3 * GRID - rows, 60), picture, tokens(30, 61))
    hashes, index = tier_module.lines_of(ids, GRID), house.tier.index
    for number, name in enumerate(hashes[:3], 1):
        index.add_chunk(Chunk(name, number * GRID, 8_192))
        assert index.add(Entry(name, number * GRID, tuple(hashes[:number]), 8_192))
    nothing = house.on.stack.resident.account
    offer = house.tier.offer(Ask(ids), nothing, house.of.cost())
    assert offer is not None and offer.line.tokens == line * GRID


def swapped_while_open(model: str) -> None:
    """Two anchors stand in each other's place since the tier was opened."""
    house = House(model)
    house.session("a")
    house.restarts()
    names = house.files._directory.names
    low, high = (
        names[entry.name] for entry in house.tier.index if entry.line in (4 * GRID, 5 * GRID)
    )
    low.data, high.data = high.data, low.data
    row = house.session("b")
    assert house.events("damage") and row.cached < 4 * GRID


@pytest.mark.parametrize("model", MODELS)
def test_a_whole_file_in_another_ones_place_serves_nobody(model: str) -> None:
    swapped_while_open(model)


@pytest.mark.parametrize("model", CANARIES)
def test_canary_files_are_taken_for_what_their_names_say(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module.Reader, "_strange", lambda *_: "")
    with pytest.raises(AssertionError, match="Verdict"):
        swapped_while_open(model)
