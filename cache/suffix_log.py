"""The log of a suffix store: documents are added at its end, the oldest half is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from cache.ports import Files
from cache.suffix_format import HEAD_BYTES, HEADER_BYTES, Document, head, record
from cache.types import Ids

NAME, PARTIAL, LOCK = "suffix.log", "suffix.log.partial", "suffix.lock"
_COPIED = 8 << 20
"""Bytes moved at once when the file is written anew."""


class SuffixLog:
    """The file, and what of it is whole. One process writes; `open_log` makes one.

    `append` acknowledges a document when it is on the drive. After a failed write the next document
    is written over what the failed one left. After a failed fsync nothing is known of the file, and
    nothing more is written until it is opened again and its checksums are read. A file that must
    lose something (its oldest half, a torn tail, damage) is written anew beside the old one.
    """

    def __init__(self, files: Files, tokenizer: bytes | None, cap_bytes: int) -> None:
        """Of no file yet; `open_log` takes it from there."""
        self.errors = 0
        """Calls that the drive refused."""
        self.said = ""
        """What it said to the last of them."""
        self.failed = False
        """Nothing more is written."""
        self.documents: list[Document] = []
        self._owed = False
        """The file must be written anew before anything is added to it."""
        self._files = files
        self._tokenizer = tokenizer
        self._cap_bytes = cap_bytes
        self._handle: int | None = None
        self._lock: int | None = None

    @property
    def tokens(self) -> int:
        """Of all documents."""
        return sum(document.tokens for document in self.documents)

    @property
    def end(self) -> int:
        """Bytes of the file up to the end of its last whole document."""
        return self.documents[-1].stop if self.documents else HEADER_BYTES

    def room_tokens(self, documents: int) -> int:
        """Tokens that so many documents may have together: what is kept when half is forgotten."""
        return (self._cap_bytes // 2 - HEADER_BYTES - documents * HEAD_BYTES) // 4

    def adopt(self, handle: int | None, lock: int | None, documents: Sequence[Document]) -> None:
        """Take over an open file and what was found whole in it."""
        self._handle, self._lock, self.documents = handle, lock, list(documents)

    def append(self, pieces: Sequence[Ids]) -> tuple[bool, Sequence[Document]]:
        """Write documents of `room_tokens` at most; (they are on the drive, who was forgotten)."""
        data = b"".join(record(piece) for piece in pieces)
        forgotten: Sequence[Document] = ()
        if self.failed or self._handle is None:
            return False, ()
        full = self.end + len(data) > self._cap_bytes
        if full or self._owed:
            first = self._oldest_half(len(data)) if full else 0
            oldest = self.documents[:first]
            if not self.rewrite(first):
                return False, ()
            forgotten = oldest
        at = self.end
        try:
            self._files.write(self._handle, at, data)
        except OSError as error:
            self._refused(error)
            return False, forgotten
        try:
            self._files.fsync(self._handle)
        except OSError as error:
            self._refused(error)
            self.failed = True
            return False, forgotten
        for piece in pieces:
            self.documents.append(Document(at, len(piece)))
            at = self.documents[-1].stop
        return True, forgotten

    def _oldest_half(self, coming: int) -> int:
        """How many documents to forget: half of the cap stays, less what is coming."""
        room = self._cap_bytes // 2 - HEADER_BYTES - coming
        kept = 0
        for count, document in enumerate(reversed(self.documents)):
            kept += document.stop - document.at
            if kept > room:
                return len(self.documents) - count
        return 0

    def rewrite(self, first: int, *, owed: bool = False) -> bool:
        """Write the file anew with the documents from `first` on; the name changes hands at once.

        False leaves the old file, unless the directory failed: then nothing more is written. What
        is `owed` is tried again before the next document is added.
        """
        self._owed = self._owed or owed
        files, kept = self._files, self.documents[first:]
        size = HEADER_BYTES + sum(document.stop - document.at for document in kept)
        new, renamed = -1, False
        try:
            new = files.create(PARTIAL)
            files.preallocate(new, size)
            files.write(new, 0, head(self._tokenizer))
            moved = self._copy(kept, new)
            files.fsync(new)
            files.rename(PARTIAL, NAME)
            renamed = True
            files.fsyncdir()
        except OSError as error:
            self._refused(error)
            self.failed = self.failed or renamed
            if not renamed:
                self._drop(new)
                return False
        if self._handle is not None:
            self._close(self._handle)
        self._handle, self.documents, self._owed = new, moved, False
        return not self.failed

    def _copy(self, kept: Sequence[Document], new: int) -> list[Document]:
        """Their bytes as they are, checksums and all, behind the header of the new file."""
        moved: list[Document] = []
        to = HEADER_BYTES
        for start, stop in _stretches(kept):
            assert self._handle is not None
            for at in range(start, stop, _COPIED):
                nbytes = min(_COPIED, stop - at)
                self._files.write(new, to + at - start, self._files.read(self._handle, at, nbytes))
            moved += [Document(d.at - start + to, d.tokens) for d in kept if start <= d.at < stop]
            to += stop - start
        return moved

    def _drop(self, handle: int) -> None:
        """Give up a file that never got its name."""
        if handle >= 0:
            self._close(handle)
        try:
            if self._files.exists(PARTIAL):
                self._files.unlink(PARTIAL)
        except OSError as error:
            self._refused(error)

    def _close(self, handle: int) -> None:
        try:
            self._files.close(handle)
        except OSError as error:
            self._refused(error)

    def _refused(self, error: OSError) -> None:
        self.errors += 1
        self.said = error.strerror or str(error)

    def close(self) -> None:
        """Give file and lock back."""
        for handle in (self._handle, self._lock):
            if handle is not None:
                self._close(handle)
        self._handle = self._lock = None


def _stretches(documents: Sequence[Document]) -> list[tuple[int, int]]:
    """Bytes [start, stop) of documents that stand behind each other, ascending."""
    breaks = [b.at for a, b in pairwise(documents) if a.stop != b.at]
    starts = [*(d.at for d in documents[:1]), *breaks]
    ends = [a.stop for a, b in pairwise(documents) if a.stop != b.at]
    return list(zip(starts, [*ends, *(d.stop for d in documents[-1:])], strict=True))
