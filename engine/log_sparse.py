"""Arithmetic of the third architecture: recurrences and log-sparse reads, jitted in JAX

Two layers of five channels each. A layer's state is a linear recurrence with a decay of its own
for every token, s = exp(-softplus(a)) s + tanh(b). A token reads its own row and those 1, 2, 4 ...
2**17 before it ("LogSparse" attention, Li et al. 2019, section 4.2) with three heads, a softmax
over what is there. Layer 1's reads drive layer 2; layer 2's reads and both states make the logits.

Products and states are float64 inside a call (callers hold `jax.enable_x64`), rows keep what their
dtype keeps, and sections are float32 between calls. So a call that begins elsewhere rounds the
state elsewhere, and `deep` shows it. `chunk` computes the recurrence of 64 tokens at once, by the
products of their decays; `block` goes token by token and rounds as if each were a call.

Shapes are fixed by padding: ids past `count` have decay 1 and add nothing, and no row reads a later
one, so what the padding holds can't change a bit. The window is known to `reads` alone, which moves
numbers and computes none: engines of all windows share one compiled `chunk`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from engine.xla import quickly

CHANNELS, WIDTH, HEADS, KEY, VALUE = 5, 12, 3, 2, 4
TAPS = 3
"""Token embeddings summed into one input: of a token and of the two before it."""
REACH = 18
"""Distances 1 to 2**17: all there are in a window of 262,144, and in a larger one no more."""
PIECE = 64
"""Tokens whose recurrence is computed at once."""
KEY_SCALE = 2.0**14
"""An int16 key stands for [-2, 2)."""
DISTANCES = 1 << np.arange(REACH, dtype=np.int32)
Recur = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(state [CHANNELS], log decays [n, CHANNELS], inputs [n, CHANNELS]) to states [n, CHANNELS]."""


class Weights(NamedTuple):
    """Float32 for the two tables of the vocabulary, float64 for the rest."""

    taps: jax.Array
    """[TAPS, vocab, WIDTH]"""
    drive: jax.Array
    """[2, 2, WIDTH, CHANNELS]: layer; decay, input."""
    row: jax.Array
    """[WIDTH + CHANNELS, HEADS * KEY * 2 + VALUE]: query, key, value of layer 1."""
    gate: jax.Array
    """[WIDTH]"""
    deep: jax.Array
    """[HEADS * VALUE + CHANNELS, VALUE]: value of layer 2."""
    head: jax.Array
    """[2 * CHANNELS + HEADS * VALUE, vocab]"""


class Reads(NamedTuple):
    """Older rows at each of n positions' distances; junk where there is none."""

    wide: jax.Array
    """[HEADS, n, REACH, KEY] int16"""
    flat: jax.Array
    """[n, REACH] uint8"""
    deep: jax.Array
    """[2, 1, VALUE, n, REACH] float64"""


class Rows(NamedTuple):
    """What n tokens write, axes as in the views."""

    wide: jax.Array
    flat: jax.Array
    deep: jax.Array


class Sections(NamedTuple):
    """The recurrent state, or one after every token with a first axis n."""

    sum: jax.Array
    """[2, CHANNELS] float32"""
    last: jax.Array
    """[2, 3] uint8: the two newest ids as three bytes each, low byte first; zeros before any."""


class Out(NamedTuple):
    """Of one call."""

    rows: Rows
    sections: Sections
    features: jax.Array
    """What makes logits, float32 [2 * CHANNELS + HEADS * VALUE], with a first axis n of a block."""


