"""Clearing what memory holds of a slot, as if the process had just started"""

from __future__ import annotations

from cache.ports import Model
from cache.stack import Stack


def clear_memory(stack: Stack, model: Model) -> None:
    """Forget the rows in place, the pool and the store; what lies on a drive stays.

    Between requests. Nothing is written to the drive for it: whoever clears wants it gone.
    """
    assert not stack.serving
    stack.leave()
    stack.fence(0)
    stack.park.entries = []
    stack.store.clear()
    stack.resident.start_cold(model)
