"""How the threads of a product wait for one another; to be said before torch is loaded"""

from __future__ import annotations

import os

SPINS = 2_000
"""How often a thread that waits looks before it gives its core away: a tenth of a millisecond.

The runtime's own 300,000 are some 15 ms. Beside other work on the same cores a product of two
threads, one of which waits for its core, then burns the other: with 20,000 a prefill lost three
fifths of what passive waiting leaves it, and loses a fifth with these. With none at all every
thread is asleep when the next small product begins: where nothing else runs that costs a third
(docs/results.md).
"""
SAID = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def wait_briefly() -> None:
    """Let threads look for more work a little while only, unless the environment says otherwise.

    The OpenMP runtime that comes with torch reads this once, as torch is loaded.
    """
    if not any(name in os.environ for name in SAID):
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)
