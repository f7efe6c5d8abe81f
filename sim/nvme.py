"""An NVMe drive as one pure step: a write cache that recovers only while the drive is at rest

The drives that are modelled (TLC, with a part of their cells written one bit each) take a burst at
the interface's pace until that part is full, and then what the slow cells take. Moving the bytes
from the fast cells to the slow ones is what gives room again, and they do it when nothing is asked
of them. The seed measured both on its 1 TB drive; `sim/drive_fit.py` has the figures and the fit.

The same function is stepped on plain numbers by the simulated files (`xp` = PLAIN; numpy does as
well) and scanned, vmapped and differentiated by JAX (`xp` = jax.numpy). Nothing here imports them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

Value = Any
"""A number, or an array of them: numpy's or JAX's, all of one shape."""


class Plain:
    """What the step takes of numpy, for two plain numbers: ten times as fast."""

    minimum, maximum = staticmethod(min), staticmethod(max)

    @staticmethod
    def where(which: bool, yes: float, no: float) -> float:
        """One of them."""
        return yes if which else no


PLAIN = Plain()


class DriveParams(NamedTuple):
    """A drive's parameters; bytes and seconds. A JAX pytree, as every named tuple is."""

    write_bytes_s: Value
    """Into the cache."""
    read_bytes_s: Value
    fsync_s: Value = 0.0
    """Seconds of a sync beside the writes it waits for."""
    cache_bytes: Value = math.inf
    sustained_bytes_s: Value = math.inf
    """Past the cache; never more than into it."""
    recover_bytes_s: Value = 0.0
    """Cache that comes back in a second of rest, once the drive has settled."""
    settle_s: Value = 0.0
    """Rest before any of it does."""
    pause_bytes_s: Value = 0.0
    """Cache that a second of rest takes until then: what was begun and has to be begun again."""


class DriveState(NamedTuple):
    """A drive at a moment."""

    busy_until_s: Value
    """When the last transfer that was booked ends."""
    left_bytes: Value
    """Free in the cache at that time."""


def rested(params: DriveParams) -> DriveState:
    """A drive that was left alone for long."""
    return DriveState(0.0, params.cache_bytes)


def gained(params: DriveParams, rest_s: Value, xp: Any) -> Value:
    """Bytes by which so long a rest changes what is free; a short one may take some."""
    settling_s = xp.minimum(rest_s, params.settle_s)
    more = (rest_s - settling_s) * params.recover_bytes_s
    return more - settling_s * params.pause_bytes_s


def free_bytes(params: DriveParams, state: DriveState, now_s: Value, xp: Any) -> Value:
    """What the cache takes at once, were a transfer booked now; within 0 and its size."""
    rest_s = xp.maximum(now_s - state.busy_until_s, 0.0)
    left = state.left_bytes + gained(params, rest_s, xp)
    return xp.minimum(xp.maximum(left, 0.0), params.cache_bytes)


def step(
    params: DriveParams,
    state: DriveState,
    now_s: Value,
    nbytes: Value,
    write: Value,
    xp: Any,
    slow: Value = 1.0,
) -> tuple[DriveState, Value]:
    """Take a transfer on that is booked now: the state after it, and the second when it ends.

    It begins when those before it have ended. A write that is larger than what the cache has free
    takes both rates; a read takes nothing of the cache, but while it runs the drive is not at rest.
    `slow` is how many times longer everything takes.
    """
    free = free_bytes(params, state, now_s, xp)
    written = xp.where(write, nbytes, 0.0)
    fast = xp.minimum(written, free)
    past = xp.minimum(params.sustained_bytes_s, params.write_bytes_s)
    lasts_s = fast / params.write_bytes_s + (written - fast) / past
    lasts_s = lasts_s + (nbytes - written) / params.read_bytes_s
    end_s = xp.maximum(now_s, state.busy_until_s) + lasts_s * slow
    return DriveState(end_s, free - fast), end_s
