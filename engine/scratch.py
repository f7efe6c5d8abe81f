"""Scratch: an answer written above a conversation's end, of which nothing stays but its tokens"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch

from cache.anchors import copy_sections, write_sections
from cache.rows import RowBlock, block_spans, try_copy, write_blocks
from cache.types import Ids
from engine.box import Box
from engine.decode import Rule, decode
from engine.events import Chunk, Tokens
from engine.pictures.picture import Picture

_MARGIN_ROWS = 512
"""Rows that a block may write past what is known: drafts."""


class Scratch:
    """Goes on from the end anchor of the rows in place while nobody is served.

    No row below the end is written, no anchor is taken, and no account, cache, journal or store
    hears of it. Rows above it that a pooled conversation still has in place are put aside and put
    back. Whatever happens, the engine is then as it was: sections, length, pictures. Everything
    runs on the engine's thread; nobody else may touch the engine until the iterator is closed.
    """

    def __init__(self, box: Box) -> None:
        self._box = box
        self.running = False

    def why_not(self, ids: Ids, answer_max: int) -> str | None:
        """Why a prompt can't go on from the end in place; None when it can. Changes nothing."""
        box, stack = self._box, self._box.stack
        account, engine, budget = stack.resident.account, box.engine, box.budget
        if self.running or stack.serving or stack.has_guest:
            return "the engine serves"
        end = account.end
        if end is None or end.tokens != account.valid:
            return "no end anchor"
        if not end.tokens < len(ids) or (ids[: end.tokens] != account.ids).any():
            return "another conversation"
        if len(ids) + answer_max > engine.window:
            return "window"
        rows = self._others(len(ids) + answer_max) - end.tokens
        copies = max(0, rows) * engine.cost().row_bytes + engine.cost().anchor_bytes
        if budget is not None and not budget.spare(len(ids), copies):
            return "memory"
        return None

    def run(
        self,
        ids: Ids,
        pictures: Sequence[Picture],
        rule: Rule,
        limit: int,
        stop_ids: frozenset[int] = frozenset(),
    ) -> Generator[Chunk | Tokens, None, None]:
        """Read `ids` from the end in place and answer them; may be closed at every event."""
        assert self.why_not(ids, limit) is None, self.why_not(ids, limit)
        engine, account = self._box.engine, self._box.stack.resident.account
        assert account.end is not None
        # A pending commit belongs to the length that is given back.
        engine.settle()
        length, before = engine.length, engine.pictures
        sections = copy_sections(engine.cache_state())
        base = account.end.tokens
        aside = _Aside(self._box, base, self._others(len(ids) + limit))
        self.running = True
        try:
            write_sections(engine.cache_state(), account.end.tensors)
            engine.resume_at(base)
            engine.look(ids, pictures, base)
            yield from self._write(ids, rule, limit, stop_ids, aside)
        finally:
            write_blocks(engine.cache_state(), aside.blocks)
            write_sections(engine.cache_state(), sections)
            engine.resume_at(length)
            engine.pictures = before
            self.running = False

    def _write(
        self, ids: Ids, rule: Rule, limit: int, stop_ids: frozenset[int], aside: _Aside
    ) -> Generator[Chunk | Tokens, None, None]:
        engine, meter, logits = self._box.engine, self._box.meter, torch.empty(0)
        done = engine.length
        while done < len(ids):
            stop = min(len(ids), (done // engine.grid + 1) * engine.grid)
            if not aside.cover(stop):
                return
            logits = engine.prefill(ids[done:stop])
            meter.prefilled(done, stop)
            done = stop
            yield Chunk(done)
        rule.begin(ids)
        if not aside.cover(done):
            return
        for new in decode(engine, logits, rule, limit, stop_ids):
            done += len(new)
            meter.decoded(len(new))
            yield Tokens(new)
            if not aside.cover(done):
                return

    def _others(self, reach: int) -> int:
        """Rows in place up to here are some pooled conversation's, as far as rows up to `reach` go;
        0 when none are."""
        entries = self._box.stack.park.entries
        held = [min(e.top, reach + _MARGIN_ROWS) for e in entries]
        return max((t for t, e in zip(held, entries, strict=True) if t > e.high), default=0)


class _Aside:
    """Copies of rows in place that are others', made before they are written over."""

    def __init__(self, box: Box, base: int, stop: int) -> None:
        self._engine = box.engine
        self._done, self._stop = base, stop
        self.blocks: list[RowBlock] = []

    def cover(self, stop: int) -> bool:
        """Rows up to `stop`, and what a block may write past it, are copied; False without room."""
        stop = min(self._stop, stop + _MARGIN_ROWS)
        for begin, edge in block_spans(self._done, stop, self._engine.grid):
            block = try_copy(self._engine.cache_state(), begin, edge)
            if block is None:
                return False
            self.blocks.append(block)
            self._done = edge
        return True
