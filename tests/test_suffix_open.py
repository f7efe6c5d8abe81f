"""Opening a suffix store on a drive that is full: one clear refusal, no handle closed twice.

Method: the real files, with calls that say there is no space left for as long as the test wants,
and a record of what was opened and closed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from suffix_files import CAP, OTHER, SHA, document, held, opened

from cache.host import OsFiles
from cache.suffix_format import HEADER_BYTES, head, record
from cache.suffix_log import NAME
from cache.suffix_open import open_log
from cache.types import Refusal


class FullFiles(OsFiles):
    """Real files on a drive that refuses the calls named in `full`."""

    def __init__(self, root: Path, *full: str) -> None:
        super().__init__(root)
        self.full = set(full)
        self.given: list[int] = []
        self.closed: list[int] = []

    def _call(self, name: str) -> None:
        if name in self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _gave(self, handle: int) -> int:
        self.given.append(handle)
        return handle

    def create(self, name: str) -> int:
        self._call("create")
        return self._gave(super().create(name))

    def open(self, name: str) -> int:
        return self._gave(super().open(name))

    def lock(self, name: str) -> int | None:
        handle = super().lock(name)
        return handle if handle is None else self._gave(handle)

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> None:
        self._call("write")
        super().write(handle, offset, data)

    def fsyncdir(self) -> None:
        self._call("fsyncdir")
        super().fsyncdir()

    def close(self, handle: int) -> None:
        self.closed.append(handle)
        super().close(handle)


@pytest.mark.parametrize("call", ["create", "write", "fsyncdir"])
def test_a_full_drive_is_said_and_every_handle_closed_once(tmp_path: Path, call: str) -> None:
    files = FullFiles(tmp_path, call)
    refused = open_log(files, SHA, CAP)
    assert refused == Refusal(NAME, "cannot be written: No space left on device")
    assert sorted(files.closed) == sorted(files.given)
    opened(OsFiles(tmp_path)).log.close()


def test_no_token_is_taken_before_the_tokenizer_is_recorded(tmp_path: Path) -> None:
    before = head(None) + record(document(1))
    (tmp_path / NAME).write_bytes(before)
    files = FullFiles(tmp_path, "create")
    log = opened(files).log
    assert log.append([document(2)]) == (False, ())
    assert (tmp_path / NAME).read_bytes() == before, "tokens of a tokenizer that nobody recorded"
    files.full.clear()
    assert log.append([document(3)])[0]
    log.close()
    assert (tmp_path / NAME).read_bytes()[:HEADER_BYTES] == head(SHA)
    assert held(OsFiles(tmp_path)) == [document(1).tolist(), document(3).tolist()]
    refused = open_log(OsFiles(tmp_path), OTHER, CAP)
    assert isinstance(refused, Refusal) and "tokenizer" in refused.why
