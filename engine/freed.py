"""How much memory that was freed stays with the process, where the C library can be told"""

from __future__ import annotations

import ctypes

KEPT_BYTES = 128 << 20
"""At the heap's end: what a chunk of a small model takes and gives back layer by layer. By default
its pages go back to the system and are faulted in anew, a fifth of all time of a prefill."""
MAPPED_BYTES = 32 << 20
"""From which on a tensor gets pages of its own, which leave with it; the most that may be said."""
# malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed() -> bool:
    """Keep up to `KEPT_BYTES` of freed memory for what is allocated next; False if it can't be."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:
        return False
    said = ((_M_MMAP_THRESHOLD, MAPPED_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    return all(tell(name, value) == 1 for name, value in said)
