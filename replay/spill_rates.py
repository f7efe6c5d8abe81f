"""What the spill saves and restores a second, beside raw direct I/O of the same bytes"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cache.account import Account, End
from cache.anchors import Anchor, AnchorConfig, Anchors, Tensors, copy_sections
from cache.direct import DirectFiles
from cache.disk.open import Identity
from cache.host import SystemClock
from cache.ports import PAGE
from cache.source import in_place
from cache.spill.codec import CodecConfig, Mode
from cache.spill.config import SpillConfig
from cache.spill.open import open_spill
from cache.spill.spilled import Spilled
from cache.spill.tier import Spill
from cache.types import Ask, Gate, Refusal
from cache.workers import ThreadWay, ThreadWorkers
from cache.writeguard import GuardConfig, WriteGuard
from engine.bad import BadInput
from replay.bulk import POOL, Bulk, random_ids, summed
from replay.raw_io import RAW, RawFile
from replay.rounds import Changed, Parts, Round, in_order, timed
from sim.profile import Profile

COPIES = 5
"""The newest four grid anchors, and the end anchor."""
SESSION = "check"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a bench takes, nearly: told before anything of it is made."""

    blocks: int
    block_bytes: int
    copy_bytes: int

    @classmethod
    def of(cls, board: Profile, wanted_bytes: float) -> Sizes:
        """About so many bytes of rows, in whole blocks of a chunk's rows, one at least."""
        rows_bytes = board.grid * board.row_bytes
        blocks = max(1, round(wanted_bytes / rows_bytes))
        return cls(blocks, rows_bytes + 8 * PAGE, board.anchor_bytes + 8 * PAGE)

    @property
    def copies(self) -> int:
        """Grid anchors that there are lines for, and the end anchor."""
        return min(COPIES, self.blocks + 1)

    @property
    def nbytes(self) -> int:
        """Of all files of one save, at most."""
        return self.blocks * self.block_bytes + self.copies * self.copy_bytes

    @property
    def memory_bytes(self) -> int:
        """Rows, sections, their copies as they were and as they came back, four staging buffers,
        the raw one, and the pool of numbers."""
        image = max(self.block_bytes, self.copy_bytes)
        copies = (2 * self.copies + 1) * self.copy_bytes
        return self.blocks * self.block_bytes + copies + 5 * image + 8 * POOL

    @property
    def drive_bytes(self) -> int:
        """Both kinds of the same bytes at once."""
        return 2 * self.nbytes


