"""The journal's files: whole lines in the newest, which makes way for another when it is full"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from cache.ports import Files
from cache.saving import save_now

NEWEST: Final = "journal.jsonl"
_OLDER = re.compile(r"journal\.(\d{6,12})\.jsonl")


class JournalFiles:
    """Lines of JSON in a directory. A full file gets a number, the highest is the one before.

    Every file holds whole lines alone: what a crash or a full drive tore is cut at the next
    opening, and written over by the next lines.
    """

    def __init__(self, files: Files, bytes_max: int = 32 * 2**20, kept: int = 8) -> None:
        """`kept` older files stay beside the newest. Raises OSError."""
        assert bytes_max > 0 and kept >= 0
        self._files = files
        self._bytes_max, self._kept = bytes_max, kept
        self.cut = 0
        """Lines of the newest file that were torn when it was opened."""
        self._last = max(self._older(), default=0)
        self._offset: int | None = None
        """Where the next line goes; None while there is no file for it."""
        self._torn = 0
        """Up to here the file may hold what a failed write left."""
        if files.exists(NEWEST):
            self._mend()
        else:
            self._begin()

    def _older(self) -> list[int]:
        found = map(_OLDER.fullmatch, self._files.list())
        return sorted(int(name.group(1)) for name in found if name)

    def _begin(self) -> None:
        self._files.close(self._files.create(NEWEST))
        self._offset = self._torn = 0

    def _mend(self) -> None:
        """Go on with a file that is there, without the lines that are not whole."""
        files, size = self._files, self._files.size(NEWEST)
        handle = files.open(NEWEST)
        try:
            data = files.read(handle, 0, size)
        finally:
            files.close(handle)
        *lines, rest = data.split(b"\n")
        whole = [line for line in lines if _whole(line)]
        self._offset = self._torn = len(data)
        self.cut = len(lines) - len(whole) + bool(rest)
        if not self.cut:
            return
        kept = b"".join(line + b"\n" for line in whole)
        if save_now(files, NEWEST, memoryview(kept)):
            # Without room for a copy the next lines are written over the torn end.
            self._offset = len(data) - len(rest)
        else:
            self._offset = self._torn = len(kept)

    def append(self, lines: Iterable[bytes]) -> bool:
        """Write whole lines; whether the drive took them. Never raises OSError."""
        data = b"".join(lines)
        try:
            if self._offset and self._offset + len(data) > self._bytes_max:
                self._rotate()
            if self._offset is None:
                self._begin()
            self._write(data)
        except OSError:
            return False
        return True

    def _write(self, data: bytes) -> None:
        """All of it behind the last whole line, and over all that a failed write left there."""
        assert self._offset is not None and data.endswith(b"\n")
        data = data[:-1] + b" " * (self._torn - self._offset - len(data)) + b"\n"
        handle = self._files.open(NEWEST)
        try:
            self._torn = max(self._torn, self._offset + len(data))
            self._files.write(handle, self._offset, data)
        finally:
            self._files.close(handle)
        self._offset += len(data)

    def _rotate(self) -> None:
        """The newest gets a number, and the oldest of too many go. A drive that refuses has the
        lines in the file that is there, and is asked again."""
        files = self._files
        with suppress(
            OSError
        ):  # What a drive loses now, it would not have in the same file either.
            handle = files.open(NEWEST)
            try:
                files.fsync(handle)
            finally:
                files.close(handle)
        try:
            files.rename(NEWEST, f"journal.{self._last + 1:06}.jsonl")
        except OSError:
            return
        self._last, self._offset = self._last + 1, None
        with suppress(OSError):
            files.fsyncdir()
            older = self._older()
            for number in older[: max(0, len(older) - self._kept)]:
                files.unlink(f"journal.{number:06}.jsonl")


def _whole(line: bytes) -> bool:
    """Whether a line is one that was written: a torn one lacks an end, or has zeros in it."""
    return line[:1] == b"{" and line.rstrip(b" ")[-1:] == b"}" and b"\0" not in line