def random_weights(seed: int, vocab: int) -> Weights:
    """Drawn from numpy's `default_rng(seed)`, scaled by the square root of the summed terms."""
    draw = np.random.default_rng(seed)

    def normal(*shape: int, dtype: type = np.float64, terms: int) -> jax.Array:
        values = draw.standard_normal(shape, np.float32) / np.float32(terms) ** 0.5
        return jax.device_put(values.astype(dtype), jax.devices("cpu")[0])

    features = 2 * CHANNELS + HEADS * VALUE
    with jax.enable_x64(True):
        return Weights(
            normal(TAPS, vocab, WIDTH, dtype=np.float32, terms=TAPS),
            normal(2, 2, WIDTH, CHANNELS, terms=WIDTH),
            normal(WIDTH + CHANNELS, 2 * HEADS * KEY + VALUE, terms=WIDTH + CHANNELS),
            normal(WIDTH, terms=WIDTH),
            normal(HEADS * VALUE + CHANNELS, VALUE, terms=HEADS * VALUE + CHANNELS),
            normal(features, vocab, dtype=np.float32, terms=features),
        )


@partial(jax.jit, static_argnames="size", compiler_options=quickly())
def reads(wide: jax.Array, flat: jax.Array, deep: jax.Array, start: int, *, size: int) -> Reads:
    """Rows of whole views before each of the positions [start, start + size)."""
    at = start + jnp.arange(size, dtype=jnp.int32)[:, None] - DISTANCES
    return Reads(
        jnp.take(wide, at, axis=1, mode="clip"),
        jnp.take(flat, at, axis=0, mode="clip"),
        jnp.take(deep, at, axis=3, mode="clip"),
    )


@partial(jax.jit, compiler_options=quickly())
def chunk(
    weights: Weights, before: Sections, ids: jax.Array, count: int, start: int, old: Reads
) -> Out:
    """A prefill's piece: rows of all of `ids` [n], the rest after `count` of them."""
    rows, sums, lasts, features = _layers(weights, before, ids, count, start, old, at_once)
    sections = Sections(sums[count - 1].astype(jnp.float32), lasts[count - 1])
    return Out(rows, sections, features[count - 1].astype(jnp.float32))


@partial(jax.jit, compiler_options=quickly())
def block(
    weights: Weights, before: Sections, ids: jax.Array, count: int, start: int, old: Reads
) -> Out:
    """A verify block: rows, sections and features after each of `ids` [n]."""
    rows, sums, lasts, features = _layers(weights, before, ids, count, start, old, one_by_one)
    return Out(rows, Sections(sums.astype(jnp.float32), lasts), features.astype(jnp.float32))


@partial(jax.jit, compiler_options=quickly())
def logits(weights: Weights, features: jax.Array) -> jax.Array:
    """Float32 [..., vocab]. Compiled by itself: what is wanted must not change how rows round."""
    return features @ weights.head


