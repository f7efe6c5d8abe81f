"""A third architecture, computed by JAX in torch's buffers: odd shapes, dtypes and token axes

Sections: `sum` [2, 5] float32, both layers' states; `last` [2, 3] uint8, the bytes of the two
newest ids. Views: `wide` [3, window, 2] int16, keys in fixed point; `flat` [window] uint8, a gate;
`deep` [2, 1, 4, window] float64, values of both layers, whose token axis comes last. What is
computed is in engine/log_sparse.py.

The torch tensors that `cache_state` names are the only copy. JAX reads all five where they are
(dlpack, `copy=False`, addresses asserted once). It never writes there, since its arrays are values:
what a call gives (rows of the piece, the new sections) is copied into the torch buffers, and
nothing of it is read again but a block's sections, which stay aside until they are committed. A
call waits for JAX (`block_until_ready`) before it writes or returns, so no buffer changes while it
may be read.
"""

from __future__ import annotations

import hashlib
from functools import cache

import jax
import jax.dlpack
import jaxlib
import numpy as np
import numpy.typing as npt
import torch

from cache.types import CacheState, Cost, Ids, Manifest, Section, View
from engine.adapter import Engine
from engine.log_sparse import (
    CHANNELS,
    HEADS,
    KEY,
    PIECE,
    REACH,
    VALUE,
    Out,
    Sections,
    Weights,
    block,
    chunk,
    logits,
    random_weights,
    reads,
)
from engine.machine import libraries, traits

BLOCK = 8
"""Tokens that one call of a verify block takes; longer blocks are several."""
ID_BITS = (1 << 24) - 1
"""What the three bytes of an id hold."""
_FILES = ("engine/adapter.py", "engine/log_sparse.py", "engine/third.py", "engine/xla.py")


