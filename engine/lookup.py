"""The lookup drafter: what followed the same tokens in the prompt or the suffix store."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from cache.suffix_chains import BREAK, Chains, Found
from cache.suffix_store import Prefer, SuffixStore
from cache.types import Ids
from engine.adapter import Engine


@dataclass(frozen=True, slots=True)
class LookupConfig:
    """When a match is long enough, and how much is taken of what followed."""

    match_min: int = 3
    """A shorter match is left to the engine's own draft layer."""
    match_max: int = 32
    drafts: int = 3
    """Guesses a block carries at most."""
    prefer: Prefer = "newest"
    """Of equally long matches in the store: what followed last, or mostly."""

    def __post_init__(self) -> None:
        assert 0 < self.match_min <= self.match_max and self.drafts >= 0


class Lookup:
    """Guesses for one answer: the longest match of the end of what was read and written.

    Searched are the prompt with the answer so far, and the store. The longer match wins; of equal
    ones the request's own. A guess is a guess: the judge decides, so that what a store holds never
    changes what is written. No match reaches over a picture, and none gives a token that the engine
    does not have. Tokens that others write in its stead (a monitor's phrase) it never hears of, as
    the client does not.
    """

    def __init__(
        self, store: SuffixStore | None = None, config: LookupConfig | None = None
    ) -> None:
        self.config = config = config or LookupConfig()
        self._store = store
        self._own = Chains(config.match_min, bits=10)
        self._tail: deque[int] = deque(maxlen=config.match_max)

    def begin(self, ids: Ids) -> None:
        """The prompt as it was served, pictures' negative ids and all."""
        bits = min(20, max(10, len(ids).bit_length()))
        self._own = Chains(self.config.match_min, bits=bits)
        self._own.extend(ids.clip(min=BREAK))
        self._tail.clear()
        self._remember(ids[-self.config.match_max :].tolist())

    def wrote(self, tokens: Sequence[int]) -> None:
        """The answer goes on with these."""
        for token in tokens:
            self._own.append(token)
        self._remember(tokens)

    def guess(self, engine: Engine) -> list[int]:
        """What may follow; empty without a match that is long enough."""
        found = self.find(self.config.drafts)
        if found is None:
            return []
        vocab = engine.vocab
        unknown = (at for at, token in enumerate(found.tokens) if token >= vocab)
        return found.tokens[: next(unknown, len(found.tokens))]

    def find(self, count: int) -> Found | None:
        """The match itself, and up to `count` tokens after it."""
        context, config = list(self._tail), self.config
        if len(context) < config.match_min or not count:
            return None
        own = self._own.longest(context, config.match_max, count)
        if self._store is None:
            return own
        stored = self._store.lookup(context, count, config.prefer)
        if stored is None or stored.length < config.match_min or not stored.tokens:
            return own
        return own if own is not None and own.length >= stored.length else stored

    def _remember(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token < 0:
                self._tail.clear()
            else:
                self._tail.append(token)