class Bench:
    """A spill and a raw file beside it on one drive, and a model whose bytes go there and back."""

    def __init__(self, folder: Path, board: Profile, sizes: Sizes, seed: int) -> None:
        """Raises BadInput where the folder or the memory won't do."""
        self._clock, self._workers = SystemClock(), ThreadWorkers()
        self._files, self._beside = DirectFiles(folder / "sessions"), DirectFiles(folder / RAW)
        self.top = sizes.blocks * board.grid
        try:
            # What files weigh is what they are: no board's ratio stands for them.
            cost = replace(board.cost, spilled_row_bytes=0)
            self.model = Bulk(board.grid, self.top, cost, seed)
            self.model.fill_numbers(seed)
            self._copies = [self._copy(number) for number in range(sizes.copies)]
            step = -(-sizes.block_bytes // PAGE) * PAGE
            self._raw = RawFile(self._beside, self._clock, step, seed + 1)
        except (RuntimeError, MemoryError, OSError) as error:
            raise BadInput("--gib", None, f"not enough memory: {error}") from None
        self._ask = Ask(random_ids(self.top + 1, seed), SESSION)
        self._account = self._talked()
        self._sums = self.model.sums(self.top)
        self._copy_sums = {number: summed(copy) for number, copy in enumerate(self._copies)}
        self.conversation_bytes = self.top * board.row_bytes + sizes.copies * board.anchor_bytes
        """Rows and copies as they are in the engine."""
        self.spill = self._opened(2 * sizes.nbytes)

    def _copy(self, number: int) -> Tensors:
        """One that is no other's."""
        copies = copy_sections(self.model.cache_state())
        for tensor in copies:
            tensor.copy_(tensor.view(-1).roll(number + 1).view(tensor.shape))
        return copies

    def _talked(self) -> Account:
        """A conversation whose first chunk alone is a cold prefill's, with its newest anchors."""
        grid, top, config = self.model.grid, self.top, AnchorConfig()
        account = Account.empty(top, config)
        account.extend(self._ask.ids, top)
        account.session, account.taint = SESSION, grid
        lines = range(top, 0, -grid)[: len(self._copies) - 1][::-1]
        kept = [
            Anchor(line, account.gate(line), copy)
            for line, copy in zip(lines, self._copies[:-1], strict=True)
        ]
        account.anchors = Anchors.of(config, kept)
        account.end = End(top, self._copies[-1])
        account.check(grid)
        return account

    def _opened(self, budget_bytes: int) -> Spill:
        config = SpillConfig(
            budget_bytes=budget_bytes,
            min_free_bytes=0,
            floor_bytes=0,
            tokens_min=1,
            anchors_kept=len(self._copies) - 1,
            block_rows=self.model.grid,
        )
        identity = Identity("0" * 64, lambda files: ())
        files, clock, guard = self._files, self._clock, WriteGuard(self._clock, GuardConfig())
        found = open_spill(
            files, clock, config, self.model, identity, self._workers, guard, ThreadWay()
        )
        if isinstance(found, Refusal):
            raise BadInput("--dir", None, f"{found.name}: {found.why}")
        return found

    @property
    def said(self) -> str:
        """Why files go through the page cache; "" while none had to."""
        return self._files.said or self._beside.said

    def close(self) -> None:
        """The spill is empty, and its threads have ended."""
        self.spill.clear()
        self.spill.close()
        self._workers.close()
        for files in (self._files, self._beside):
            files.close_all()

    def round(self, mode: Mode, *, ours_first: bool, nbytes: int = 0) -> Round:
        """All four measurements under a codec, raw ones and the spill's in this order or the other.

        What raw I/O moves are the `nbytes` of the files, which only a save before can tell.
        """
        assert nbytes or ours_first
        self.spill.configure(replace(self.spill.config, codec=CodecConfig(mode)))
        written = [nbytes]

        def save() -> Parts:
            parts, written[0] = self._save()
            return parts

        raw = self._raw
        write, raw_write = in_order(save, lambda: raw.write(written[0]), ours_first)
        self.model.wipe()
        read, raw_read = in_order(self._restore, lambda: raw.read(written[0]), ours_first)
        self.spill.clear()
        raw.remove()
        assert not nbytes or nbytes == written[0], "the same bytes pack alike"
        return Round(ours_first, written[0], write, raw_write, read, raw_read)

    # the spill

    def _save(self) -> tuple[Parts, int]:
        """From the moment the engine's thread begins until the manifest lasts; bytes of files."""
        spill, source = self.spill, in_place(self._account, self.model)
        with timed(self._clock, partial(self._spent, "write_s")) as parts:
            saved = spill.writer.save(source, "drain")
        if not saved.ok:
            raise BadInput("--dir", None, f"nothing was saved: {saved.why}")
        (entry,) = spill.shelf.whole()
        return parts, sum(piece.nbytes for piece in entry.pieces)

    def _restore(self) -> Parts:
        """From the offer to all rows in place and all copies on the engine's device."""
        empty = Account.empty(self.model.window, AnchorConfig())
        offer = self.spill.offer(self._ask, empty, self.model.cost())
        assert offer is not None and offer.line.tokens == self.top
        with timed(self._clock, partial(self._spent, "read_s")) as parts:
            whole = offer.entry.bring(self.model, self.top)
        if not whole:
            why = [event.why for event in self.spill.events() if event.event in ("fail", "damage")]
            raise Changed(f"it did not come back: {', '.join(why)}")
        self._look(offer.entry)
        return parts

    def _look(self, spilled: Spilled) -> None:
        """Every byte is what it was. Raises Changed."""
        copies = sorted(spilled.copies.items(), key=lambda at: (at[0].tokens, at[0].kind == "end"))
        found = {number: summed(tensors) for number, (_, tensors) in enumerate(copies)}
        ends = [copy.gate for copy, _ in copies if copy.kind == "end"]
        # Rows alone: nothing writes to the model's own sections here.
        views = len(self.model.cache_state().views)
        if self.model.sums(self.top)[:views] != self._sums[:views]:
            raise Changed("rows that came back are not those that were saved")
        if found != self._copy_sums or ends != [Gate.GREEDY]:
            raise Changed("copies that came back are not those that were saved")

    def _spent(self, name: str) -> Mapping[str, float]:
        spent: Mapping[str, float] = self.spill.stats()[name]
        return spent
