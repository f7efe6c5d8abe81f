"""Files on their way to the drive: one is packed while the one before it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cache.disk.shapes import NO_ROOM
from cache.disk.spent import Spent
from cache.disk.staging import Staging
from cache.format import Layout
from cache.ports import Files, Pending, Workers
from cache.saving import Saving, code_of
from cache.spill.codec import CodecConfig, Packed, pack
from cache.spill.planes import carve, split
from cache.spill.shapes import Shapes

Landed = Callable[[int], None]
"""Told the size of a file that is whole and has its name."""


@dataclass(slots=True)
class _Packing:
    """A block whose planes lie in a slot, in the workers' hands."""

    name: str
    key: int
    start: int
    stop: int
    pending: Pending[Packed]
    slot: memoryview
    landed: Landed


@dataclass(slots=True)
class _Flying:
    """A file that the drive takes from a slot."""

    saving: Saving
    slot: memoryview
    nbytes: int
    landed: Landed


class Pipeline:
    """Blocks and copies of one save, in the order they were put in.

    Each step says why it failed, or nothing; after a failure only `abandon` may follow. Names are
    never in anybody's way: a file of that name has the same content, or lost it.
    """

    def __init__(
        self,
        files: Files,
        shapes: Shapes,
        workers: Workers,
        codec: CodecConfig,
        raw: Staging,
        images: Staging,
        free_bytes: int,
        spent: Spent,
    ) -> None:
        """`raw` and `images` have two buffers each; writes leave `free_bytes` on the drive."""
        self._files = files
        self._shapes = shapes
        self._workers = workers
        self._codec = codec
        self._raw = raw
        self._images = images
        self._free_bytes = free_bytes
        self._spent = spent
        self._packing: _Packing | None = None
        self._flying: _Flying | None = None

    def block(
        self, name: str, key: int, start: int, stop: int, rows: list[torch.Tensor], landed: Landed
    ) -> str:
        """Take rows [start, stop) out of the engine; they are written while the next are taken."""
        if self._codec.mode == "raw":
            return self._as_it_is(name, key, start, stop, rows, landed)
        slot = self._raw.take()
        if slot is None:
            return "staging"
        planes = carve(slot, self._shapes.planes(stop - start))
        try:
            with self._spent.on("copy"):
                for tensor, into in zip(rows, planes, strict=True):
                    split(tensor, into)
        except NO_ROOM:
            self._raw.give(slot)
            return "memory"
        flat = [plane for of_view in planes for plane in of_view]
        pending = pack(flat, self._codec, self._workers)
        why = self._packed()
        self._packing = _Packing(name, key, start, stop, pending, slot, landed)
        return why

    def copy(
        self, name: str, layout: Layout, tensors: Sequence[torch.Tensor], landed: Landed
    ) -> str:
        """Write copies of all sections."""
        return self._packed() or self._filled(name, layout, tensors, landed)

    def finish(self) -> str:
        """Everything that was put in is whole and has its name."""
        return self._packed() or self._land()

    def abandon(self) -> None:
        """Stop; what was on its way is given up. Never raises."""
        packing, self._packing = self._packing, None
        if packing is not None:
            packing.pending.wait()
            self._raw.give(packing.slot)
        flying, self._flying = self._flying, None
        if flying is not None:
            flying.saving.abandon()
            self._images.give(flying.slot)

    def _as_it_is(
        self, name: str, key: int, start: int, stop: int, rows: list[torch.Tensor], landed: Landed
    ) -> str:
        layout = self._shapes.raw_block(self._shapes.meta(key, start, stop, None), stop - start)
        return self._filled(name, layout, rows, landed)

    def _filled(
        self, name: str, layout: Layout, tensors: Sequence[torch.Tensor], landed: Landed
    ) -> str:
        slot = self._images.take()
        if slot is None:
            return "staging"
        try:
            with self._spent.on("copy"):
                for tensor, into in zip(tensors, layout.tensors(slot), strict=True):
                    into.copy_(tensor)
        except NO_ROOM:
            self._images.give(slot)
            return "memory"
        return self._begin(name, layout, slot, landed)

    def _packed(self) -> str:
        """Send the block off that the workers have."""
        packing, self._packing = self._packing, None
        if packing is None:
            return ""
        with self._spent.on("pack"):
            packed = packing.pending.wait()
        meta = self._shapes.meta(packing.key, packing.start, packing.stop, packed.frames)
        layout = self._shapes.packed_block(meta, packed.nbytes)
        slot = self._images.take()
        if slot is not None:
            with self._spent.on("copy"):
                _write(packed, layout.tensors(slot)[0].numpy().data)
        self._raw.give(packing.slot)
        if slot is None:
            return "staging"
        return self._begin(packing.name, layout, slot, packing.landed)

    def _begin(self, name: str, layout: Layout, slot: memoryview, landed: Landed) -> str:
        with self._spent.on("checksum"):
            image = layout.seal(slot)
        why = self._land()
        try:
            why = why or self._refused(len(image))
            if not why:
                with self._spent.on("names"):
                    saving = Saving.begin(self._files, name, image)
                self._flying = _Flying(saving, slot, len(image), landed)
                return ""
        except OSError as error:
            why = code_of(error)
        self._images.give(slot)
        return why

    def _land(self) -> str:
        """Wait for the file that the drive has, and give it its name."""
        flying, self._flying = self._flying, None
        if flying is None:
            return ""
        try:
            with self._spent.on("drive"):
                flying.saving.arrive()
            with self._spent.on("fsync"):
                flying.saving.finish()
            with self._spent.on("names"):
                flying.saving.publish()
        except OSError as error:
            flying.saving.abandon()
            return code_of(error)
        finally:
            self._images.give(flying.slot)
        flying.landed(flying.nbytes)
        return ""

    def _refused(self, nbytes: int) -> str:
        """Why so many bytes must not be written now. Raises OSError."""
        return "floor" if self._files.free_bytes() - nbytes < self._free_bytes else ""


def _write(packed: Packed, into: memoryview) -> None:
    at = 0
    for part in packed.parts:
        into[at : at + len(part)] = part
        at += len(part)
