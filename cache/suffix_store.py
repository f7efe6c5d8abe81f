"""The persistent suffix store: tokens read and written, kept and searched for drafts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from cache.ports import Clock, Files, Job, Jobs
from cache.suffix_array import SuffixArray
from cache.suffix_chains import BREAK, Chains, Found
from cache.suffix_log import SuffixLog
from cache.suffix_open import CAP_BYTES_MAX, Opened, open_log
from cache.suffix_overlap import Overlap, overlap
from cache.suffix_recent import Recent, Span, newest_of
from cache.types import Ids, Refusal

Scope = Literal["all", "outputs"]
Prefer = Literal["newest", "frequent"]
SCOPES: tuple[Scope, ...] = ("all", "outputs")


@dataclass(frozen=True, slots=True)
class SuffixConfig:
    """A store's settings."""

    cap_bytes: int = 192 << 20
    """Of the file: some 50 million tokens. Over it the oldest half is forgotten."""
    scope: Scope = "all"
    """`outputs` keeps only what the engine wrote."""
    readonly: bool = False
    """Not a byte is written, and nothing is added in memory either."""
    remembered: int = 4
    """Last requests whose tokens are not added again; 0 adds every prompt whole."""
    match_min: int = 3
    """Tokens of a match, at least."""
    match_max: int = 32
    rebuild_tokens: int = 65_536
    """The array is not built anew for fewer."""
    rebuild_share: float = 0.25
    """... nor for less than this share of what is in it."""

    def __post_init__(self) -> None:
        assert 1 << 12 <= self.cap_bytes <= CAP_BYTES_MAX and self.scope in SCOPES
        assert 0 < self.match_min <= self.match_max and self.remembered >= 0
        assert self.rebuild_tokens > 0 and self.rebuild_share >= 0


@dataclass(slots=True)
class SuffixStats:
    """Counts since the store was opened, and what was found then."""

    damaged: int = 0
    """Places between whole documents where something else stood, which was passed over."""
    torn_bytes: int = 0
    requests: int = 0
    sent_tokens: int = 0
    """Of the requests: what adding them whole would have added."""
    added_tokens: int = 0
    adding_requests: int = 0
    """Requests that had something new."""
    added_documents: int = 0
    refused_tokens: int = 0
    """New, but the drive would not take them."""
    forgotten_documents: int = 0
    rebuilds: int = 0
    rebuilt_tokens: int = 0
    """Sorted in all rebuilds."""
    rebuild_s_last: float = 0.0
    rebuild_s_total: float = 0.0
    failed_rebuilds: int = 0
    """For want of memory: the old array stays."""
    lookups: int = 0


@dataclass(frozen=True, slots=True)
class _Index:
    """What is searched; one value, so that it is exchanged at once."""

    array: SuffixArray
    young: Chains
    """What was added since the array's text was taken."""


@dataclass(frozen=True, slots=True)
class _Addition:
    ids: Ids
    first: int
    left_out: tuple[Span, ...] = field(default=())


