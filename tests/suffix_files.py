"""What the tests of the suffix store share: files that fail, files that lose power, a script."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cache.ports import Files
from cache.suffix_format import SEPARATOR
from cache.suffix_log import NAME
from cache.suffix_open import Opened, open_log
from cache.suffix_store import SuffixConfig, SuffixStore
from cache.types import Ids
from sim.clock import VirtualClock
from sim.jobs import SeededJobs

SHA, OTHER = bytes(range(32)), bytes(range(1, 33))
CAP = 4_096
"""Bytes: some eight documents of the script fit before half is forgotten."""


def document(number: int) -> Ids:
    """Documents of 60 to 120 tokens that say which they are."""
    return (np.arange(60 + number * 7 % 60) + 1_000 * number).astype(np.int32)


def documents_of(text: bytes) -> list[list[int]]:
    """The text of an opened log, a list of ids a document."""
    words = np.frombuffer(text, ">u4").tolist()
    ends = [at for at, word in enumerate(words) if word == int.from_bytes(SEPARATOR, "big")]
    starts = [0, *(end + 1 for end in ends)]
    return [words[a:b] for a, b in zip(starts, ends, strict=False)]


def opened(
    files: Any, sha: bytes | None = SHA, cap: int = CAP, *, readonly: bool = False
) -> Opened:
    """An opened log; a refusal fails the test."""
    found = open_log(files, sha, cap, readonly=readonly)
    assert isinstance(found, Opened), found
    return found


def held(files: Files) -> list[list[int]]:
    """The documents of a store, read only."""
    return documents_of(opened(files, readonly=True).text)


def script(files: Any, acknowledged: Callable[[int], None], count: int = 14) -> None:
    """Open, add documents one by one past the cap, close, open again and add one more."""
    for numbers in (range(count), range(count, count + 1)):
        log = opened(files).log
        for number in numbers:
            if log.append([document(number)])[0]:
                acknowledged(number)
        log.close()


def allowed(number: int, states: list[list[list[int]]]) -> list[list[list[int]]]:
    """What may be found when `number` documents are acknowledged: all of them as they were kept,
    with or without the next one, and what that one makes the store forget gone or not yet."""
    after = states[min(number + 1, len(states) - 1)]
    return [states[number], after[:-1], after]


def states(files: Any) -> list[list[list[int]]]:
    """The documents kept after each step of the script, the first before any."""
    found = [held(files)] if files.exists(NAME) else [[]]
    for numbers in (range(14), range(14, 15)):
        log = opened(files).log
        for number in numbers:
            assert log.append([document(number)])[0]
            found.append([*found[-1], document(number).tolist()][-len(log.documents) :])
        log.close()
    return found


class Faulty:
    """Passes calls on, and lets call `at`, or all from it on, fail with an error number."""

    def __init__(self, inner: Any, at: int, number: int, *, for_ever: bool) -> None:
        self._inner, self._at, self._number, self._ever = inner, at, number, for_ever
        self.calls = 0
        self.open_handles: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)

        def passed(*arguments: Any) -> Any:
            now, self.calls = self.calls, self.calls + 1
            if now == self._at or (self._ever and now > self._at):
                if name == "write":
                    handle, offset, data = arguments
                    self._inner.write(handle, offset, data[: len(data) // 3])
                if name == "close":
                    self.open_handles.discard(arguments[0])
                    self._inner.close(*arguments)
                raise OSError(self._number, errno.errorcode[self._number])
            result = call(*arguments)
            if name in ("create", "open", "lock") and result is not None:
                self.open_handles.add(result)
            if name == "close":
                self.open_handles.discard(arguments[0])
            return result

        return passed


class PowerCut(BaseException):
    """The machine is off."""


@dataclass
class Inode:
    """A file in memory: what was written, and what of it is on the drive."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class PowerFiles:
    """Files of a machine that goes off before call `at` and keeps only what was synced.

    `deaf` names syncs that do nothing: `new` (of a file that has no name of its own yet), `log`
    (of the log itself), `dir`.
    """

    def __init__(self, at: int | None = None, deaf: str = "") -> None:
        self.at, self.deaf = at, deaf
        self.calls = 0
        self.names: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self._handles: dict[int, tuple[str, Inode]] = {}
        self._next = 1

    def _call(self) -> None:
        if self.calls == self.at:
            raise PowerCut
        self.calls += 1

    def after(self, *, names_at_once: bool) -> PowerFiles:
        """The machine on again. With `names_at_once` renames outlive it without a sync."""
        again = PowerFiles()
        kept = self.names if names_at_once else self.durable
        again.names = {n: Inode(bytearray(i.synced), i.synced) for n, i in kept.items()}
        again.durable = dict(again.names)
        return again

    def _handle(self, name: str) -> int:
        self._next += 1
        self._handles[self._next] = name, self.names[name]
        return self._next

    def create(self, name: str) -> int:
        self._call()
        self.names[name] = Inode()
        return self._handle(name)

    def open(self, name: str) -> int:
        self._call()
        return self._handle(name)

    def lock(self, name: str) -> int | None:
        self._call()
        self.names.setdefault(name, Inode())
        return self._handle(name)

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> None:
        self._call()
        inode = self._handles[handle][1]
        inode.data[len(inode.data) :] = bytes(max(0, offset - len(inode.data)))
        inode.data[offset : offset + len(data)] = data

    def preallocate(self, handle: int, nbytes: int) -> None:
        self._call()
        data = self._handles[handle][1].data
        data[len(data) :] = bytes(max(0, nbytes - len(data)))

    def read(self, handle: int, offset: int, nbytes: int) -> bytes:
        self._call()
        return bytes(self._handles[handle][1].data[offset : offset + nbytes])

    def fsync(self, handle: int) -> None:
        self._call()
        name, inode = self._handles[handle]
        new = name.endswith(".partial") and self.names.get(name) is inode
        if self.deaf != ("new" if new else "log"):
            inode.synced = bytes(inode.data)

    def fsyncdir(self) -> None:
        self._call()
        if self.deaf != "dir":
            self.durable = dict(self.names)

    def close(self, handle: int) -> None:
        self._call()
        del self._handles[handle]

    def rename(self, old: str, new: str) -> None:
        self._call()
        self.names[new] = self.names.pop(old)

    def unlink(self, name: str) -> None:
        self._call()
        del self.names[name]

    def size(self, name: str) -> int:
        self._call()
        return len(self.names[name].data)

    def exists(self, name: str) -> bool:
        self._call()
        return name in self.names

    def list(self) -> list[str]:
        self._call()
        return sorted(self.names)

    def free_bytes(self) -> int:
        return 1 << 40


def cuts(deaf: str = "") -> Iterator[tuple[int, PowerFiles, int]]:
    """The script on a machine that goes off before every call: (call, files, acknowledged)."""
    at = 0
    while True:
        files, acknowledged = PowerFiles(at, deaf), list[int]()
        try:
            script(files, acknowledged.append)
        except PowerCut:
            yield at, files, len(acknowledged)
            at += 1
            continue
        return


def store_of(*texts: Sequence[int]) -> SuffixStore:
    """A store in memory that has these texts, all of them sorted."""
    config = SuffixConfig(match_min=2)
    store = SuffixStore.open(PowerFiles(), SHA, config, VirtualClock(), SeededJobs(0))  # type: ignore[arg-type]
    assert isinstance(store, SuffixStore)
    for text in texts:
        store.add(np.array(text, np.int32), [])
    store.settle()
    return store
