"""How the threads of a product wait for one another; to be said before torch is loaded"""

from __future__ import annotations

import os

WAIT_POLICY = "OMP_WAIT_POLICY"


def wait_passively() -> None:
    """Let threads that wait give their core away, unless the environment says otherwise.

    They would spin: then a product of two threads, one of which the machine's other work keeps from
    its core, burns the other core until it comes back. Beside other work that cost a prefill half
    to four fifths of its speed, and more than half of all processor time. The OpenMP runtime that
    comes with torch reads this once, as torch is loaded.
    """
    os.environ.setdefault(WAIT_POLICY, "PASSIVE")
