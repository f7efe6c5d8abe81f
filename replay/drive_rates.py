"""What the disk tier saves and restores a second, beside raw direct I/O of the same bytes"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cache.account import Account
from cache.anchors import AnchorConfig
from cache.direct import DirectFiles
from cache.disk.config import DiskConfig
from cache.disk.open import Identity, open_tier
from cache.disk.shapes import ANCHOR, ROWS, Shapes
from cache.disk.tier import DiskTier
from cache.disk.writer import DiskWriter
from cache.host import SystemClock, ThreadJobs
from cache.ports import PAGE
from cache.types import Ask, Refusal
from engine.bad import BadInput
from replay.bulk import Bulk, random_ids
from replay.raw_io import RAW, RawFile
from replay.rounds import Changed, Parts, Round, in_order, timed
from sim.profile import Profile


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a bench takes, nearly: told before anything of it is made."""

    chunks: int
    chunk_bytes: int
    anchor_bytes: int

    @classmethod
    def of(cls, board: Profile, wanted_bytes: float) -> Sizes:
        """About so many bytes of rows, in whole chunks, one at least."""
        rows_bytes = board.grid * board.row_bytes
        chunks = max(1, round(wanted_bytes / rows_bytes))
        # Headers, token ids, and the names of the chunks below an anchor.
        more = 8 * PAGE + 4 * board.grid
        return cls(chunks, rows_bytes + more, board.anchor_bytes + more + 32 * chunks)

    @property
    def nbytes(self) -> int:
        """Of all files of one save."""
        return self.chunks * self.chunk_bytes + self.anchor_bytes

    @property
    def memory_bytes(self) -> int:
        """Rows and sections, two copies of those, six staging buffers, and the raw one."""
        slots = 3 * self.chunk_bytes + 2 * self.anchor_bytes
        reading = 2 * max(self.chunk_bytes, self.anchor_bytes)
        return self.nbytes + 2 * self.anchor_bytes + slots + reading

    @property
    def drive_bytes(self) -> int:
        """Both kinds of the same bytes at once."""
        return 2 * self.nbytes


class Bench:
    """A tier and a raw file beside it on one drive, and a model whose bytes go there and back."""

    def __init__(self, folder: Path, board: Profile, sizes: Sizes, seed: int) -> None:
        """Raises BadInput where the folder or the memory won't do."""
        self._clock, self._jobs = SystemClock(), ThreadJobs()
        self._files, self._beside = DirectFiles(folder / "tier"), DirectFiles(folder / RAW)
        self.top = sizes.chunks * board.grid
        try:
            self.model = Bulk(board.grid, self.top, board.cost, seed)
            shapes = Shapes(self.model, "")
            step = shapes.bytes_of(ROWS)
            self.nbytes = sizes.chunks * step + shapes.bytes_of(ANCHOR, sizes.chunks)
            """Of all files of one save."""
            self._raw = RawFile(self._beside, self._clock, step, seed + 1)
        except (RuntimeError, MemoryError, OSError) as error:
            raise BadInput("--gib", None, f"not enough memory: {error}") from None
        self._ask = Ask(random_ids(self.top + 1, seed), "check")
        self.tier = self._opened()

    def _opened(self) -> DiskTier:
        config = DiskConfig(
            budget_bytes=2 * self.nbytes,
            min_free_bytes=0,
            floor_bytes=0,
            head_anchors=1,
            tokens_min=1,
        )
        identity = Identity("0" * 64, lambda files: ())
        found = open_tier(self._files, self._clock, self._jobs, config, self.model, identity)
        if isinstance(found, Refusal):
            raise BadInput("--dir", None, f"{found.name}: {found.why}")
        return found

    @property
    def said(self) -> str:
        """Why files go through the page cache; "" while none had to."""
        return self._files.said or self._beside.said

    def close(self) -> None:
        """End everything that writes, what is under way too."""
        self.tier.clear()
        self._jobs.close()
        self.tier.close()
        for files in (self._files, self._beside):
            files.close_all()

    def round(self, *, ours_first: bool) -> Round:
        """All four measurements, raw ones and the tier's in this order or the other."""
        sums = self.model.sums(self.top)
        raw, nbytes = self._raw, self.nbytes
        write, raw_write = in_order(self._save, lambda: raw.write(nbytes), ours_first)
        self.model.wipe()
        restore = partial(self._restore, sums)
        read, raw_read = in_order(restore, lambda: raw.read(nbytes), ours_first)
        self.tier.clear()
        self._jobs.drain()
        self.tier.keeper.absorb()
        self._raw.remove()
        return Round(ours_first, self.nbytes, write, raw_write, read, raw_read)

    # the tier

    def _save(self) -> Parts:
        """From the moment the prefill is at its last line until all is acknowledged."""
        grid, tier = self.model.grid, self.tier
        writer = DiskWriter(tier, self.model)
        writer.begin(self._ask, self._ask.ids, 0, clean=True)
        for stop in range(grid, self.top, grid):
            writer.passed(stop)
        with timed(self._clock, lambda: tier.stats()["write_s"]) as parts:
            writer.passed(self.top)
            writer.prefilled()
            self._jobs.drain()
            tier.keeper.absorb()
        # What it asks to be written now, the counts, is nobody's time.
        self._jobs.drain()
        dropped = [event.why for event in tier.events() if event.event in ("drop", "stuck")]
        if dropped or not tier.index.entries:
            why = f"nothing was saved: {', '.join(dropped) or 'no entry'}"
            raise BadInput("--dir", None, why)
        return parts

    def _restore(self, sums: list[int]) -> Parts:
        """From the offer's entry to all rows in place and the sections copied."""
        account = Account.empty(self.model.window, AnchorConfig())
        offer = self.tier.offer(self._ask, account, self.model.cost())
        assert offer is not None and offer.line.tokens == self.top
        with timed(self._clock, lambda: self.tier.stats()["read_s"]) as parts:
            whole = offer.entry.bring(self.model, self.top)
        self._jobs.drain()
        sections = offer.entry.sections
        if not whole or sections is None:
            why = [event.why for event in self.tier.events() if event.event in ("fail", "damage")]
            raise BadInput("--dir", None, f"could not be read: {', '.join(why)}")
        for section, tensor in zip(self.model.cache_state().sections, sections, strict=True):
            section.tensor.copy_(tensor)
        if self.model.sums(self.top) != sums:
            raise Changed("what came back is not what was saved")
        return parts
