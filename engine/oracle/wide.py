"""Float64 in JAX, switched on for the oracle's own calls alone"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import torch

from engine.xla import quickly

Weights = Mapping[str, jax.Array]
"""Published tensors by their names, float64."""


def jitted(*static: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function once for each shape and each value of its `static` keywords, in float64.

    JAX is told so inside the call only: whatever else uses it in this process keeps its float32.
    """

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = jax.jit(function, static_argnames=static, compiler_options=quickly())

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            with jax.enable_x64(True):
                return compiled(*args, **keywords)

        return call

    return around


def wide(tensor: torch.Tensor) -> jax.Array:
    """A torch tensor of any floating dtype in float64; a copy."""
    with jax.enable_x64(True):
        moved: jax.Array = jax.device_put(tensor.detach().double().numpy().copy())
    return moved


def zeros(*shape: int) -> jax.Array:
    """Float64."""
    with jax.enable_x64(True):
        return jnp.zeros(shape)


def whole(number: int) -> jax.Array:
    """A count or an index: int32."""
    return jnp.array(number, jnp.int32)


def floats(numbers: npt.ArrayLike) -> jax.Array:
    """Numbers of the host in float64."""
    with jax.enable_x64(True):
        return jnp.array(np.asarray(numbers, np.float64))


def wide_all(tensors: Mapping[str, torch.Tensor], prefix: str = "") -> dict[str, jax.Array]:
    """The tensors below `prefix`, by the rest of their names."""
    return {n.removeprefix(prefix): wide(t) for n, t in tensors.items() if n.startswith(prefix)}


def under(weights: Weights, prefix: str) -> dict[str, jax.Array]:
    """The weights below `prefix`, by the rest of their names."""
    return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}


def back(array: jax.Array) -> torch.Tensor:
    """A result as a torch tensor, float64 still; a copy."""
    return torch.from_numpy(np.array(array))
