"""Thousands of settings over days of writes in one call: the event's step, scanned and vmapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sim.budget_days import Days, Event, Setting, Sizes, begun, happen

jax.config.update("jax_enable_x64", True)


def stacked(events: Sequence[Event]) -> Event:
    """All of them as one, an array a field: flags as such, counts and seconds as float64."""
    columns = zip(*events, strict=True)
    arrays = [np.asarray(column) for column in columns]
    return Event(*(a if a.dtype == bool else a.astype(np.float64) for a in arrays))


@jax.jit
def _swept(settings: Setting, sizes: Sizes, events: Event) -> Days:
    def lived(setting: Setting) -> Days:
        def one(days: Days, event: Event) -> tuple[Days, None]:
            return happen(setting, sizes, days, event, jnp), None

        start = jax.tree.map(lambda value: jnp.asarray(value, jnp.float64), begun(setting))
        return jax.lax.scan(one, start, events)[0]

    return jax.vmap(lived)(settings)


def swept(settings: Setting, sizes: Sizes, events: Event) -> Days:
    """What the days come to for every setting: arrays of one length in, and out."""
    floats: Any = jax.tree.map(lambda value: jnp.asarray(value, jnp.float64), settings)
    ends = _swept(floats, Sizes(*map(float, sizes)), events)
    return jax.tree.map(np.asarray, jax.block_until_ready(ends))
