"""Residual streams: what a branch reads of them, and how they take in what it makes

Source: docs/flash.md, after Zhu et al., Hyper-Connections, 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from engine.oracle.formulas import rms_norm
from engine.oracle.wide import Weights, under


def branch(
    w: Weights,
    name: str,
    norm: str,
    streams: jax.Array,
    function: Callable[[jax.Array], tuple[jax.Array, Any]],
    eps: float,
) -> tuple[jax.Array, Any]:
    """The streams [streams, hidden] after a branch, with the weights below `name` of `w`.

    `function` makes what is written from what is read, [hidden] both, and gives more beside it,
    which is given on.
    """
    of = under(w, f"{name}.")
    made, more = function(rms_norm(of["read"] @ streams, w[f"{norm}.weight"], eps))
    return of["mix"] @ streams + jnp.outer(of["write"], made), more
