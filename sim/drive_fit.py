"""The drive's parameters, fitted to what the seed measured, with the step's own derivatives

Every figure is what the model does in the seed's situation (`sim/drive_seen.py`): one scan of
`sim.nvme.step` over the files that were written before, then the write that was timed.
Levenberg-Marquardt on the logarithms of parameters and figures; the Jacobian is JAX's, forward
through the scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sim.drive_seen import (
    BURST_BYTES,
    BURSTS,
    FILE_BYTES,
    GB,
    OBSERVED,
    PROBE_BYTES,
    READ_BYTES_S,
    RESTS,
    WRITES,
    files_of,
)
from sim.nvme import DriveParams, DriveState, step

jax.config.update("jax_enable_x64", True)

FITTED = {
    "write_bytes_s": 5 * GB,
    "sustained_bytes_s": 0.6 * GB,
    "cache_bytes": 20 * GB,
    "recover_bytes_s": 0.06 * GB,
    "settle_s": 20.0,
    "pause_bytes_s": 0.01 * GB,
    "fsync_s": 0.005,
}
"""Where the fit begins, among others."""
APART = {"sustained_bytes_s": 1.5, "settle_s": 2.0, "pause_bytes_s": 3.0}
"""Factors to either side of that from where it begins as well: the model has kinks, where the rest
is just long enough or the cache is just full, and a descent may stop at one."""
STEPS = 200


def params_of(logs: Any) -> DriveParams:
    """Parameters from their logarithms, in FITTED's order."""
    return DriveParams(read_bytes_s=READ_BYTES_S, **dict(zip(FITTED, jnp.exp(logs), strict=True)))


def written_s(params: DriveParams, files: tuple[Any, Any, Any], then_bytes: Any) -> Any:
    """Seconds of the last write: arrays of file bytes, seconds between starts, and syncs (0, 1)."""

    def one(carry: tuple[DriveState, Any, Any], file: tuple[Any, Any, Any]) -> tuple[Any, None]:
        state, now_s, due_s = carry
        nbytes, apart_s, syncs = file
        # What only fills the row up to the longest one's length waits for nothing.
        at_s = jnp.where(syncs > 0, jnp.maximum(now_s, due_s), now_s)
        state, end_s = step(params, state, at_s, nbytes, True, jnp)
        return (state, end_s + syncs * params.fsync_s, due_s + apart_s), None

    zero = jnp.zeros(())
    begun = (DriveState(zero, params.cache_bytes + zero), zero, zero)
    (state, now_s, _), _ = jax.lax.scan(one, begun, files)
    return step(params, state, now_s, then_bytes, True, jnp)[1] - now_s


def _figures(params: DriveParams) -> dict[str, Any]:
    """Every observed figure as the model has it."""
    fresh = DriveState(jnp.zeros(()), params.cache_bytes)
    found = {name: step(params, fresh, 0.0, n, True, jnp)[1] for name, n in WRITES.items()}
    most = max(files_of(burst)[0] for burst in BURSTS.values())
    rows = []
    for burst in BURSTS.values():
        count, nbytes, apart_s = files_of(burst)
        there = (jnp.arange(most) < count).astype(jnp.float64)
        rows.append((nbytes * there, apart_s * there, there, burst.then_bytes))
    nbytes, apart_s, syncs, then = (jnp.stack(column) for column in zip(*rows, strict=True))
    seconds = jax.vmap(written_s, in_axes=(None, 0, 0))(params, (nbytes, apart_s, syncs), then)
    found |= dict(zip(BURSTS, seconds, strict=True))
    full, end_s = step(params, fresh, 0.0, BURST_BYTES, True, jnp)
    for rest_s, observed in RESTS.items():
        taken_s = step(params, full, end_s + rest_s, PROBE_BYTES, True, jnp)[1] - end_s - rest_s
        found[observed.key] = PROBE_BYTES / taken_s / GB
    found["file"] = FILE_BYTES / (FILE_BYTES / params.write_bytes_s + params.fsync_s) / GB
    found["sustained"], found["cache"] = params.sustained_bytes_s / GB, params.cache_bytes / GB
    return found | {"settle": params.settle_s}


def figures(params: DriveParams) -> dict[str, float]:
    """What the model gives for each observed figure, by key."""
    return {key: float(value) for key, value in jax.jit(_figures)(params).items()}


def _misses(logs: jax.Array) -> jax.Array:
    """In standard errors, of those that are fitted."""
    found = _figures(params_of(logs))
    fitted = [one for one in OBSERVED if one.error]
    return jnp.stack([jnp.log(found[one.key] / one.seed) / one.error for one in fitted])


@jax.jit
@jax.vmap
def _sloped(logs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The misses and their Jacobian, for a batch of starts."""

    def both(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        misses = _misses(at)
        return misses, misses

    slope, misses = jax.jacfwd(both, has_aux=True)(logs)
    return misses, slope


Batch = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Logarithms, sum of squared misses, what Gauss and Newton have for its second derivatives, and for
its first ones, each halved."""


def _looked(logs: np.ndarray) -> Batch:
    misses, slope = (np.asarray(array) for array in _sloped(jnp.asarray(logs)))
    turned = slope.swapaxes(1, 2)
    return logs, (misses**2).sum(axis=1), turned @ slope, (turned @ misses[:, :, None])[:, :, 0]


def _descended(logs: np.ndarray) -> Batch:
    """Where descents from all of these end; each has its own damping."""
    best, damping = _looked(logs), np.full(len(logs), 1e-2)
    for _ in range(STEPS):
        at, least, square, down = best
        more = damping[:, None] * (np.diagonal(square, axis1=1, axis2=2) + 1e-6)
        damped = square + more[:, :, None] * np.eye(len(FITTED))
        tried = _looked(at - np.linalg.solve(damped, down[:, :, None])[:, :, 0])
        better = tried[1] < least
        best = tuple(_chosen(better, new, old) for new, old in zip(tried, best, strict=True))
        damping = np.where(better, (damping / 3).clip(1e-9), (damping * 4).clip(max=1e6))
    return best


def _chosen(better: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def starts(begin: Mapping[str, float]) -> list[dict[str, float]]:
    """Where descents begin: there, and at every corner APART from it."""
    corners = product(*(((name, factor), (name, 1 / factor)) for name, factor in APART.items()))
    moved = [{name: begin[name] * factor for name, factor in corner} for corner in corners]
    found = [dict(begin), *({**begin, **corner} for corner in moved)]
    return [{name: start[name] for name in FITTED} for start in found]


def fitted(begin: Mapping[str, float] = FITTED) -> tuple[DriveParams, float]:
    """The parameters that miss least, and the sum of squared misses in standard errors."""
    at, sums, _, _ = _descended(np.log([list(start.values()) for start in starts(begin)]))
    best = int(sums.argmin())
    return DriveParams(*map(float, params_of(at[best]))), float(sums[best])


def standard_errors(params: DriveParams) -> dict[str, float]:
    """Of each parameter, as a share of it, as far as the figures' errors go."""
    at = {name: getattr(params, name) for name in FITTED}
    # As many as the fit has, so that nothing is compiled for it.
    _, _, squares, _ = _looked(np.log([list(at.values())] * len(starts(at))))
    errors = np.sqrt(np.diag(np.linalg.inv(squares[0])))
    return dict(zip(FITTED, errors.tolist(), strict=True))
