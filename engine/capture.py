"""The capture lock: a graph capture and every thread that calls the device take turns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A re-entrant lock that is given in the order in which it was asked for.

    A plain lock may go back to a thread that lets go and asks again at once, as a copier does
    between two chunks, while a capture waits for as long as there is something to copy.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        """One a thread that waits, the first to come first."""
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> Turns:
        me, ticket = threading.get_ident(), object()
        with self._changed:
            if self._owner != me:
                self._waiting.append(ticket)
                try:
                    self._changed.wait_for(
                        lambda: self._owner is None and self._waiting[0] is ticket
                    )
                finally:
                    # Also when Ctrl-C ends the wait: nobody may wait for a ticket that is gone.
                    self._waiting.remove(ticket)
                    self._changed.notify_all()
                self._owner = me
            self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            assert self._owner == threading.get_ident(), "given back by another thread"
            self._depth -= 1
            if not self._depth:
                self._owner = None
                self._changed.notify_all()


CAPTURE = Turns()
"""A graph is captured in the device's global mode, where a call from any other thread fails and
spoils the capture. So both sides hold this: a capture from its first call to its last, a copier
around one chunk's copy and its synchronize. A capture waits for one copy of each copier at most,
and a copy for one capture.
"""


@contextmanager
def capturing() -> Iterator[None]:
    """Held around a graph capture, warm-up calls included; no other thread calls meanwhile."""
    with CAPTURE:
        yield
