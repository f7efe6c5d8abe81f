"""Greedy and sampled decoding; drafts change how fast tokens come, never which or how likely."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch

from cache.types import Ids
from engine.adapter import Engine
from engine.lookup import Lookup


@dataclass(frozen=True, slots=True)
class Sampling:
    """A request's sampling; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    seed: int = 0
    min_p: float = 0.0
    """Keeps what is at least this likely, as a share of the likeliest; 0 keeps every token."""

    def __post_init__(self) -> None:
        assert self.temperature >= 0.0 and 0.0 < self.top_p <= 1.0 and self.top_k >= 0
        assert 0.0 <= self.min_p <= 1.0

    def with_model(
        self, temperature: float | None, top_p: float | None, top_k: int | None
    ) -> Sampling:
        """The same with what a model's files ask for; None is no wish."""
        return replace(
            self,
            temperature=self.temperature if temperature is None else temperature,
            top_p=self.top_p if top_p is None else top_p,
            top_k=self.top_k if top_k is None else top_k,
        )


class Drafting:
    """Where guesses come from: a lookup when its match is long enough, else the draft layer."""

    def __init__(self, drafts: int, lookup: Lookup | None) -> None:
        """`drafts` is how many the draft layer gives; a lookup has its own count."""
        self._drafts = drafts
        self._lookup = lookup

    def begin(self, ids: Ids) -> None:
        """A lookup searches the prompt."""
        if self._lookup is not None:
            self._lookup.begin(ids)

    def drafts(self, engine: Engine, token: int) -> list[int]:
        """What the lookup found, else what the engine's draft layer guesses."""
        guesses = self._lookup.guess(engine) if self._lookup is not None else []
        if guesses or not self._drafts:
            return guesses
        return engine.draft(token, self._drafts)

    def _wrote(self, tokens: Sequence[int]) -> None:
        if self._lookup is not None:
            self._lookup.wrote(tokens)


class Greedy(Drafting):
    """The token with the highest logit; a draft is accepted when it is that token."""

    key: Hashable | None = "greedy"
    """How many are drafted decides nothing."""

    def __init__(self, drafts: int = 3, lookup: Lookup | None = None) -> None:
        super().__init__(drafts, lookup)

    def first(self, logits: torch.Tensor) -> int:
        """The arg max."""
        token = int(logits.argmax())
        self._wrote([token])
        return token

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        """Accept the drafts that greedy decoding would have written itself."""
        best: list[int] = logits.argmax(dim=-1).tolist()
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == best[accepted]:
            accepted += 1
        self._wrote([*drafts[:accepted], best[accepted]])
        return accepted, best[accepted]


class Sampled(Drafting):
    """Sampling with drafts that are single guesses: a position's token is drawn, then compared.

    A guess d is accepted when it is what was drawn, so with probability p(d), as in speculative
    rejection (Leviathan et al., 2023, with a point mass as the draft's distribution). One draw a
    token, whatever was guessed: a seed gives the same answer with drafts and without.
    """

    key: Hashable | None = None

    def __init__(self, sampling: Sampling, drafts: int = 3, lookup: Lookup | None = None) -> None:
        assert sampling.temperature > 0.0
        super().__init__(drafts, lookup)
        self._sampling = sampling
        self._generator = torch.Generator().manual_seed(sampling.seed)

    def first(self, logits: torch.Tensor) -> int:
        """A draw from the prompt's last distribution."""
        token = self._draw(self.probabilities(logits))
        self._wrote([token])
        return token

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        """Draw position by position; accept the drafts that were drawn."""
        accepted, token = self._judged(logits, drafts)
        self._wrote([*drafts[:accepted], token])
        return accepted, token

    def _judged(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        for at, guess in enumerate(drafts):
            token = self._draw(self.probabilities(logits[at]))
            if token != guess:
                return at, token
        return len(drafts), self._draw(self.probabilities(logits[len(drafts)]))

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Float32 probabilities after temperature, min-p, top-k and top-p, shape (vocab,)."""
        sampling = self._sampling
        scaled = logits.float() / sampling.temperature
        if sampling.min_p > 0.0:
            scaled = scaled.masked_fill(scaled < scaled.max() + math.log(sampling.min_p), -math.inf)
        if sampling.top_k and sampling.top_k < len(scaled):
            lowest = scaled.topk(sampling.top_k).values[-1]
            scaled = scaled.masked_fill(scaled < lowest, -math.inf)
        p = torch.softmax(scaled, dim=-1)
        if sampling.top_p < 1.0:
            ordered, order = p.sort(descending=True)
            # The token that crosses top_p stays: what came before it must be below.
            # Summed by the host: devices may add up in any order, another one at each run.
            summed = ordered.cpu().cumsum(dim=-1).to(p.device)
            keep = summed - ordered < sampling.top_p
            keep[0] = True  # however small top_p is; float32 may have no number for it
            p = torch.zeros_like(p).scatter(0, order, ordered * keep)
            p /= p.sum()
        return p

    def _draw(self, p: torch.Tensor) -> int:
        # On the host, wherever the logits are: a seed gives the same draws.
        return int(torch.multinomial(p.cpu(), 1, generator=self._generator))
