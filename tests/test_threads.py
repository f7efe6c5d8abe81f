"""How threads wait: engine.threads, and that the command line says it in time.

Goal: the OpenMP runtime waits passively under `moorage`, and as the environment says where it says
anything. Method: processes of their own, which print what the runtime read when torch was loaded;
saying it afterwards must show as too late.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAY = "import engine.threads; engine.threads.wait_passively()"


def waits(code: str, **more: str) -> bool:
    """Whether the runtime that torch loads in a process with this code waits passively."""
    environment = {**os.environ, "OMP_DISPLAY_ENV": "VERBOSE", **more}
    if "OMP_WAIT_POLICY" not in more:
        environment.pop("OMP_WAIT_POLICY", None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    # How often a thread looks before it sleeps. The policy alone is printed as passive by default.
    said = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    if not said:
        pytest.skip("this torch's runtime does not say how it waits")
    return "'0'" in said[0]


def test_it_is_said_before_torch_is_loaded() -> None:
    assert waits(f"{SAY}; import torch")
    assert not waits(f"{SAY}; import torch", OMP_WAIT_POLICY="ACTIVE")


def test_canary_after_torch_is_too_late() -> None:
    assert not waits(f"import torch; {SAY}")


def test_the_command_line_says_it_and_loads_no_torch_before() -> None:
    code = "import sys, moorage\nassert 'torch' not in sys.modules\n"
    code += "try:\n moorage.main(['experiment', 'list'])\nexcept SystemExit:\n pass\nimport torch"
    assert waits(code)
