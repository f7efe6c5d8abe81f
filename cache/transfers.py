"""Transfers on threads of their own: the caller computes while the drive works."""

from __future__ import annotations

import copy
import queue
import threading
import weakref
from collections.abc import Callable

Move = Callable[[], int]
"""Moves bytes until all are moved or a file ends; gives their number. Raises OSError."""


class Moving:
    """A transfer that a thread has, or will have, in hand."""

    def __init__(self, move: Move) -> None:
        self._move: Move | None = move
        self._done = threading.Event()
        self._moved = 0
        self._error: BaseException | None = None

    def run(self) -> None:
        """Move the bytes; called by the thread."""
        assert self._move is not None, "a transfer runs once"
        # Whoever waits is to have the error; the thread goes on.
        try:
            self._moved = self._move()
        except BaseException as error:
            # Its traceback would hold the buffer, and this transfer in a circle.
            self._error = error.with_traceback(None)
        self._move = None  # The buffer is the caller's again.
        self._done.set()

    def wait(self) -> int:
        """Bytes moved, fewer than asked only at a file's end. Raises OSError when it failed."""
        self._done.wait()
        if self._error is not None:
            raise copy.copy(self._error)  # What is raised holds the frames it came through.
        return self._moved


_Queue = queue.SimpleQueue[Moving | None]


class Transfers:
    """A few daemon threads, made when the first transfer starts, ended by `close` or as garbage.

    Transfers begin in the order they came; as many as there are threads run at once.
    """

    def __init__(self, threads: int = 2) -> None:
        assert threads > 0
        self._count = threads
        self._queue: _Queue = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._making = threading.Lock()
        # The threads hold the queue and nothing else, so that the owner can become garbage.
        self._end = weakref.finalize(self, _send_home, self._queue, threads)

    def start(self, move: Move) -> Moving:
        """Begin; the caller leaves the buffer alone until `wait`."""
        moving = Moving(move)
        with self._making:
            assert self._end.alive, "transfers were closed"
            while len(self._threads) < self._count:
                name = f"transfer-{len(self._threads)}"
                thread = threading.Thread(target=_work, args=(self._queue,), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
            self._queue.put(moving)
        return moving

    def close(self) -> None:
        """Let what was started end, then the threads; no transfer may start after it."""
        with self._making:
            self._end()
        for thread in self._threads:
            thread.join()
        self._threads.clear()


def _send_home(waiting: _Queue, threads: int) -> None:
    for _ in range(threads):
        waiting.put(None)


def _work(waiting: _Queue) -> None:
    while (moving := waiting.get()) is not None:
        moving.run()
