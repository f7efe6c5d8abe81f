"""The reader of the tier: files stream into an engine, each checked before a byte of it does."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from cache.anchors import Tensors
from cache.disk.index import Entry, chunk_name
from cache.disk.shapes import ANCHOR, NO_ROOM, ROWS, Shapes, has_ids, put_chunk
from cache.disk.spent import Spent
from cache.disk.staging import Staging
from cache.format import Bad, Header, Layout, tensors_of, unsealed
from cache.loading import Loading
from cache.ports import Files, Model
from cache.types import CacheState, Ids

PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""Errors that say nothing about the file."""


@dataclass(frozen=True, slots=True)
class Target:
    """A file that is to be read: an anchor's at a line, or the chunk that ends there."""

    kind: str
    hash: int
    stop: int
    name: str


@dataclass(frozen=True, slots=True)
class Read:
    """How a reading ended."""

    sections: Tensors | None
    """Copies of all sections, on the engine's device; None when it failed."""
    why: str = ""
    bad: Target | None = None
    """The file that is no good and has to go."""
    reached: int = 0
    """Rows that are in place and right."""


class Reader:
    """Reads an entry's anchor and the chunks above the rows in place.

    While one file is checked and copied, the drive reads the next into the other buffer.
    """

    def __init__(
        self,
        files: Files,
        shapes: Shapes,
        accepted: Collection[str],
        staging: Staging,
        spent: Spent,
    ) -> None:
        """`accepted` are the fingerprints whose rows are what this engine would compute."""
        self.spent = spent
        self._files = files
        self._shapes = shapes
        self._accepted = accepted
        self._staging = staging

    def read(self, entry: Entry, ids: Ids, base: int, model: Model) -> Read:
        """Rows [base, line) into the model's views; the anchor's sections as copies.

        The anchor comes first: when its file is bad, nothing was overwritten.
        """
        slots = [slot for _ in range(2) if (slot := self._staging.take()) is not None]
        try:
            if len(slots) < 2:
                return Read(None, "memory", reached=base)
            return self._stream(list(self._targets(entry, base)), entry, ids, model, slots)
        finally:
            for slot in slots:
                self._staging.give(slot)

    def _targets(self, entry: Entry, base: int) -> Iterator[Target]:
        yield Target(ANCHOR, entry.hash, entry.line, entry.name)
        grid = self._shapes.grid
        for number, chunk in enumerate(entry.chunks, 1):
            if number * grid > base:
                yield Target(ROWS, chunk, number * grid, chunk_name(chunk))

    def _stream(
        self, targets: list[Target], entry: Entry, ids: Ids, model: Model, slots: list[memoryview]
    ) -> Read:
        state = model.cache_state()
        sections: Tensors | None = None
        reached = targets[1].stop - self._shapes.grid if len(targets) > 1 else entry.line
        flying = self._begin(targets[0], slots[0])
        for number, target in enumerate(targets):
            with self.spent.on("drive"):
                image = flying.wait()
            if number + 1 < len(targets) and not isinstance(image, OSError):
                flying = self._begin(targets[number + 1], slots[(number + 1) % 2])
            else:
                flying = Loading(self._files)
            if isinstance(image, OSError):
                bad = None if image.errno in PASSING else target
                return Read(None, image.strerror or str(image), bad, reached)
            with self.spent.on("checksum"):
                found = self._checked(target, entry, ids, image)
            if isinstance(found, str):
                flying.wait()
                return Read(None, found, target, reached)
            try:
                with self.spent.on("copy"):
                    if target.kind == ROWS:
                        put_chunk(found, state, target.stop - self._shapes.grid, target.stop)
                        reached = target.stop
                    else:
                        sections = _copies(found, state)
            except NO_ROOM:
                flying.wait()
                return Read(None, "memory", reached=reached)
        return Read(sections, reached=reached)

    def _begin(self, target: Target, slot: memoryview) -> Loading:
        flight = Loading(self._files)
        with self.spent.on("names"):
            flight.begin(target.name, slot)
        return flight

    def _checked(
        self, target: Target, entry: Entry, ids: Ids, image: memoryview
    ) -> list[torch.Tensor] | str:
        """The file's sections, or why it is not the one that is wanted, whole and unchanged."""
        header = Header.parse(image)
        if isinstance(header, Bad):
            return header.why
        shapes = self._shapes
        parts = shapes.rows if target.kind == ROWS else shapes.sections
        layout = Layout(target.kind, header.meta, parts, shapes.renamed, shapes.absent)
        if why := self._strange(target, entry, header) or unsealed(header, image, layout):
            return why
        tensors = tensors_of(header, image, layout)
        start = target.stop - shapes.grid
        if target.kind == ROWS and not has_ids(tensors, ids, start, target.stop):
            return "it holds other tokens"
        named = bool((ids[: target.stop] < 0).any())
        if header.version == 1 and shapes.absent and named:
            return "it was written before there was room for what such a prompt needs"
        return tensors

    def _strange(self, target: Target, entry: Entry, header: Header) -> str:
        """What of its meta is not the wanted file's."""
        meta = header.meta
        if meta.get("fingerprint") not in self._accepted:
            return "it was computed by something else"
        wanted: dict[str, object] = {"hash": f"{target.hash:016x}", "grid": self._shapes.grid}
        if target.kind == ROWS:
            wanted |= {"start": target.stop - self._shapes.grid, "stop": target.stop}
        else:
            wanted |= {"line": target.stop, "chunks": [f"{name:016x}" for name in entry.chunks]}
        return "it is another file" if any(meta.get(k) != v for k, v in wanted.items()) else ""


def _copies(tensors: list[torch.Tensor], state: CacheState) -> Tensors:
    """Copies of an anchor's sections where the state's own lie. Raises NO_ROOM."""
    return tuple(
        torch.empty_like(section.tensor).copy_(tensor)
        for section, tensor in zip(state.sections, tensors, strict=True)
    )
