"""A suffix store for a replay or an experiment, and its refusal where it saw too much."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cache.host import OsFiles, SystemClock, sigterm_unwinds
from cache.suffix_log import LOCK, NAME, PARTIAL
from cache.suffix_open import CAP_BYTES_MAX, look
from cache.suffix_store import SCOPES, SuffixConfig, SuffixStore
from cache.types import Ids, Refusal
from engine.bad import BadInput
from replay.source import Source
from replay.tokens import Tokens
from replay.trace import Trace
from sim.jobs import SeededJobs
from sim.profile import Profile

_OURS = frozenset({NAME, PARTIAL, LOCK})


@dataclass(frozen=True, slots=True)
class Flags:
    """Where a store lies, and how it is opened."""

    directory: Path
    scope: str = "all"
    readonly: bool = False
    cap_mib: int = 192

    def config(self) -> SuffixConfig:
        """As the store has it; raises BadInput."""
        for scope in SCOPES:
            if scope == self.scope:
                break
        else:
            known = " nor ".join(SCOPES)
            raise BadInput("--suffix-scope", None, f"{self.scope!r} is neither {known}")
        most = CAP_BYTES_MAX >> 20
        if not 1 <= self.cap_mib <= most:
            raise BadInput("--suffix-mb", None, f"{self.cap_mib} is not within 1 and {most}")
        return SuffixConfig(cap_bytes=self.cap_mib << 20, scope=scope, readonly=self.readonly)


def flags_of(
    directory: Path | None, scope: str = "all", readonly: bool = False, cap_mib: int = 192
) -> Flags | None:
    """The command line's flags; None without a directory, which the others need."""
    if directory is not None:
        return Flags(directory, scope, readonly, cap_mib)
    if (scope, readonly, cap_mib) != ("all", False, 192):
        raise BadInput("--suffix-dir", None, "is missing, and the other --suffix flags need it")
    return None


def speak_alike(traces: Sequence[Trace]) -> bool:
    """Whether all traces have their own tokens, of one tokenizer."""
    if any(trace.live is None for trace in traces):
        return False
    return len({trace.header.tokenizer for trace in traces}) == 1


def tokenizer_of(traces: Sequence[Trace], board: Profile, seed: int) -> bytes:
    """A sha256 that says whose tokens these are.

    Recordings have their tokenizer's. The tokens of a scrubbed trace are drawn from a hash, so
    that equal ids mean something only where vocabulary, seed and the trace's tokenizer are equal.
    """
    names = ", ".join(sorted({trace.header.tokenizer for trace in traces}))
    if speak_alike(traces):
        return hashlib.sha256(f"tokenizer {names}".encode()).digest()
    space = f"drawn: vocabulary {board.vocab}, seed {seed}, tokenizer {names}"
    return hashlib.sha256(space.encode()).digest()


def sources_of(traces: Sequence[Trace], board: Profile, seed: int) -> Iterator[Source]:
    """The tokens of each trace, as a replay of them has them; one trace's at a time."""
    alike = speak_alike(traces)
    for index, trace in enumerate(traces):
        if alike and trace.live is not None:
            yield trace.live
        else:
            yield Tokens(trace, vocab=board.vocab, seed=seed + index)


def open_store(flags: Flags, tokenizer: bytes, seed: int) -> SuffixStore:
    """The store of a directory, made private; raises BadInput, one line that names the file."""
    config, place = flags.config(), str(flags.directory)
    try:
        if not flags.readonly and flags.directory.exists():
            _refuse_foreign(flags.directory, tokenizer)
        files = OsFiles(flags.directory, readonly=flags.readonly)
        if not flags.readonly:
            files.make_private()
    except OSError as error:
        at = str(error.filename or place)
        raise BadInput(at, None, f"cannot be used: {error.strerror}") from None
    store = SuffixStore.open(files, tokenizer, config, SystemClock(), SeededJobs(seed))
    if isinstance(store, Refusal):
        raise BadInput(str(flags.directory / store.name), None, store.why)
    return store


