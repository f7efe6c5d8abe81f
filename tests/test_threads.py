"""How threads wait: engine.threads, and that the command line says it in time.

Goal: the OpenMP runtime looks for work a little while only under `moorage`, and as the environment
says where it says anything. Method: processes of their own, which print what the runtime read when
torch was loaded; saying it afterwards must show as too late.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine.threads import SAID, SPINS

SAY = "import engine.threads; engine.threads.wait_briefly()"


def spins(code: str, **more: str) -> int:
    """How often threads look before they sleep, under the runtime that torch loads there."""
    environment = {name: value for name, value in os.environ.items() if name not in SAID}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE", **more}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    said = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    if not said:
        pytest.skip("this torch's runtime does not say how it waits")
    return int(said[0].split("'")[1])


def test_it_is_said_before_torch_is_loaded() -> None:
    assert spins(f"{SAY}; import torch") == SPINS


@pytest.mark.parametrize(
    ("name", "value", "want"), [("OMP_WAIT_POLICY", "PASSIVE", 0), ("GOMP_SPINCOUNT", "7", 7)]
)
def test_the_environment_is_obeyed(name: str, value: str, want: int) -> None:
    assert spins(f"{SAY}; import torch", **{name: value}) == want


def test_canary_after_torch_is_too_late() -> None:
    assert spins(f"import torch; {SAY}") > SPINS


def test_the_command_line_says_it_and_loads_no_torch_before() -> None:
    code = "import sys, moorage\nassert 'torch' not in sys.modules\n"
    code += "try:\n moorage.main(['experiment', 'list'])\nexcept SystemExit:\n pass\nimport torch"
    assert spins(code) == SPINS
