"""The witness: a model whose rows and sections say which tokens they stand for, and their way."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt
import torch

from cache.hashing import next_hash, prefix_hashes
from cache.types import CacheState, Cost, Gate, Ids, Manifest, Section, View
from engine.adapter import Engine

MASK = 2**64 - 1
CLEAN = 0
"""The way of a state that only whole grid chunks have advanced, from empty."""
GRID, VERIFY = 1, 2
DRAFT_SALT = 0x5EED_D4AF
_PIECE = 1 << 15
"""Rows compared at once: the temporaries stay in the cache."""


def mix(*values: int) -> int:
    """A 64-bit digest of small integers (splitmix64's finaliser over a running sum)."""
    digest = 0
    for value in values:
        digest = (digest + value + 0x9E3779B97F4A7C15) & MASK
        digest = ((digest ^ (digest >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        digest = ((digest ^ (digest >> 27)) * 0x94D049BB133111EB) & MASK
        digest ^= digest >> 31
    return digest


def signed(value: int) -> int:
    """The int64 with the same bits."""
    return value - 2**64 if value >= 2**63 else value


class Witness(Engine):
    """No arithmetic, only provenance, so that a whole night replays with every row checked.

    A row holds the hash of the tokens up to it and its *way*: a digest of the call that wrote it
    (kind, first and last row) over the way of the state it started from. Whole grid chunks on the
    grid leave a clean state clean; everything else, a verify block above all, marks all that
    follows. So a row under the bit gate that a verify block wrote, a state or tail of another
    line, and rows of two conversations mixed are seen with certainty.

    Sections `state` (hash, way) and `tail` (hashes of the last three positions); views `hash`,
    `way`, and `draft` with its token axis last. Logits are the last row's (hash, way).
    """

    def __init__(
        self,
        grid: int,
        window: int,
        *,
        vocab: int = 248_320,
        cost: Cost | None = None,
        block_logits: bool = True,
    ) -> None:
        """`cost` replaces the real bytes; without `block_logits` verify returns (0, 2) of them."""
        super().__init__(grid, window)
        self.vocab = vocab
        self._cost = cost
        self._with_logits = block_logits
        self._hash = np.zeros(window, np.int64)
        self._way = np.zeros(window, np.int64)
        self._draft = np.zeros((2, window), np.int64)
        self._state = np.zeros(2, np.int64)
        self._tail = np.zeros(3, np.int64)
        self._block_hashes: list[int] = []
        # A block is a few rows, and a night has millions: plain memory beats an array's slices.
        rows = (self._hash, self._way, self._draft[0], self._draft[1])
        self._row_memory = tuple(map(_memory, rows))
        self._state_memory, self._tail_memory = _memory(self._state), _memory(self._tail)
        chunks = -(-window // grid)
        ways = [signed(mix(CLEAN, GRID, at * grid, (at + 1) * grid)) for at in range(chunks)]
        self._no_logits = torch.empty(0, 2, dtype=torch.int64)
        self._clean_ways = np.repeat(np.array(ways, np.int64), grid)

    # the Model port

    def cache_state(self) -> CacheState:
        """Two sections, three views."""
        sections = (
            Section("state", torch.from_numpy(self._state)),
            Section("tail", torch.from_numpy(self._tail)),
        )
        views = (
            View("hash", torch.from_numpy(self._hash), 0),
            View("way", torch.from_numpy(self._way), 0),
            View("draft", torch.from_numpy(self._draft), 1),
        )
        return CacheState(sections, views)

    def cost(self) -> Cost:
        """Its own few bytes, or the board's."""
        return self._cost or Cost(row_bytes=32, anchor_bytes=40)

    def manifest(self) -> Manifest:
        """The files that write rows; whole numbers come out alike on any machine."""
        files = ("cache/hashing.py", "engine/adapter.py", "engine/witness.py")
        knobs = {"vocab": str(self.vocab)}
        return Manifest(files, knobs, "none", self.grid, {"numpy": np.__version__})

    def twin(self, window: int) -> Witness:
        """Another empty witness."""
        logits = self._with_logits
        return Witness(self.grid, window, vocab=self.vocab, cost=self._cost, block_logits=logits)

    # forward

    def _chunk(self, ids: Ids) -> torch.Tensor:
        start = self._settled
        stop = start + len(ids)
        way = self._state_memory[1]
        row_way = signed(mix(way & MASK, GRID, start, stop))
        hashes = prefix_hashes(ids, self._start_hash()).view(np.int64)
        self._hash[start:stop] = hashes
        self._draft[0, start:stop] = hashes ^ DRAFT_SALT
        self._way[start:stop] = row_way
        self._draft[1, start:stop] = row_way
        whole = start % self.grid == 0 and stop % self.grid == 0
        self._absorb([int(h) for h in hashes[-3:]], way if whole else row_way)
        return torch.from_numpy(np.array([hashes[-1], row_way], np.int64))

    def _verify(self, ids: Ids, folded: int) -> torch.Tensor:
        if folded:
            self._land(folded)
        start = self._settled + folded
        size = len(ids)
        stop = start + size
        row_way = self._block_way(start, stop)
        hashes, salted, running = array("q"), array("q"), self._start_hash()
        for token in ids.tolist():
            running = next_hash(running, token)
            value = running - 2**64 if running >= 2**63 else running
            hashes.append(value)
            salted.append(value ^ DRAFT_SALT)
        ways = array("q", (row_way,)) * size
        hash_rows, way_rows, draft_hashes, draft_ways = self._row_memory
        hash_rows[start:stop], way_rows[start:stop] = hashes, ways
        draft_hashes[start:stop], draft_ways[start:stop] = salted, ways
        self._block_hashes = hashes.tolist()
        if not self._with_logits:
            return self._no_logits
        return torch.from_numpy(np.column_stack([hashes, ways]))

    def _land(self, count: int) -> None:
        way = self._block_way(self._settled, self._settled + count)
        self._absorb(self._block_hashes[:count], way)

    def _clear(self) -> None:
        self._state[:] = 0
        self._tail[:] = 0

    def _rebuild(self, length: int) -> None:
        self._block_hashes = []

    def _start_hash(self) -> int:
        """The state's hash; a tail that does not belong to it spoils everything that follows."""
        at, tail = self._state_memory[0] & MASK, self._tail_memory[2] & MASK
        return at if at == tail else mix(at, tail)

    def _block_way(self, start: int, stop: int) -> int:
        # Once a block, so in one expression; odd factors keep different blocks different.
        way = self._state_memory[1] * 0x9E3779B97F4A7C15 + start * 0xBF58476D1CE4E5B9
        return signed((way + stop * 0x94D049BB133111EB + VERIFY) & MASK)

    def _absorb(self, hashes: list[int], way: int) -> None:
        self._state_memory[0], self._state_memory[1] = hashes[-1], way
        tail = self._tail_memory
        tail[0], tail[1], tail[2] = (*tail, *hashes)[-3:]

    # what a cold prefill gives

    def differs(self, ids: Ids, logits: torch.Tensor, gate: Gate, clean: int) -> str:
        """What in place differs from a cold prefill of `ids`; empty when nothing does.

        Under the bit gate everything must be equal. Under the greedy gate every row and section
        must stand for the right tokens, and rows of the whole chunks below `clean` must be a cold
        prefill's.
        """
        size = len(ids)
        if self.length != size or self.pending:
            return f"length is {self.length}, pending {self.pending}, for {size} tokens"
        hashes = prefix_hashes(ids).view(np.int64)
        for start in range(0, size, _PIECE):
            part = slice(start, min(size, start + _PIECE))
            if not np.array_equal(self._hash[part], hashes[part]):
                row = start + _first(self._hash[part], hashes[part])
                return f"row {row} stands for other tokens"
            if not np.array_equal(self._draft[0, part], hashes[part] ^ DRAFT_SALT):
                return "a draft row stands for other tokens"
        if self._state[0] != hashes[-1] or not np.array_equal(self._tail[-size:], hashes[-3:]):
            return "a section stands for other tokens"
        if int(logits[0]) != hashes[-1]:
            return "the logits stand for other tokens"
        return self._way_differs(size, logits, gate, clean)

    def _way_differs(self, size: int, logits: torch.Tensor, gate: Gate, clean: int) -> str:
        whole = (size if gate is Gate.BITS else min(clean, size)) // self.grid * self.grid
        ways = self._clean_ways[:whole]
        for name, rows in (("row", self._way), ("draft row", self._draft[1])):
            if not np.array_equal(rows[:whole], ways):
                return f"{name} {_first(rows[:whole], ways)} was not computed as a cold prefill's"
        if gate is Gate.GREEDY:
            return ""
        last = signed(mix(CLEAN, GRID, (size - 1) // self.grid * self.grid, size))
        part = slice(whole, size)
        if (self._way[part] != last).any() or (self._draft[1, part] != last).any():
            return "a row of the last chunk was not computed as a cold prefill's"
        if int(self._state[1]) != (last if whole < size else CLEAN):
            return "the state was not computed as a cold prefill's"
        return "" if int(logits[1]) == last else "the logits were not computed as a cold prefill's"


def _memory(numbers: npt.NDArray[np.int64]) -> memoryview:
    """A contiguous array's own memory as plain integers."""
    return memoryview(numbers).cast("B").cast("q")


def _first(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> int:
    """Index of the first element that differs."""
    return int(np.flatnonzero(a != b)[0])