def _refuse_foreign(directory: Path, tokenizer: bytes) -> None:
    """Raise BadInput for what is no store of this tokenizer, before anything of it is changed."""
    files = OsFiles(directory, readonly=True)
    foreign = [name for name in files.list() if name not in _OURS]
    if foreign:
        why = f"holds {foreign[0]}, which is no suffix store's: give it a folder of its own"
        raise BadInput(str(directory), None, why)
    if refused := look(files, tokenizer):
        raise BadInput(str(directory / refused.name), None, refused.why)


@contextmanager
def opened(
    flags: Flags | None, traces: Sequence[Trace], board: Profile, seed: int
) -> Iterator[SuffixStore | None]:
    """The store of these flags, closed afterwards; None without any. Raises BadInput."""
    if flags is None:
        yield None
        return
    store = open_store(flags, tokenizer_of(traces, board, seed), seed)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def scratch_store(config: SuffixConfig, tokenizer: bytes) -> Iterator[SuffixStore]:
    """A store that is gone afterwards, also after SIGTERM; its jobs run on the caller's thread."""
    with sigterm_unwinds(), TemporaryDirectory(prefix="moorage-suffix-") as folder:
        files, jobs = OsFiles(Path(folder)), SeededJobs(0)
        store = SuffixStore.open(files, tokenizer, config, SystemClock(), jobs)
        if isinstance(store, Refusal):
            raise BadInput(str(Path(folder) / store.name), None, store.why)
        try:
            yield store
        finally:
            store.close()


def asked(traces: Sequence[Trace], sources: Iterable[Source]) -> Iterator[tuple[Ids, Ids]]:
    """Prompt and answer of every request."""
    for trace, source in zip(traces, sources, strict=True):
        for request in trace.requests:
            yield source.prompt(request.number), source.output(request.number)


def refuse_seen(
    store: SuffixStore, flags: Flags, traces: Sequence[Trace], board: Profile, seed: int
) -> None:
    """Raise BadInput when the store holds what is about to be measured."""
    seen = store.saw(asked(traces, sources_of(traces, board, seed)))
    if seen is None:
        return
    numbers = [(trace.name, request.id) for trace in traces for request in trace.requests]
    name, request_id = numbers[seen.request]
    raise BadInput(
        str(flags.directory / NAME),
        None,
        f"has seen this benchmark: {seen.tokens} tokens of {name}, request {request_id}, "
        f"from token {seen.at:,}; measure with a store that never held its text",
    )


def figures(store: SuffixStore) -> dict[str, Any]:
    """A store in plain numbers, once its jobs have ended."""
    whole = {"documents": store.documents, "tokens": store.tokens, "file_bytes": store.file_bytes}
    more = {"errors": store.errors, "held_bytes": store.held_bytes()}
    return whole | more | asdict(store.stats)


def lines(store: dict[str, Any]) -> list[str]:
    """The same for a person: what was kept, and what was found wrong."""
    sent, added = store["sent_tokens"], store["added_tokens"]
    said = [
        f"{store['documents']:,} documents, {store['tokens']:,} tokens; of {sent:,} sent "
        f"{added:,} were added; {store['rebuilds']:,} rebuilds, "
        f"{store['rebuild_s_total']:.2f} s in all, the last {store['rebuild_s_last']:.2f} s"
    ]
    if store["damaged"] or store["torn_bytes"]:
        said.append(
            f"found damaged: {store['damaged']:,} places between documents, "
            f"{store['torn_bytes']:,} bytes after the last; left out"
        )
    if store["errors"]:
        said.append(
            f"the drive refused {store['errors']:,} calls, and with them "
            f"{store['refused_tokens']:,} tokens"
        )
    if store["forgotten_documents"]:
        said.append(f"{store['forgotten_documents']:,} documents were forgotten at the cap")
    return said