def at_once(state: jax.Array, log_decay: jax.Array, into: jax.Array) -> jax.Array:
    """States [n, CHANNELS] after each token, PIECE of them by one product of decays."""
    size = min(PIECE, len(into))
    earlier = np.tril(np.ones((size, size), bool))[:, :, None]

    def piece(state: jax.Array, part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total = jnp.cumsum(part[0], axis=0)
        decay = jnp.exp(jnp.where(earlier, total[:, None] - total[None], -jnp.inf))
        states = jnp.exp(total) * state + (decay * part[1][None]).sum(1)
        return states[-1], states

    parts = log_decay.reshape(-1, size, CHANNELS), into.reshape(-1, size, CHANNELS)
    return jax.lax.scan(piece, state, parts)[1].reshape(-1, CHANNELS)


def one_by_one(state: jax.Array, log_decay: jax.Array, into: jax.Array) -> jax.Array:
    """The same states, each rounded to float32 before the next."""

    def step(state: jax.Array, token: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        after = jnp.exp(token[0]) * state + token[1]
        after = after.astype(jnp.float32).astype(jnp.float64)
        return after, after

    return jax.lax.scan(step, state, (log_decay, into))[1]


def _layers(
    weights: Weights,
    before: Sections,
    ids: jax.Array,
    count: int,
    start: int,
    old: Reads,
    recur: Recur,
) -> tuple[Rows, jax.Array, jax.Array, jax.Array]:
    """(rows, sums [n, 2, CHANNELS] float64, lasts [n, 2, 3], features [n, ...]) of a piece."""
    x, lasts = _inputs(weights, before.last, ids)
    there = jnp.arange(len(ids))[:, None] < count

    def states(layer: int, of: jax.Array) -> jax.Array:
        decay, into = (of @ weights.drive[layer, side] for side in (0, 1))
        log_decay = jnp.where(there, -jax.nn.softplus(decay), 0.0)
        into = jnp.where(there, jnp.tanh(into), 0.0)
        return recur(before.sum[layer].astype(jnp.float64), log_decay, into)

    first = states(0, x)
    made = jnp.concatenate([x, first], 1) @ weights.row
    query, key, value = jnp.split(made, [HEADS * KEY, 2 * HEADS * KEY], 1)
    wide = jnp.round(jnp.tanh(key) * KEY_SCALE).astype(jnp.int16).reshape(-1, HEADS, KEY)
    flat = jnp.round(255 * jax.nn.sigmoid(x @ weights.gate)).astype(jnp.uint8)
    weight, seen = _weights_of(query.reshape(-1, HEADS, KEY), wide, flat, start, old)
    read = _read(weight, seen, value, old.deep[0, 0].transpose(1, 2, 0))
    second = states(1, read)
    deeper = jnp.concatenate([read, second], 1) @ weights.deep
    features = _read(weight, seen, deeper, old.deep[1, 0].transpose(1, 2, 0))
    rows = Rows(wide.transpose(1, 0, 2), flat, jnp.stack([value.T, deeper.T])[:, None])
    sums = jnp.stack([first, second], 1)
    return rows, sums, lasts, jnp.concatenate([first, second, features], 1)


def _inputs(weights: Weights, last: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Inputs [n, WIDTH] float64, and the section `last` after each token."""
    shifts = np.array([0, 8, 16], np.int32)
    every = jnp.concatenate([(last.astype(jnp.int32) << shifts).sum(1, dtype=jnp.int32), ids])
    vocab, size = weights.taps.shape[1], len(ids)
    x = jnp.zeros((size, WIDTH), jnp.float64)
    for tap in range(TAPS):
        back = TAPS - 1 - tap
        x += weights.taps[tap, every[back : back + size] % vocab]
    newest = jnp.stack([every[1:-1], every[2:]], 1)
    return x, (newest[:, :, None] >> shifts & 255).astype(jnp.uint8)


def _candidates(new: jax.Array, old: jax.Array) -> jax.Array:
    """[n, 1 + REACH, ...]: a token's own row, then the one at each distance, new or old."""
    at = np.arange(len(new))[:, None] - DISTANCES
    among = new[at.clip(0)]
    inside = (at >= 0).reshape(*at.shape, *[1] * (among.ndim - 2))
    return jnp.concatenate([new[:, None], jnp.where(inside, among, old)], 1)


def _weights_of(
    query: jax.Array, wide: jax.Array, flat: jax.Array, start: int, old: Reads
) -> tuple[jax.Array, jax.Array]:
    """(softmax weights [n, 1 + REACH, HEADS], which rows there are [n, 1 + REACH])."""
    size = len(query)
    at = start + jnp.arange(size)[:, None] - DISTANCES
    seen = jnp.concatenate([jnp.ones((size, 1), bool), at >= 0], 1)
    keys = _candidates(wide, old.wide.transpose(1, 2, 0, 3)).astype(jnp.float64) / KEY_SCALE
    gates = _candidates(flat, old.flat).astype(jnp.float64) / 255
    scores = (query[:, None] * keys).sum(-1) + jnp.log(0.5 + gates)[:, :, None]
    return jax.nn.softmax(jnp.where(seen[:, :, None], scores, -jnp.inf), axis=1), seen


def _read(weight: jax.Array, seen: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """[n, HEADS * VALUE]: values by their weights. Junk rows hold anything, a NaN even."""
    values = jnp.where(seen[:, :, None], _candidates(new, old), 0.0)
    return (weight[:, :, :, None] * values[:, :, None]).sum(1).reshape(len(new), -1)