class Third(Engine):
    """One sequence over random weights. Any ids may follow any others; a picture's key ids are ids
    like all others, by their low 24 bits modulo the vocabulary. It drafts nothing.
    """

    def __init__(
        self,
        grid: int,
        window: int,
        *,
        seed: int = 0,
        vocab: int = 499,
        cost: Cost | None = None,
        block_logits: bool = True,
    ) -> None:
        """`cost` replaces the real bytes; without `block_logits` verify returns (0, vocab)."""
        super().__init__(grid, window)
        assert vocab <= ID_BITS
        self.vocab = vocab
        self._seed = seed
        self._cost = cost
        self._block_logits = block_logits
        self._weights = _weights(seed, vocab)
        self._sum = torch.zeros(2, CHANNELS, dtype=torch.float32)
        self._last = torch.zeros(2, 3, dtype=torch.uint8)
        self._wide = torch.zeros(HEADS, window, KEY, dtype=torch.int16)
        self._flat = torch.zeros(window, dtype=torch.uint8)
        self._deep = torch.zeros(2, 1, VALUE, window, dtype=torch.float64)
        self._sections = Sections(_shared(self._sum), _shared(self._last))
        self._views = _shared(self._wide), _shared(self._flat), _shared(self._deep)
        # What a chunk is padded to: the grid, in whole pieces where it has several.
        self._size = grid if grid <= PIECE else -(-grid // PIECE) * PIECE
        self._held = list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]]()

    def twin(self, window: int) -> Third:
        """An empty engine over the same weights."""
        return Third(
            self.grid,
            window,
            seed=self._seed,
            vocab=self.vocab,
            cost=self._cost,
            block_logits=self._block_logits,
        )

    # the Model port

    def cache_state(self) -> CacheState:
        """The live tensors; the same ones at every call."""
        return CacheState(
            (Section("sum", self._sum), Section("last", self._last)),
            (View("wide", self._wide, 1), View("flat", self._flat, 0), View("deep", self._deep, 3)),
        )

    def cost(self) -> Cost:
        """Real bytes unless the constructor was given others."""
        if self._cost is not None:
            return self._cost
        state = self.cache_state()
        # The widest moment of a chunk: what its tokens read, as it came and in float64.
        read = 4 * (HEADS * KEY + 1 + 2 * VALUE + HEADS) * (REACH + 1)
        return Cost(
            row_bytes=sum(view.tensor.nbytes for view in state.views) // self.window,
            anchor_bytes=sum(section.tensor.nbytes for section in state.sections),
            workspace_floor_bytes=8 * self._size * read + 4 * self.vocab,
        )

    def manifest(self) -> Manifest:
        """What computes stored rows; the window does not."""
        versions = libraries() | {"jax": jax.__version__, "jaxlib": jaxlib.__version__}
        machine = traits() | {"third probe": _probe(self.grid, self._seed, self.vocab)}
        recipe = f"random seed={self._seed}"
        return Manifest(_FILES, {"vocab": str(self.vocab)}, recipe, self.grid, versions, machine)

    # forward

    def _chunk(self, ids: Ids) -> torch.Tensor:
        with jax.enable_x64(True):
            padded, count, start = _padded(ids, self._size), np.int32(len(ids)), self._settled
            old = reads(*self._views, np.int32(start), size=self._size)
            out: Out = chunk(self._weights, self._sections, padded, count, np.int32(start), old)
            made = logits(self._weights, out.features)
            jax.block_until_ready((out, made))
        self._write(out, start, len(ids))
        self._commit(*map(np.asarray, out.sections))
        return torch.from_numpy(np.array(made))

    def _verify(self, ids: Ids, folded: int) -> torch.Tensor:
        if folded:
            self._land(folded)
        self._held = []
        before, made = self._sections, [np.empty((0, self.vocab), np.float32)]
        for at in range(0, len(ids), BLOCK):
            part, start = ids[at : at + BLOCK], np.int32(self.length + at)
            with jax.enable_x64(True):
                padded, count = _padded(part, BLOCK), np.int32(len(part))
                old = reads(*self._views, start, size=BLOCK)
                out: Out = block(self._weights, before, padded, count, start, old)
                jax.block_until_ready(out)
                if self._block_logits:
                    made.append(np.asarray(logits(self._weights, out.features))[: len(part)])
            self._write(out, int(start), len(part))
            sums, lasts = map(np.asarray, out.sections)
            self._held += zip(sums[: len(part)], lasts[: len(part)], strict=True)
            before = Sections(*self._held[-1])
        return torch.from_numpy(np.concatenate(made))

    def _land(self, count: int) -> None:
        self._commit(*self._held[count - 1])

    def _clear(self) -> None:
        self._sum.zero_()
        self._last.zero_()

    def _rebuild(self, length: int) -> None:
        self._held = []

    def _write(self, out: Out, start: int, count: int) -> None:
        """Copy a piece's first `count` rows into the views."""
        for view, rows in zip(self.cache_state().views, out.rows, strict=True):
            made = np.asarray(rows).take(range(count), view.axis)
            view.rows(start, start + count).numpy()[...] = made

    def _commit(self, sums: npt.NDArray[np.float32], last: npt.NDArray[np.uint8]) -> None:
        """Copy both sections into their tensors."""
        self._sum.numpy()[...] = sums
        self._last.numpy()[...] = last


@cache
def _weights(seed: int, vocab: int) -> Weights:
    """Shared by all engines of a seed: they are never written to."""
    return random_weights(seed, vocab)


@cache
def _probe(grid: int, seed: int, vocab: int) -> str:
    """Digest of what a short prompt leaves: XLA's choices show here that no version names."""
    of = Third(grid, grid + BLOCK, seed=seed, vocab=vocab, block_logits=False)
    of.prefill(np.arange(grid, dtype=np.int32))
    of.verify(np.arange(BLOCK, dtype=np.int32))
    total = hashlib.sha256()
    for part in (*of.cache_state().sections, *of.cache_state().views):
        total.update(part.tensor.numpy().tobytes())
    return total.hexdigest()[:16]


def _padded(ids: Ids, size: int) -> Ids:
    """`ids` by their low bits, and zeros after them."""
    padded = np.zeros(size, np.int32)
    padded[: len(ids)] = ids & ID_BITS
    return padded


def _shared(tensor: torch.Tensor) -> jax.Array:
    """The tensor's own memory as JAX sees it."""
    with jax.enable_x64(True):
        array = jax.dlpack.from_dlpack(tensor, copy=False)
        assert array.unsafe_buffer_pointer() == tensor.data_ptr(), "JAX made a copy"
        return array
