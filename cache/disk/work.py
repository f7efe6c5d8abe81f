"""The writer's side of the tier: files are written and removed in the steps of a job."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from cache.disk.index import Chunk, Entry, anchor_name, chunk_name
from cache.disk.plan import Done, Plan, Result, Staged, Stuck
from cache.disk.shapes import ANCHOR, NO_ROOM, ROWS, Shapes, fill_chunk
from cache.disk.spent import Spent
from cache.disk.staging import Staging
from cache.format import Layout, Saving, write_record
from cache.ports import Files, Job
from cache.saving import TMP, code_of

COUNTS = "counts"
"""Name and kind of the record of counts and uses."""


class Work:
    """What is to be done to the files, one thing after another, whichever job runs.

    Only its steps touch the drive for writing. Results go to `results`, for the engine's thread.
    """

    def __init__(
        self,
        files: Files,
        shapes: Shapes,
        anchors: Staging,
        chunks: Staging,
        free_bytes: Callable[[], int],
        names: set[str],
        spent: Spent,
        give_way: Callable[[], None],
    ) -> None:
        """`names` are the chunk files that are there; `free_bytes` a write must leave free."""
        self.spent = spent
        self._files = files
        self._shapes = shapes
        self._anchors = anchors
        self._chunks = chunks
        self._free_bytes = free_bytes
        self._names = names
        self._give_way = give_way
        """Called before a file is begun: nothing is held then."""
        self._todo: deque[Callable[[], Job]] = deque()
        self._records: dict[str, Mapping[str, Any]] = {}
        self._running = False
        self.results: deque[Result] = deque()
        self.reserved: set[str] = set()
        """Names that somebody else's files have: they are never written to."""
        self._left: set[str] = set()
        """Names that may still be there although they were to go: they are tried again."""

    def job(self) -> Job:
        """Do all that is to be done. Of several at once the first does it all."""
        if self._running:
            return
        self._running = True
        try:
            if self._left and self._todo:
                yield from self._unlink(sorted(self._left), again=True)
            while self._todo:
                yield from self._todo.popleft()()
        finally:
            self._running = False

    # what can be asked for

    def anchor(self, plan: Plan, staged: Staged, layout: Layout, slot: memoryview) -> None:
        """Write the anchor that lies in a slot under a passing name, and free the slot."""
        self._todo.append(lambda: self._anchor(plan, staged, layout, slot))

    def rows(self, plan: Plan) -> None:
        """Write the chunks of a plan whose prefill is over, and publish its anchors."""
        self._todo.append(lambda: self._rows(plan))

    def unlink(self, names: list[str]) -> None:
        """Remove files."""
        if names:
            self._todo.append(lambda: self._unlink(names))

    def record(self, name: str, meta: Mapping[str, Any]) -> None:
        """Write a record; one of its name that waits to be written is replaced by the newer one."""
        self._records[name] = meta
        # The job may be taking the older one this very moment: whoever finds none does nothing.
        self._todo.append(lambda: self._write_record(name))

    # steps

    def _anchor(self, plan: Plan, staged: Staged, layout: Layout, slot: memoryview) -> Job:
        saving: Saving | None = None
        name = anchor_name(plan.chunks(staged.line)[-1])
        try:
            self._give_way()
            staged.why = plan.stopped or self._refused(name, layout.nbytes)
            if staged.why:
                return
            image = self._sealed(layout, slot)
            saving = self._saving(name, image)
            yield
            self._finished(saving)
            staged.saving, staged.nbytes = saving, len(image)
        except OSError as error:
            staged.why = code_of(error)
            self._abandon(name, saving)
        finally:
            self._anchors.give(slot)

    def _rows(self, plan: Plan) -> Job:
        done = Done(plan)
        ready = [staged for staged in plan.staged if staged.saving is not None]
        top = max((staged.line for staged in ready), default=0)
        slots = [slot for _ in range(2) if (slot := self._chunks.take()) is not None]
        why = "" if len(slots) == 2 else "memory"
        flying: tuple[Saving, Chunk] | None = None
        for name, stop in self._missing(plan, top) if not why else ():
            yield
            # One is copied and summed while the drive takes the other. The next is begun when that
            # one is synced and named: a sync waits for whatever is being written beside it.
            image, why = self._copied(plan, name, stop, slots[0])
            why, flying = self._landed(flying, done) or why, None
            if image is None or why:
                break
            yield
            flying, why = self._begun(image, name, stop)
            if why:
                break
            slots.reverse()
        why = self._landed(flying, done) or why
        for slot in slots:
            self._chunks.give(slot)
        yield
        self._publish(done, ready, top, why)
        self.results.append(done)

    def _missing(self, plan: Plan, line: int) -> list[tuple[int, int]]:
        """(hash, end) of the chunks up to a line that have no file."""
        return [(name, stop) for name, stop in plan.below(line) if self._lacks(name)]

    def _lacks(self, chunk: int) -> bool:
        return chunk_name(chunk) not in self._names

    def _copied(
        self, plan: Plan, name: int, stop: int, slot: memoryview
    ) -> tuple[memoryview | None, str]:
        """A chunk's file as it will lie on the drive, or why its rows can't be had."""
        layout = self._shapes.chunk(name, stop)
        tensors, start = layout.tensors(slot), stop - self._shapes.grid
        with self.spent.on("copy"), plan.model.device_calls():
            if plan.stopped or stop > plan.fence:
                return None, plan.stopped or "window"
            try:
                fill_chunk(tensors, plan.ids, plan.model.cache_state(), start, stop)
            except NO_ROOM:
                return None, "memory"
        return self._sealed(layout, slot), ""

    def _sealed(self, layout: Layout, slot: memoryview) -> memoryview:
        with self.spent.on("checksum"):
            return layout.seal(slot)

    def _finished(self, saving: Saving) -> None:
        """Wait for a file until it is on the drive. Raises OSError."""
        with self.spent.on("drive"):
            saving.arrive()
        with self.spent.on("fsync"):
            saving.finish()

    def _saving(self, name: str, image: memoryview) -> Saving:
        """A file that is being written. Raises OSError."""
        with self.spent.on("names"):
            saving = Saving.begin(self._files, name, image)
        self._left.discard(name + TMP)
        return saving

    def _abandon(self, name: str, saving: Saving | None) -> None:
        """A file is given up; what the drive would not remove now is tried again."""
        if saving is not None:
            saving.abandon()
        self._left.add(name + TMP)

    def _begun(
        self, image: memoryview, name: int, stop: int
    ) -> tuple[tuple[Saving, Chunk] | None, str]:
        self._give_way()
        chunk = Chunk(name, stop, self._shapes.weight(ROWS, len(image)))
        if why := self._refused(chunk.name, len(image)):
            return None, why
        try:
            return (self._saving(chunk.name, image), chunk), ""
        except OSError as error:
            self._abandon(chunk.name, None)
            return None, code_of(error)

    def _landed(self, flying: tuple[Saving, Chunk] | None, done: Done) -> str:
        """Wait for a chunk's file and give it its name; why it has none."""
        if flying is None:
            return ""
        saving, chunk = flying
        try:
            self._finished(saving)
            with self.spent.on("names"):
                saving.publish()
        except OSError as error:
            self._abandon(chunk.name, saving)
            return code_of(error)
        self._left.discard(chunk.name)
        self._names.add(chunk.name)
        done.chunks.append(chunk)
        return ""

    def _publish(self, done: Done, ready: list[Staged], top: int, why: str) -> None:
        """Give the anchors their names whose chunks are all there, once those names are safe."""
        plan = done.plan
        missing = self._missing(plan, top)
        whole = missing[0][1] - self._shapes.grid if missing else top
        reached = 0 if plan.stopped else whole
        for staged in ready:
            staged.why = "" if staged.line <= reached else plan.stopped or why or "window"
        held = [staged for staged in ready if not staged.why]
        with self.spent.on("names"):
            failed = self._named(held) if held else ""
        if failed:
            for staged in held:
                staged.why = failed
            # Some may have their names by now; nobody was told, so nobody counts on them.
            self.unlink([anchor_name(plan.chunks(staged.line)[-1]) for staged in held])
        for staged in ready:
            name = anchor_name(plan.chunks(staged.line)[-1])
            if staged.why:
                self._abandon(name, staged.saving)
            else:
                self._left.discard(name)
        done.entries = [self._entry(plan, staged) for staged in held if not staged.why]
        done.dropped = [(staged.line, staged.why) for staged in plan.staged if staged.why]
        told = {staged.line for staged in plan.staged}
        done.dropped += [(n, plan.stopped or "cancelled") for n in plan.lines if n not in told]

    def _named(self, held: list[Staged]) -> str:
        """Publish these, after the names of all chunks and before anybody counts on them."""
        try:
            self._files.fsyncdir()
            for staged in held:
                assert staged.saving is not None
                staged.saving.publish()
            self._files.fsyncdir()
        except OSError as error:
            return code_of(error)
        return ""

    def _entry(self, plan: Plan, staged: Staged) -> Entry:
        chunks, line = plan.chunks(staged.line), staged.line
        nbytes = self._shapes.weight(ANCHOR, staged.nbytes)
        return Entry(chunks[-1], line, chunks, nbytes, plan.named(line))

    def _unlink(self, names: list[str], *, again: bool = False) -> Job:
        for name in names:
            yield
            try:
                self._files.unlink(name)
                self._left.discard(name)
            except FileNotFoundError:
                self._left.discard(name)
            except OSError as error:
                self._left.add(name)
                if not again:
                    self.results.append(Stuck(name, code_of(error)))
            self._names.discard(name)
        try:
            # What was cleared must not come back with the power.
            self._files.fsyncdir()
        except OSError as error:
            self.results.append(Stuck("", code_of(error)))

    def _write_record(self, name: str) -> Job:
        yield
        meta = self._records.pop(name, None)
        if meta is None:
            return
        self._left.discard(name + TMP)
        if why := write_record(self._files, name, name, meta):
            self._left.add(name + TMP)
            self.results.append(Stuck(name, why))

    def _refused(self, name: str, nbytes: int) -> str:
        """Why a file must not be written: its name is taken, or others are left the space."""
        if name in self.reserved:
            return "foreign"
        try:
            free = self._files.free_bytes()
        except OSError as error:
            return code_of(error)
        return "floor" if free - nbytes < self._free_bytes() else ""
