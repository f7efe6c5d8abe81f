"""Brings an entry back: every file is checked, and rows are summed again where they lie."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from cache.anchors import Tensors
from cache.disk.reader import PASSING
from cache.disk.shapes import NO_ROOM
from cache.disk.spent import Spent
from cache.disk.staging import Staging
from cache.format import Bad, Header, Layout, unsealed
from cache.loading import Loading
from cache.ports import Files, Model, Stop, Workers, never
from cache.spill.codec import Unpacking, unpack
from cache.spill.entry import Block, Copy, Entry, Piece
from cache.spill.names import BLOCK, COPY, YIELDED
from cache.spill.planes import carve, join
from cache.spill.shapes import FRAMES, Shapes
from cache.spill.sums import sums_of


@dataclass(slots=True)
class Read:
    """How a reading ended."""

    copies: dict[Copy, Tensors] = field(default_factory=dict)
    """On the engine's device."""
    nbytes: int = 0
    """What was read, as the budgets count it."""
    blocks_read: int = 0
    blocks_in_place: int = 0
    why: str = ""
    bad: bool = False
    """A file is no good: the entry has to go."""


@dataclass(slots=True)
class _Arrived:
    """A block whose file is whole."""

    block: Block
    layout: Layout
    image: memoryview
    planes: list[torch.Tensor] = field(default_factory=list)
    """Of each view; none when the file has the rows as they are."""
    work: Unpacking | None = None
    """The workers still fill the planes."""


