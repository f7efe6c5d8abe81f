"""How JAX's compiler is told to be quick, by those of its options that this JAX has"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import jax
import numpy as np

Options = dict[str, str | bool]
_QUICKLY: Options = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": False,
}


@cache
def quickly() -> Options:
    """For arithmetic so small that a call hardly takes longer: an eighth of the time to compile."""
    return known(_QUICKLY)


def known(options: Mapping[str, str | bool]) -> Options:
    """Those of the options that this JAX has: they come and go with its versions, which stand in
    the fingerprint. Raises RuntimeError for a value that an option does not take.
    """
    return {name: value for name, value in options.items() if _has(name, value)}


def _has(name: str, value: str | bool) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options={name: value}).lower(np.int32(0)).compile()
    except RuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return False
    return True