class SuffixStore:
    """A log on the drive, a suffix array over it, and chains over what is not in the array yet.

    The array is built anew when the young tokens are many (`rebuild_tokens`) and a share of what it
    holds (`rebuild_share`): a token is then sorted some 1 + 1 / share times while a store grows,
    however long it gets, and the chains stay small. Until then the chains find young tokens.
    Adding and building are jobs; only lookups run on the caller's thread.
    """

    def __init__(self, opened: Opened, config: SuffixConfig, clock: Clock, jobs: Jobs) -> None:
        self.config = config
        self.stats = SuffixStats(damaged=opened.damaged, torn_bytes=opened.torn_bytes)
        self._log: SuffixLog = opened.log
        self._clock = clock
        self.jobs = jobs
        """Who pumps them pumps this store."""
        self._recent = Recent(config.remembered)
        self._waiting: deque[_Addition] = deque()
        self._index = _Index(SuffixArray.build(b""), self._chains())
        self._old = opened.text
        """Text that an array is to be built over, which is not searched yet."""
        self._forgotten = 0
        """Tokens at the text's front, separators counted, whose documents the log has forgotten."""
        self._building = False
        if opened.text:
            self._build()

    @classmethod
    def open(
        cls,
        files: Files,
        tokenizer: bytes | None,
        config: SuffixConfig,
        clock: Clock,
        jobs: Jobs,
    ) -> SuffixStore | Refusal:
        """The store of a directory. What it held is found once the first job has ended.

        The clock is read by jobs alone: on a thread of theirs it must be nobody else's.
        """
        opened = open_log(files, tokenizer, config.cap_bytes, readonly=config.readonly)
        if isinstance(opened, Refusal):
            return opened
        return cls(opened, config, clock, jobs)

    # adding

    def add(self, prompt: Ids, answer: Sequence[int], left_out: Iterable[Span] = ()) -> None:
        """A request was served: its new tokens are added by a job.

        `left_out` are spans of prompt and answer that are not to be stored, such as tokens that the
        client never sees. Negative ids are left out in any case.
        """
        if self.config.readonly:
            return
        ids = np.concatenate([prompt, np.array(answer, np.int32)])
        first = len(prompt) if self.config.scope == "outputs" else 0
        self._waiting.append(_Addition(ids, first, tuple(left_out)))
        self.jobs.start("suffix add", self._add())

    def _add(self) -> Job:
        """Take in the request that waits longest, whichever job comes to it."""
        yield
        addition, stats, log = self._waiting.popleft(), self.stats, self._log
        ids, first = addition.ids, addition.first
        found = self._recent.added(ids, first, addition.left_out)
        found = newest_of(found, log.room_tokens(len(found)))
        pieces = [ids[start:stop] for start, stop in found]
        tokens = sum(map(len, pieces))
        stats.requests += 1
        stats.sent_tokens += len(ids) - first
        if not tokens:
            return
        written, forgotten = log.append(pieces)
        stats.forgotten_documents += len(forgotten)
        self._forgotten += sum(document.tokens + 1 for document in forgotten)
        if written:
            stats.adding_requests += 1
            stats.added_tokens += tokens
            stats.added_documents += len(pieces)
            separator = np.array([BREAK], np.int32)
            self._index.young.extend(np.concatenate([p for x in pieces for p in (x, separator)]))
        else:
            stats.refused_tokens += tokens
            # It is not there, so a later request that begins like it must bring it again.
            self._recent.forget()
        if self._is_worth():
            self._build()

    def _is_worth(self) -> bool:
        """Whether so much is young, or forgotten and still held, that it is time to sort."""
        config, index = self.config, self._index
        least = max(config.rebuild_tokens, int(config.rebuild_share * index.array.tokens))
        return len(index.young) >= least or self._forgotten > 0

    # building

    def _build(self) -> None:
        if not self._building:
            self._building = True
            self.jobs.start("suffix rebuild", self._rebuild())

    def _rebuild(self) -> Job:
        """Sort what is stored; lookups use the old array until the new one takes its place."""
        yield
        begun_s = self._clock.mono_s()
        index, gone = self._index, self._forgotten
        taken = len(index.young)
        text = self._old or index.array.text
        text = (text + index.young.tokens().astype(">i4").tobytes())[4 * gone :]
        yield
        try:
            array = SuffixArray.build(text)
        except MemoryError:
            self.stats.failed_rebuilds += 1
            self._building = False
            return
        yield
        young = self._chains()
        young.extend(index.young.tokens(taken))
        self._index, self._old = _Index(array, young), b""
        self._forgotten -= gone
        self._building = False
        seconds = self._clock.mono_s() - begun_s
        stats = self.stats
        stats.rebuilds += 1
        stats.rebuilt_tokens += array.tokens
        stats.rebuild_s_last = seconds
        stats.rebuild_s_total += seconds

    def _chains(self) -> Chains:
        return Chains(self.config.match_min)

    def drain(self) -> None:
        """Every job has ended."""
        self.jobs.drain()

    def settle(self) -> None:
        """Every job has ended and everything is in the array; for what must see all of it."""
        self.jobs.drain()
        if len(self._index.young) or self._forgotten:
            self._build()
            self.jobs.drain()

    # asking

    def lookup(self, context: Sequence[int], count: int, prefer: Prefer = "newest") -> Found | None:
        """The longest match of the context's end, and up to `count` tokens after it.

        `prefer` says what to take of several equally long ones: what followed last, or mostly.
        `context` are the last tokens, at most `match_max` of which count, and no negative id. Of
        equally long matches the young one, since it is newer than all of the array.
        """
        config, index = self.config, self._index
        self.stats.lookups += 1
        young = index.young.longest(context, config.match_max, count)
        pattern = np.array(context[-config.match_max :], ">i4").tobytes()
        places = index.array.longest(pattern, config.match_min)
        if places is None or (young is not None and young.length >= places.length):
            return young
        follow = index.array.newest if prefer == "newest" else index.array.most_frequent
        return Found(places.length, follow(places, count))

    def saw(
        self, requests: Iterable[tuple[Ids, Ids]], stretch: int = 128, whole: int = 32
    ) -> Overlap | None:
        """The first sign that one of these prompts or answers was added; see `overlap`.

        Of 128 tokens: conversations of different clients were found to share 96 to 127 of them in a
        row, the chat template's text about tools.
        """
        self.settle()
        return overlap(self._index.array, requests, stretch, whole)

    @property
    def documents(self) -> int:
        """In the log."""
        return len(self._log.documents)

    @property
    def tokens(self) -> int:
        """In the log."""
        return self._log.tokens

    @property
    def errors(self) -> int:
        """Calls that the drive refused; no request failed for them."""
        return self._log.errors

    @property
    def file_bytes(self) -> int:
        """Of the log."""
        return self._log.end

    def held_bytes(self) -> int:
        """Memory between rebuilds; one takes some 20 bytes a byte of text more while it lasts."""
        index = self._index
        return index.array.held_bytes() + index.young.held_bytes() + len(self._old)

    def close(self) -> None:
        """End the jobs, and give file and lock back."""
        self.jobs.drain()
        self._log.close()
