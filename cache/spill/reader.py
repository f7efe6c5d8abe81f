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
from cache.ports import Files, Model, Workers
from cache.spill.codec import CodecConfig, unpack
from cache.spill.entry import Block, Copy, Entry, Piece
from cache.spill.names import BLOCK, COPY
from cache.spill.planes import join
from cache.spill.shapes import FRAMES, Shapes
from cache.spill.sums import sums_of


@dataclass(slots=True)
class Read:
    """How a reading ended."""

    reached: int
    """Rows that are in place and right."""
    copies: dict[Copy, Tensors] = field(default_factory=dict)
    """On the engine's device."""
    nbytes: int = 0
    """What was read, as the budgets count it."""
    blocks_read: int = 0
    blocks_in_place: int = 0
    why: str = ""
    bad: bool = False
    """A file is no good: the entry has to go."""


class Reader:
    """Reads copies first, so that nothing is overwritten for an entry without any; then rows.

    While one file is checked, unpacked and copied, the drive reads the next into the other buffer.
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
        codec: CodecConfig,
    ) -> Read:
        """The copies, and blocks of rows [base, line) into the model's views.

        Blocks reach up to the end of the one that `line` lies in. The first `shared` rows in place
        have the entry's tokens: what of them is the same is not read.
        """
        read = Read(reached=base)
        slots = [slot for _ in range(2) if (slot := self._images.take()) is not None]
        raw = self._raw.take()
        try:
            if len(slots) < 2 or raw is None:
                read.why = "memory"
                return read
            targets: list[Copy | Block] = [
                *copies,
                *self._lacking(entry, base, line, shared, model, read),
            ]
            self._stream(targets, entry, model, codec, slots, raw, read)
            if not read.why:
                read.reached = line
            return read
        finally:
            for slot in slots:
                self._images.give(slot)
            if raw is not None:
                self._raw.give(raw)

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
        codec: CodecConfig,
        slots: list[memoryview],
        raw: memoryview,
        read: Read,
    ) -> None:
        flying = Loading(self._files)
        if targets:
            flying.begin(targets[0].piece.name, slots[0])
        for number, target in enumerate(targets):
            with self.spent.on("drive"):
                image = flying.wait()
            flying = Loading(self._files)
            if isinstance(image, OSError):
                read.why = image.strerror or str(image)
                read.bad = image.errno not in PASSING
                return
            if number + 1 < len(targets):
                with self.spent.on("names"):
                    flying.begin(targets[number + 1].piece.name, slots[(number + 1) % 2])
            try:
                if isinstance(target, Copy):
                    why = self._copied(target, entry, image, model, read)
                else:
                    why = self._placed(target, entry, image, model, codec, raw)
            except NO_ROOM:
                why, read.why = "", "memory"
            if why or read.why:
                flying.wait()
                read.why, read.bad = why or read.why, bool(why)
                return
            read.nbytes += target.piece.weight
            if isinstance(target, Block):
                read.blocks_read += 1
                read.reached = target.stop

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
        read.copies[copy] = tensors
        return "" if same else "its sums are others"

    def _placed(
        self,
        block: Block,
        entry: Entry,
        image: memoryview,
        model: Model,
        codec: CodecConfig,
        raw: memoryview,
    ) -> str:
        """Write a block's rows where they belong, and sum them there. Raises NO_ROOM."""
        frames = _frames(image)
        wanted = self._shapes.meta(entry.key, block.start, block.stop, frames)
        header = self._header(BLOCK, block.piece, wanted, image)
        if isinstance(header, str):
            return header
        rows = [view.rows(block.start, block.stop) for view in model.cache_state().views]
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
        if frames is None:
            with self.spent.on("copy"):
                for into, tensor in zip(rows, layout.tensors(image), strict=True):
                    into.copy_(tensor)
        elif why := self._unpacked(frames, layout, image, count, rows, raw):
            return why
        with self.spent.on("sums"):
            same = tuple(sums_of(rows)) == block.piece.sums
        return "" if same else "its sums are others"

    def _unpacked(
        self,
        frames: Any,
        layout: Layout,
        image: memoryview,
        count: int,
        rows: list[torch.Tensor],
        raw: memoryview,
    ) -> str:
        planes, at = list[torch.Tensor](), 0
        for number, nbytes in self._shapes.planes(count):
            size = number * nbytes
            flat = torch.frombuffer(raw, dtype=torch.uint8, count=size, offset=at)
            planes.append(flat.view(number, nbytes))
            at += size
        flat_planes = [plane for of_view in planes for plane in of_view]
        data = layout.tensors(image)[0].numpy().data
        with self.spent.on("pack"):
            why = unpack(frames, data, flat_planes, self._workers).wait()
        if why:
            return why
        with self.spent.on("copy"):
            for of_view, into in zip(planes, rows, strict=True):
                join(of_view, into)
        return ""

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
