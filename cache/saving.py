"""Saving a file: beside its name until it is whole and on the drive, then in its place."""

from __future__ import annotations

import errno

from cache.ports import Files, Transfer

TMP = ".tmp"
"""Ends the name of a file that is being written."""


class Saving:
    """A file on its way to the drive: beside its name until it is whole, then in its place.

    Whoever gets an OSError from one of its steps abandons it.
    """

    def __init__(self, files: Files, name: str, handle: int) -> None:
        """Use `begin`."""
        self._files, self._name = files, name
        self._handle: int | None = handle
        self._transfer: Transfer | None = None
        self._nbytes = 0
        self._gone = False

    @classmethod
    def begin(cls, files: Files, name: str, image: memoryview) -> Saving:
        """Start to write the image, which nobody touches before `finish` or `abandon`.

        Raises OSError, and leaves nothing behind then.
        """
        saving = cls(files, name, files.create(name + TMP))
        try:
            assert saving._handle is not None
            files.preallocate(saving._handle, len(image))
            saving._nbytes = len(image)
            saving._transfer = files.start_write(saving._handle, 0, image)
        except OSError:
            saving.abandon()
            raise
        return saving

    def arrive(self) -> None:
        """Wait until the drive has taken all of it. Raises OSError."""
        assert self._transfer is not None
        transfer, self._transfer = self._transfer, None
        done = transfer.wait()
        if done != self._nbytes:
            raise OSError(f"{done} of {self._nbytes} bytes were written")

    def finish(self) -> None:
        """Wait until all of it is on the drive. Raises OSError, and must not be tried again: what
        failed to sync may be gone from memory too, and the next sync would find nothing amiss.
        """
        if self._transfer is not None:
            self.arrive()
        assert self._handle is not None
        self._files.fsync(self._handle)
        self._close()

    def publish(self) -> None:
        """Give the finished file its name; `fsyncdir` makes that last. Raises OSError."""
        assert self._handle is None and not self._gone, "publish what is finished"
        self._files.rename(self._name + TMP, self._name)
        self._gone = True

    def abandon(self) -> None:
        """Stop, and remove what was written as far as the drive lets it. Never raises."""
        transfer, self._transfer = self._transfer, None
        steps = [transfer.wait] if transfer is not None else []
        for step in (*steps, self._close, self._unlink):
            try:
                step()
            except OSError:
                continue  # The file is given up either way; the next opening removes leftovers.

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._files.close(handle)

    def _unlink(self) -> None:
        if not self._gone:
            self._gone = True
            self._files.unlink(self._name + TMP)


def save_now(files: Files, name: str, image: memoryview) -> str:
    """Write a file, its name too, before returning; why that failed, or empty."""
    try:
        saving = Saving.begin(files, name, image)
    except OSError as error:
        return said(error)
    try:
        saving.finish()
        saving.publish()
        files.fsyncdir()
    except OSError as error:
        saving.abandon()
        return said(error)
    return ""


def said(error: OSError) -> str:
    """What the system says of a failure."""
    return error.strerror or str(error)


def code_of(error: OSError) -> str:
    """An error's short name, as a reason in the journal."""
    return errno.errorcode.get(error.errno or 0, "") or str(error)
