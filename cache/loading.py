"""Loading a file: its bytes come into a buffer while the caller does something else."""

from __future__ import annotations

from cache.ports import PAGE, Files, Transfer


class Loading:
    """A file that is being read into a buffer."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._handle: int | None = None
        self._transfer: Transfer | None = None
        self._into = memoryview(b"")
        self._failed: OSError | None = None

    def begin(self, name: str, slot: memoryview) -> None:
        """Start; a failure comes out of `wait`."""
        try:
            size = self._files.size(name)
            # Whole pages; a file that grew has nothing of ours past the end of the slot.
            self._into = slot[: min(-(-size // PAGE) * PAGE, len(slot))]
            self._handle = self._files.open(name)
            self._transfer = self._files.start_read(self._handle, 0, self._into)
        except OSError as error:
            self._failed = error

    def wait(self) -> memoryview | OSError:
        """What of the file is there."""
        done = 0
        try:
            if self._transfer is not None:
                done = self._transfer.wait()
        except OSError as error:
            self._failed = error
        try:
            if self._handle is not None:
                self._files.close(self._handle)
        except OSError:
            pass  # Nothing was written through it.
        self._handle = self._transfer = None
        return self._failed or self._into[:done]