class Reader:
    """Reads copies first, so that nothing is overwritten for an entry without any; then rows.

    While one file is checked and copied, the drive reads the next into the other buffer; while one
    block is put in place and summed there, the workers unpack the next.
    """

    def __init__(
        self,
        files: Files,
        shapes: Shapes,
        accepted: Collection[str],
        workers: Workers,
        raw: Staging,
        images: Staging,
        spent: Spent,
    ) -> None:
        """`accepted` are the fingerprints whose rows are what this engine would compute."""
        self.spent = spent
        self._files = files
        self._shapes = shapes
        self._accepted = accepted
        self._workers = workers
        self._raw = raw
        self._images = images

    def read(
        self,
        entry: Entry,
        copies: list[Copy],
        base: int,
        line: int,
        shared: int,
        model: Model,
        stop: Stop = never,
    ) -> Read:
        """The copies, and blocks of rows [base, line) into the model's views.

        Blocks reach up to the end of the one that `line` lies in. The first `shared` rows in place
        have the entry's tokens: what of them is the same is not read. `stop` ends it between two
        files.
        """
        read = Read()
        slots = [slot for _ in range(2) if (slot := self._images.take()) is not None]
        planes = [slot for _ in range(2) if (slot := self._raw.take()) is not None]
        try:
            if len(slots) < 2 or len(planes) < 2:
                read.why = "memory"
                return read
            targets: list[Copy | Block] = [
                *copies,
                *self._lacking(entry, base, line, shared, model, read),
            ]
            self._stream(targets, entry, model, slots, planes, read, stop)
            return read
        finally:
            for slot in slots:
                self._images.give(slot)
            for slot in planes:
                self._raw.give(slot)

    def _lacking(
        self, entry: Entry, base: int, line: int, shared: int, model: Model, read: Read
    ) -> list[Block]:
        """The blocks that are not in place."""
        lacking = list[Block]()
        for block in entry.up_to(line, base):
            if block.stop <= shared and self._in_place(block, model):
                read.blocks_in_place += 1
            else:
                lacking.append(block)
        return lacking

    def _in_place(self, block: Block, model: Model) -> bool:
        rows = [view.rows(block.start, block.stop) for view in model.cache_state().views]
        with self.spent.on("sums"):
            return tuple(sums_of(rows)) == block.piece.sums

    def _stream(
        self,
        targets: list[Copy | Block],
        entry: Entry,
        model: Model,
        slots: list[memoryview],
        planes: list[memoryview],
        read: Read,
        stop: Stop,
    ) -> None:
        flying, late = Loading(self._files), None
        if targets:
            flying.begin(targets[0].piece.name, slots[0])
        try:
            for number, target in enumerate(targets):
                if stop():
                    read.why = YIELDED
                    return
                with self.spent.on("drive"):
                    image = flying.wait()
                flying = Loading(self._files)
                if isinstance(image, OSError):
                    read.why = image.strerror or str(image)
                    read.bad = image.errno not in PASSING
                    return
                # The workers read from the buffer that the next file goes to.
                if self._failed(self._unpacked(late), read):
                    return
                if number + 1 < len(targets):
                    with self.spent.on("names"):
                        flying.begin(targets[number + 1].piece.name, slots[(number + 1) % 2])
                before, late, why = late, None, ""
                if isinstance(target, Copy):
                    why = self._copied(target, entry, image, model, read)
                else:
                    found = self._arrived(target, entry, image, planes[number % 2])
                    why, late = (found, None) if isinstance(found, str) else ("", found)
                if self._failed(self._placed_late(before, model, read) or why, read):
                    return
                if late is not None and late.work is None:
                    now, late = late, None
                    if self._failed(self._placed_late(now, model, read), read):
                        return
            self._failed(self._unpacked(late) or self._placed_late(late, model, read), read)
        except NO_ROOM:
            read.why = "memory"
        finally:
            flying.wait()
            self._unpacked(late)

    @staticmethod
    def _failed(why: str, read: Read) -> bool:
        """A file that is no good ends the reading."""
        read.why, read.bad = why, bool(why)
        return read.bad

    def _unpacked(self, arrived: _Arrived | None) -> str:
        """Wait for the workers; why a block's planes are no good."""
        if arrived is None or (work := arrived.work) is None:
            return ""
        arrived.work = None
        with self.spent.on("pack"):
            return work.wait()

    def _placed_late(self, arrived: _Arrived | None, model: Model, read: Read) -> str:
        """Put a block in place that has waited for its turn; why not. Raises NO_ROOM."""
        if arrived is None:
            return ""
        block = arrived.block
        if why := self._placed(block, arrived, model):
            return why
        read.nbytes += block.piece.weight
        read.blocks_read += 1
        return ""

    def _copied(self, copy: Copy, entry: Entry, image: memoryview, model: Model, read: Read) -> str:
        """Copies of the sections on the engine's device; why not. Raises NO_ROOM."""
        wanted = self._shapes.copy_meta(entry.key, copy.tokens, copy.kind)
        header = self._header(COPY, copy.piece, wanted, image)
        if isinstance(header, str):
            return header
        layout = self._shapes.copy(header.meta)
        with self.spent.on("checksum"):
            why = unsealed(header, image, layout)
        if why:
            return why
        with self.spent.on("copy"):
            tensors = tuple(
                torch.empty_like(section.tensor).copy_(tensor)
                for section, tensor in zip(
                    model.cache_state().sections, layout.tensors(image), strict=True
                )
            )
        with self.spent.on("sums"):
            same = tuple(sums_of(tensors)) == copy.piece.sums
        if not same:
            return "its sums are others"
        read.copies[copy] = tensors
        read.nbytes += copy.piece.weight
        return ""

    def _arrived(
        self, block: Block, entry: Entry, image: memoryview, slot: memoryview
    ) -> _Arrived | str:
        """A block's file, if it is whole and the one that is wanted; `slot` is for its planes."""
        frames = _frames(image)
        wanted = self._shapes.meta(entry.key, block.start, block.stop, frames)
        header = self._header(BLOCK, block.piece, wanted, image)
        if isinstance(header, str):
            return header
        count = block.stop - block.start
        if frames is None:
            layout = self._shapes.raw_block(header.meta, count)
        elif len(header.sections) == 1 and header.sections[0].nbytes <= len(image):
            layout = self._shapes.packed_block(header.meta, header.sections[0].nbytes)
        else:
            return "its sections are others"
        with self.spent.on("checksum"):
            why = unsealed(header, image, layout)
        if why:
            return why
        found = _Arrived(block, layout, image)
        if frames is not None:
            found.planes = carve(slot, self._shapes.planes(count))
            data = layout.tensors(image)[0].numpy().data
            flat = [plane for of_view in found.planes for plane in of_view]
            with self.spent.on("pack"):
                found.work = unpack(frames, data, flat, self._workers)
        return found

    def _placed(self, block: Block, arrived: _Arrived, model: Model) -> str:
        """Write a block's rows where they belong, and sum them there. Raises NO_ROOM."""
        rows = [view.rows(block.start, block.stop) for view in model.cache_state().views]
        with self.spent.on("copy"):
            if arrived.planes:
                for of_view, into in zip(arrived.planes, rows, strict=True):
                    join(of_view, into)
            else:
                for into, tensor in zip(rows, arrived.layout.tensors(arrived.image), strict=True):
                    into.copy_(tensor)
        with self.spent.on("sums"):
            same = tuple(sums_of(rows)) == block.piece.sums
        return "" if same else "its sums are others"

    def _header(
        self, kind: str, piece: Piece, wanted: dict[str, Any], image: memoryview
    ) -> Header | str:
        """A file's header, if it is the one that is wanted."""
        if len(image) != piece.nbytes:
            return f"it has {len(image)} bytes, not {piece.nbytes}"
        header = Header.parse(image)
        if isinstance(header, Bad):
            return header.why
        if header.kind != kind or header.nbytes != piece.nbytes:
            return "it is another file than its name says"
        if header.meta.get("fingerprint") not in self._accepted:
            return "it was computed by something else"
        own = dict(header.meta) | {"fingerprint": wanted["fingerprint"]}
        return header if own == wanted else "it is another file"


def _frames(image: memoryview) -> Any:
    """What a block's file says of its planes' frames; None when they lie as they are, or nothing
    can be told."""
    header = Header.parse(image)
    return None if isinstance(header, Bad) else header.meta.get(FRAMES)
