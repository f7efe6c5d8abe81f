"""A transfer of simulated files: made when it starts, seen by nobody before `wait`."""

from __future__ import annotations

from collections.abc import Callable


class Moved:
    """Holds its buffer to the rule that nobody touches it before `wait`.

    A real drive may read or fill the buffer at any time until then.
    """

    def __init__(
        self,
        buffer: memoryview,
        arrive: Callable[[], None],
        *,
        found: bytes = b"",
        moved: int = 0,
        error: OSError | None = None,
    ) -> None:
        """`found` comes into the buffer at `wait`; `arrive` lets the transfer's time pass."""
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
            if self._found:
                self._buffer[: len(self._found)] = self._found
        if self._error is not None:
            raise OSError(*self._error.args)
        return self._moved
