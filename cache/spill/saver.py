"""Saves conversations: what changed is written, what did not is looked at."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cache.anchors import Tensors
from cache.disk.spent import Spent
from cache.disk.staging import Staging
from cache.ports import Files, Stop, Workers
from cache.rows import block_spans
from cache.saving import code_of
from cache.source import Source
from cache.spill.config import SpillConfig
from cache.spill.entry import Block, Copy, Entry, Kind, Loose, Piece
from cache.spill.names import YIELDED, block_name, copy_name
from cache.spill.pipeline import Landed, Pipeline
from cache.spill.shapes import Shapes
from cache.spill.sums import Sums, sums_of
from cache.types import Gate


@dataclass(slots=True)
class Saved:
    """How far a save has come: the blocks and copies of the conversation that are on the drive."""

    blocks: dict[int, Block] = field(default_factory=dict)
    """By the row each starts at."""
    copies: list[Copy] = field(default_factory=list)
    kept: int = 0
    """Files that were there already."""
    written: int = 0
    nbytes: int = 0
    """Of the files written, as the budgets count them."""
    why: str = ""
    """Why it is not whole: a reason, or `yielded`."""


class Saver:
    """Takes a conversation out of memory, a block at a time; the manifest is the caller's."""

    def __init__(
        self,
        files: Files,
        shapes: Shapes,
        workers: Workers,
        raw: Staging,
        images: Staging,
        spent: Spent,
    ) -> None:
        self.spent = spent
        self._files = files
        self._shapes = shapes
        self._workers = workers
        self._raw = raw
        self._images = images

    def save(self, entry: Entry, source: Source, config: SpillConfig, stop: Stop) -> Saved:
        """Write what of the source the entry has not. When it is not whole, blocks that were
        written are the entry's `loose` ones."""
        saved, before = Saved(), dict(entry.loose)
        line = Pipeline(
            *(self._files, self._shapes, self._workers, config.codec, self._raw, self._images),
            config.free_bytes,
            self.spent,
        )
        try:
            saved.why = self._blocks(line, entry, source, saved, stop)
            saved.why = saved.why or self._copies(line, entry, source, config, saved)
        except OSError as error:
            saved.why = code_of(error)
        if saved.why in ("", YIELDED):
            saved.why = line.finish() or saved.why
        if saved.why not in ("", YIELDED):
            line.abandon()
        if saved.why:
            own = {block.start: block for block in entry.blocks}
            ids = source.account.ids
            entry.loose = before | {
                start: Loose(block, ids[start : block.stop].copy())
                for start, block in saved.blocks.items()
                if own.get(start) is not block
            }
        return saved

    def refused(self, config: SpillConfig) -> str:
        """Why nothing can be written now: asked before a row is summed."""
        try:
            free = self._files.free_bytes()
        except OSError as error:
            return code_of(error)
        return "floor" if free <= config.free_bytes else ""

    def _blocks(
        self, line: Pipeline, entry: Entry, source: Source, saved: Saved, stop: Stop
    ) -> str:
        ids = source.account.ids
        for start, end in block_spans(0, len(ids), self._shapes.block_rows):
            rows = source.rows(start, end)
            with self.spent.on("sums"):
                sums = tuple(sums_of(rows))
            kept = self._kept(entry, source, start, end, sums)
            if kept is not None:
                saved.blocks[start] = kept
                saved.kept += 1
                continue
            if stop():
                return YIELDED
            name = block_name(entry.key, start, end, ids[start:end], sums)
            landed = self._landed(saved, name, start, end, sums)
            if why := line.block(name, entry.key, start, end, rows, landed):
                return why
        return ""

    def _landed(
        self, saved: Saved, name: str, start: int, stop: int, sums: tuple[Sums, ...]
    ) -> Landed:
        def landed(nbytes: int) -> None:
            weight = self._shapes.block_weight(stop - start, nbytes)
            saved.blocks[start] = Block(start, stop, Piece(name, nbytes, weight, sums))
            saved.written += 1
            saved.nbytes += weight

        return landed

    def _kept(
        self, entry: Entry, source: Source, start: int, stop: int, sums: tuple[Sums, ...]
    ) -> Block | None:
        """The entry's block of these rows, if its file is there and holds the very same."""
        ids = source.account.ids[start:stop]
        loose = entry.loose.get(start)
        found = [(loose.block, loose.ids)] if loose is not None else []
        if entry.account is not None:
            own = [block for block in entry.blocks if block.start == start]
            found += [(block, entry.account.ids[start : block.stop]) for block in own]
        for block, its in found:
            same = block.stop == stop and block.piece.sums == sums and np.array_equal(its, ids)
            if same and self._there(block.piece):
                return block
        return None

    def _there(self, piece: Piece) -> bool:
        """Whether a file is there, with its size: what a manifest says is not enough.

        Raises OSError where the drive won't tell. It would be written over then, perhaps at another
        size, while the older manifest says what it was.
        """
        try:
            return self._files.size(piece.name) == piece.nbytes
        except FileNotFoundError:
            return False

    def _copies(
        self, line: Pipeline, entry: Entry, source: Source, config: SpillConfig, saved: Saved
    ) -> str:
        """The end anchor and the newest grid anchors; those that only the drive has stay there."""
        account = source.account
        wanted: dict[tuple[int, Kind], tuple[Gate, Tensors] | Copy] = {}
        same = self._same_rows(entry, source, saved)
        for copy in entry.copies:
            lasts = copy.tokens == account.valid == same if copy.kind == "end" else True
            if copy.tokens <= same and lasts and self._there(copy.piece):
                wanted[copy.tokens, copy.kind] = copy
        for anchor in account.anchors:
            if anchor.kind == "grid":
                wanted[anchor.tokens, "grid"] = (anchor.gate, anchor.tensors)
        if account.end is not None:
            wanted[account.end.tokens, "end"] = (Gate.GREEDY, account.end.tensors)
        grid = sorted(at for at in wanted if at[1] == "grid")
        ends = sorted(at for at in wanted if at[1] == "end")
        kept = grid[max(0, len(grid) - config.anchors_kept) :] if config.anchors_kept else []
        for tokens, kind in [*kept, *ends[-1:]]:
            have = wanted[tokens, kind]
            if isinstance(have, Copy):
                saved.copies.append(have)
                saved.kept += 1
            elif why := self._copy(line, entry, tokens, kind, *have, saved):
                return why
        return ""

    def _same_rows(self, entry: Entry, source: Source, saved: Saved) -> int:
        """Rows of the entry's blocks that are the source's as well, from the first one on."""
        rows = 0
        for block in entry.blocks:
            if saved.blocks.get(block.start) is not block:
                break
            rows = block.stop
        return rows

    def _copy(
        self,
        line: Pipeline,
        entry: Entry,
        tokens: int,
        kind: Kind,
        gate: Gate,
        tensors: Tensors,
        saved: Saved,
    ) -> str:
        with self.spent.on("sums"):
            sums = tuple(sums_of(tensors))
        name = copy_name(entry.key, tokens, kind, sums)
        for old in entry.copies:
            same = old.piece.name == name and old.gate is gate and old.piece.sums == sums
            if same and self._there(old.piece):
                saved.copies.append(old)
                saved.kept += 1
                return ""

        def landed(nbytes: int) -> None:
            piece = Piece(name, nbytes, self._shapes.copy_weight(nbytes), sums)
            saved.copies.append(Copy(tokens, kind, gate, piece))
            saved.written += 1
            saved.nbytes += piece.weight

        layout = self._shapes.copy(self._shapes.copy_meta(entry.key, tokens, kind))
        return line.copy(name, layout, tensors, landed)
