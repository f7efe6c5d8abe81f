"""A transfer of simulated files: made when it starts, seen by nobody before `wait`."""

from __future__ import annotations

from collections.abc import Callable

SPOILED = b"\xa5"
"""What is behind the bytes of a short read, and in place of all of them before its end: systems
differ, so nobody may rely on it."""


class Moved:
    """Holds its buffer to the rule that nobody touches it before `wait`.

    A real drive may read or fill the buffer at any time until then.
    """

    def __init__(
        self,
        buffer: memoryview,
        arrive: Callable[[], None],
        *,
        found: bytes | None = None,
        moved: int = 0,
        error: OSError | None = None,
    ) -> None:
        """`found` comes into the buffer at `wait`, and what lies behind it is spoiled, as all of it
        is until then; None is a write. `arrive` is called once, at the end.
        """
        if found is not None:
            buffer[:] = SPOILED * len(buffer)
        self._buffer, self._before = buffer, bytes(buffer)
        self._arrive: Callable[[], None] | None = arrive
        self._found, self._moved, self._error = found, moved, error

    def wait(self) -> int:
        """Bytes moved, fewer than asked only at a file's end. Raises OSError when it failed."""
        if self._arrive is not None:
            self._arrive()
            self._arrive = None
            assert self._buffer == self._before, "a buffer was touched before its transfer ended"
            self._before = b""
            if self._found is not None:
                self._buffer[:] = self._found.ljust(len(self._buffer), SPOILED)
        if self._error is not None:
            raise OSError(*self._error.args)
        return self._moved
