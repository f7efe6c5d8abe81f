"""Opening a suffix store's file: the lock, what is refused, leftovers, and what is cut."""

from __future__ import annotations

from dataclasses import dataclass

from cache.ports import Files
from cache.suffix_format import HEADER_BYTES, parse, refusal, text_of, unrecorded
from cache.suffix_log import LOCK, NAME, PARTIAL, SuffixLog
from cache.types import Refusal

CAP_BYTES_MAX = 1 << 29
"""A suffix array over more would not fit its 32-bit counts of bytes."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A store's file as it was found."""

    log: SuffixLog
    text: bytes
    """All documents as the suffix array reads them."""
    damaged: int
    """Places where something else stood between whole documents."""
    torn_bytes: int
    """Bytes after the last whole document."""


def open_log(
    files: Files, tokenizer: bytes | None, cap_bytes: int, *, readonly: bool = False
) -> Opened | Refusal:
    """Open the store of a directory, or make one.

    For writing, what is no whole document is cut and a tokenizer that was not recorded is, both by
    writing the file anew; where the drive refuses that, the store goes on with what is whole.
    Read-only, not a byte is written, no lock is taken, and there must be a store.
    """
    assert 0 < cap_bytes <= CAP_BYTES_MAX and (tokenizer is None or len(tokenizer) == 32)
    log = SuffixLog(files, tokenizer, cap_bytes)
    try:
        if readonly:
            return _read_only(log, files, tokenizer)
        lock = files.lock(LOCK)
        if lock is None:
            return Refusal(LOCK, "another process writes to this store")
        log.adopt(None, lock, ())  # From here on the log alone closes it.
        try:
            opened = _for_writing(log, files, tokenizer, lock)
        except OSError:
            log.close()
            raise
        if isinstance(opened, Refusal):
            log.close()
        return opened
    except OSError as error:
        return Refusal(NAME, error.strerror or str(error))


def look(files: Files, tokenizer: bytes | None) -> Refusal | None:
    """Why the file that is there is not opened, from its header alone; None when it may be.

    Changes nothing. Raises OSError.
    """
    if not files.exists(NAME):
        return None
    handle = files.open(NAME)
    try:
        why = refusal(files.read(handle, 0, min(files.size(NAME), HEADER_BYTES)), tokenizer)
    finally:
        files.close(handle)
    return Refusal(NAME, why) if why else None


def _read_only(log: SuffixLog, files: Files, tokenizer: bytes | None) -> Opened | Refusal:
    if not files.exists(NAME):
        return Refusal(NAME, "there is no suffix store to read")
    handle = files.open(NAME)
    try:
        data = files.read(handle, 0, files.size(NAME))
    finally:
        files.close(handle)
    if why := refusal(data, tokenizer):
        return Refusal(NAME, why)
    found = parse(data)
    log.documents = list(found.documents)
    return Opened(log, text_of(data, found), found.damaged, found.torn_bytes)


def _for_writing(
    log: SuffixLog, files: Files, tokenizer: bytes | None, lock: int
) -> Opened | Refusal:
    if files.exists(PARTIAL):
        files.unlink(PARTIAL)
    if not files.exists(NAME):
        if not log.rewrite(0):
            return Refusal(NAME, f"cannot be written: {log.said}")
        return Opened(log, b"", 0, 0)
    handle = files.open(NAME)
    try:
        data = files.read(handle, 0, files.size(NAME))
        why = refusal(data, tokenizer)
    except OSError:
        files.close(handle)
        raise
    if why:
        files.close(handle)
        return Refusal(NAME, why)
    found = parse(data)
    log.adopt(handle, lock, found.documents)
    if found.damaged or found.torn_bytes or (tokenizer is not None and unrecorded(data)):
        log.rewrite(0, owed=True)
    return Opened(log, text_of(data, found), found.damaged, found.torn_bytes)
