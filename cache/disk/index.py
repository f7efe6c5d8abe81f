"""The index of the files: chunks, the anchors that stand on them, and what each is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cache.disk.config import DAY_S


@dataclass(frozen=True, slots=True)
class Chunk:
    """A file with the rows of one grid chunk; `hash` names the whole prefix up to its end."""

    hash: int
    stop: int
    nbytes: int

    @property
    def name(self) -> str:
        """Of its file."""
        return chunk_name(self.hash)


@dataclass(slots=True, eq=False)
class Entry:
    """A file with the sections at a line, and the chunks below it, by hash, ascending."""

    hash: int
    line: int
    chunks: tuple[int, ...]
    nbytes: int
    packages: tuple[str, ...] = ()
    """Injected packages that lie in its prefix."""
    hits: int = 0
    used_s: float = 0.0
    """Wall time of its last use, or of its writing."""

    @property
    def name(self) -> str:
        """Of its file."""
        return anchor_name(self.hash)


def chunk_name(chunk: int) -> str:
    """The file of the chunk with this hash."""
    return f"{chunk:016x}.rows"


def anchor_name(line: int) -> str:
    """The anchor file of the line with this hash."""
    return f"{line:016x}.anchor"


@dataclass(slots=True)
class Index:
    """What is on the drive, and what is being written. Held in memory alone: the files say it all.

    An entry is here only with every chunk below it. Chunks that a write under way counts on are
    reserved: they stay although no entry reads them.
    """

    chunks: dict[int, Chunk] = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)
    _readers: Counter[int] = field(default_factory=Counter)
    _reserved: Counter[int] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def held_bytes(self) -> int:
        """Bytes of all files."""
        chunks = sum(chunk.nbytes for chunk in self.chunks.values())
        return chunks + sum(entry.nbytes for entry in self)

    def kept_bytes(self, worth: float, now_s: float) -> int:
        """Bytes that stay when every entry of no more than this value goes."""
        dear = [entry for entry in self if self.value(entry, now_s) > worth]
        names = {name for entry in dear for name in entry.chunks}
        names |= {name for name in self.chunks if self._reserved[name]}
        chunks = sum(self.chunks[name].nbytes for name in names)
        return chunks + sum(entry.nbytes for entry in dear)

    # coming

    def add_chunk(self, chunk: Chunk) -> None:
        """A chunk's file is on the drive."""
        self.chunks[chunk.hash] = chunk

    def add(self, entry: Entry) -> bool:
        """An anchor's file is on the drive; False when a chunk below it is not, or it is known."""
        if entry.hash in self.entries or not all(name in self.chunks for name in entry.chunks):
            return False
        self.entries[entry.hash] = entry
        self._readers.update(entry.chunks)
        return True

    def reserve(self, chunks: Sequence[int]) -> None:
        """A write counts on these."""
        self._reserved.update(chunks)

    def settle(self, chunks: Sequence[int]) -> None:
        """That write is over."""
        self._reserved -= Counter(chunks)

    # going: each returns the names of the files that go

    def drop(self, entry: Entry) -> list[str]:
        """An entry goes, and the chunks that nothing else reads."""
        if self.entries.pop(entry.hash, None) is None:
            return []
        self._readers -= Counter(entry.chunks)
        return [entry.name, *self.orphans(entry.chunks)]

    def orphans(self, chunks: Sequence[int]) -> list[str]:
        """Those of these chunks go that neither an entry reads nor a write counts on."""
        gone = []
        for name in chunks:
            if name in self.chunks and not self._readers[name] and not self._reserved[name]:
                gone.append(self.chunks.pop(name).name)
        return gone

    def damaged(self, chunk: int) -> list[str]:
        """A chunk's file is no good: it goes with every entry that stands on it."""
        gone = [name for e in list(self) if chunk in e.chunks for name in self.drop(e)]
        if (left := self.chunks.pop(chunk, None)) is not None:
            gone.append(left.name)
        return gone

    def clear(self) -> list[str]:
        """All go."""
        gone = [entry.name for entry in self] + [chunk.name for chunk in self.chunks.values()]
        self.chunks.clear()
        self.entries.clear()
        self._readers.clear()
        return gone

    # worth

    def value(self, entry: Entry, now_s: float) -> float:
        """(hits + 1) x tokens saved a byte held alone, halved for every day nobody used it.

        Its own file is held alone, and of each chunk a share with the others that read it.
        """
        shares = sum(self.chunks[name].nbytes / self._readers[name] for name in entry.chunks)
        # A clock that went back makes nothing younger than new.
        idle_days = max(0.0, now_s - entry.used_s) / DAY_S
        halved = float(0.5 ** min(idle_days, 1_000.0))
        return (entry.hits + 1) * entry.line / (entry.nbytes + shares) * halved

    def worth_of_new(
        self, line: int, chunks: Sequence[int], anchor_bytes: int, chunk_bytes: int
    ) -> float:
        """The value of an entry that is about to be written, among those that are here."""
        shares = sum(chunk_bytes / (self._readers[name] + 1) for name in chunks)
        return line / (anchor_bytes + shares)

    def least(self, now_s: float) -> Entry | None:
        """The entry of the least value; of equals the one unused longest."""
        return min(self, key=lambda e: (self.value(e, now_s), e.used_s), default=None)

    def expired(self, now_s: float, ttl_s: float) -> list[Entry]:
        """Entries that nobody used for so long."""
        return [entry for entry in self if now_s - entry.used_s > ttl_s]

    def check(self) -> None:
        """Integrity; raises AssertionError."""
        readers: Counter[int] = Counter()
        for entry in self:
            assert entry.chunks and entry.chunks[-1] == entry.hash
            stops = [self.chunks[name].stop for name in entry.chunks]
            assert stops == sorted(set(stops)) and stops[-1] == entry.line, (stops, entry.line)
            readers.update(entry.chunks)
        assert readers == +self._readers, "readers of chunks"
        kept = {name for name in self.chunks if readers[name] or self._reserved[name]}
        assert kept == set(self.chunks), "chunks that nobody reads"
