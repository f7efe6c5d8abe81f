"""Goal: a JAX that lacks an option of ours computes without it; a wrong value is still an error.

Method: an option that no JAX has beside those that this one has; the models' module loaded by a
process whose JAX knows none of them. The canary: what is not known is passed on.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from engine import xla

WITHOUT = """
import sys
import jax
import numpy as np
from engine import xla

sound = jax.jit

def jit(*of, compiler_options=None, **named):
    # What its compiler says of options that it does not have.
    others = {f"no_{name}": value for name, value in (compiler_options or {}).items()}
    return sound(*of, compiler_options=others or None, **named)

jax.jit = jit
if "passed on" in sys.argv:
    xla.known = dict
from engine.third import Third

print(len(Third(16, 64).prefill(np.arange(16, dtype=np.int32))))
"""


def test_what_this_jax_has_is_used() -> None:
    assert xla.quickly() == xla._QUICKLY


def test_an_option_that_it_lacks_is_left_out() -> None:
    assert xla.known({"xla_there_is_none": True, **xla._QUICKLY}) == xla._QUICKLY


def test_a_wrong_value_is_an_error() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="not a valid int32"):
        xla.known({"xla_backend_optimization_level": "banana"})


def loaded(*how: str) -> subprocess.CompletedProcess[str]:
    """The third model in a process whose JAX has none of the options."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *how],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_third_model_computes_without_any() -> None:
    done = loaded()
    assert (done.returncode, done.stdout) == (0, "499\n"), done.stderr


def test_canary_options_that_are_passed_on() -> None:
    done = loaded("passed on")
    assert done.returncode and "No such compile option" in done.stderr
