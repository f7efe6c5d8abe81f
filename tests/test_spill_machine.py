"""All caches in memory over a spill: planned stops, crashes, pauses and bad files, in any order.

Method: the state machine of test_stack_machine over files in memory, with the rules of a drive on
top. After every prefill the witness's formula checks each row; a peek says before what the request
then reports, but where a file was spoiled; after every step what the shelf counts is what lies in
the directory, and nothing else does.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test
from support import box, engine, joined, serve, spill, tokens, verifier
from test_stack_machine import SESSIONS, WINDOW, Conversations

from cache.align import Alignment
from cache.journal import TurnRow
from cache.planned import drain, pause, read_back
from cache.spill.codec import CodecConfig
from cache.spill.entry import Entry
from cache.spill.manifest import read_manifest
from cache.spill.names import manifest_name
from cache.types import Ids
from replay.pieces import TracePieces
from sim.files import SimFiles

CODECS = (CodecConfig(mode="raw"), CodecConfig(frame_bytes=4_096, plane_min=1))


class Spilling(Conversations):
    """Several people at one engine that is stopped and started again."""

    @initialize(
        seed=st.integers(0, 5),
        park_rows=st.sampled_from((0, 300, 900)),
        store_rows=st.sampled_from((0, 400)),
        tokens_min=st.sampled_from((1, 300)),
        budget=st.sampled_from((10**9, 200_000)),
        codec=st.sampled_from(CODECS),
    )
    def begin(  # type: ignore[override]
        self,
        seed: int,
        park_rows: int,
        store_rows: int,
        tokens_min: int,
        budget: int,
        codec: CodecConfig,
    ) -> None:
        self.files = SimFiles(logs=False)
        self.rooms: dict[str, Any] = {
            "anchors": 6,
            "seed": seed,
            "park_rows": park_rows,
            "pin_rows": park_rows // 2,
            "guest_tokens": 200,
            "stash_rows": 300,
            "checkpoint_tokens": 32,
            "session_trim": bool(seed % 2),
            "boundaries": seed % 3,
            "meeting": Alignment(TracePieces()),
        }
        self.store_rows = store_rows
        self.kept = {"tokens_min": tokens_min, "budget_bytes": budget, "codec": codec}
        self.spoiled = False
        self.texts, self.read, self.count = {}, [], 0
        self.starts()
        head = tokens(150, seed)
        self.texts = {s: joined(head, self.fresh(60)) for s in SESSIONS}

    def starts(self) -> None:
        self.of = engine("witness", window=WINDOW)
        self.spill = spill(self.files, self.of, **self.kept)
        store_bytes = self.store_rows * self.of.cost().row_bytes
        self.on = box(self.of, spill=self.spill, store_bytes=store_bytes, **self.rooms)
        self.check = verifier(self.of)

    def ask(
        self, session: str, ids: Ids, answer: int, kind: str = "turn", thought: int = 0
    ) -> TurnRow:
        if not self.spoiled:
            return super().ask(session, ids, answer, kind, thought)
        # A bad file is found when it is read: a colder start than the peek said, and as right.
        ids, written = ids[: WINDOW - 300], self.fresh(answer)
        row, verdict = serve(*(self.on, ids, written), check=self.check, session=session, kind=kind)
        assert verdict is not None and verdict.ok, verdict
        self.read.append(self.on.stack.rows.copy())
        return row

    @rule(session=st.sampled_from(SESSIONS), answer=st.integers(1, 40))
    def go_on_with_every_token_sent_back(self, session: str, answer: int) -> None:
        if not self.spoiled:
            super().go_on_with_every_token_sent_back(session, answer)

    @rule()
    def stop_as_planned(self) -> None:
        drain(self.on.stack, self.of)
        resident, kept = self.on.stack.resident.account, self.spill.shelf.pointed()
        ids = (
            kept.account.ids if kept is not None and kept.account is not None else resident.ids[:0]
        )
        had = resident.end.tokens if resident.end is not None else None
        whole = len(ids) == resident.valid and bool((ids == resident.ids).all())
        self.spill.close()
        self.starts()
        line = read_back(self.on.stack, self.of)
        if whole and had is not None and not self.spoiled:
            assert line is not None and line.tokens >= had

    @rule()
    def crash(self) -> None:
        self.spill.close()
        self.starts()

    @rule(blocks=st.integers(0, 40))
    def rest(self, blocks: int) -> None:
        asked = iter(range(10_000))
        pause(self.on.stack, self.of, lambda: next(asked) >= blocks)

    @rule(which=st.integers(0, 200), at=st.integers(0, 30_000), flip=st.integers(1, 255))
    def spoil(self, which: int, at: int, flip: int) -> None:
        names = [name for name in self.files.list() if name.endswith((".block", ".anchor"))]
        if not names:
            return
        name = names[which % len(names)]
        at %= self.files.size(name)
        handle, into = self.files.open(name), self.files.buffer(4_096)
        page = at // 4_096 * 4_096
        self.files.start_read(handle, page, into).wait()
        into[at - page] ^= flip
        self.files.start_write(handle, page, into).wait()
        self.files.close(handle)
        self.spoiled = True

    @invariant()
    def what_was_written_makes_sense_to_the_next_start(self) -> None:
        for entry in self.spill.shelf.whole():
            name = manifest_name(entry.key)
            read = read_manifest(self.files, name, self.spill.shapes, {"f" * 64})
            assert isinstance(read, Entry), read

    @invariant()
    def what_is_counted_lies_there(self) -> None:
        shelf = self.spill.shelf
        names = {name for entry in shelf.whole() for name in entry.names}
        loose = {n for e in shelf._entries for n in e.names}
        found = {n for n in self.files.list() if n.endswith((".block", ".anchor"))}
        assert found == names | loose
        assert not any(name.endswith(".tmp") for name in self.files.list())
        sizes = sum(self.files.size(n) for n in self.files.list() if n[0] in "0123456789abcdef")
        assert shelf.held_bytes() == sizes
        assert sizes <= self.spill.config.budget_bytes


SOME = settings(max_examples=max(15, settings().max_examples // 4), stateful_step_count=20)
MANY = settings(SOME, max_examples=max(100, settings().max_examples))
TestSpilling = Spilling.TestCase
TestSpilling.settings = SOME


@pytest.mark.slow
def test_many_stops() -> None:
    run_state_machine_as_test(Spilling, settings=MANY)
