"""What a checked request asks of its answer"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.penalties import Penalties
from engine.sampling import Sampling

CHOICES_MAX = 8


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a request says nothing; of the model, its configuration and the server."""

    vocab: int
    """Ids of the model; a bias for another is refused."""
    seed: int
    """The seed of a request that has none: another one each time."""
    sampling: Sampling = field(default_factory=Sampling)
    """The model's own: a request that names no temperature gets this one."""
    repetition: float = 1.0
    thinking_max: int | None = None
    """Tokens of thinking; None is no limit."""
    efforts: Mapping[str, int | None] = field(default_factory=dict)
    """Tokens of thinking by `reasoning_effort`."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How an answer is wanted. What it answers (messages, tools, prompts) is not in here."""

    model: str = ""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the usage."""
    n: int = 1
    """Choices for each prompt."""
    answer_max: int | None = None
    """Tokens of the answer; None for what the window leaves."""
    stop: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    """The first choice's; `sampling_of` has the others'."""
    penalties: Penalties = field(default_factory=Penalties)
    logprobs: int | None = None
    """Alternatives shown for each token; None when no probabilities are wanted."""
    thinking_max: int | None = None
    """Tokens of thinking; 0 is none at all, None no limit."""
    tool_choice: str = "auto"
    """auto, none, required; or, when `tool_named`, the name of the one tool to call."""
    tool_named: bool = False
    """Whether `tool_choice` is a tool's name; a tool may be named like one of the words."""
    parallel_tool_calls: bool = True
    echo: bool = False
    """Whether a text completion gives the prompt back before its answer."""

    def __post_init__(self) -> None:
        assert 1 <= self.n <= CHOICES_MAX
        assert self.answer_max is None or self.answer_max > 0
        assert self.thinking_max is None or self.thinking_max >= 0

    @property
    def greedy(self) -> bool:
        """Whether chance has no part in it; every choice is then the same."""
        return self.sampling.temperature == 0.0

    @property
    def must_call(self) -> bool:
        """Whether the answer has to call a tool."""
        return self.tool_named or self.tool_choice == "required"

    def sampling_of(self, choice: int) -> Sampling:
        """A choice's sampling. Choice 0 has the request's seed, so that n never changes it."""
        return replace(self.sampling, seed=seed_of(self.sampling.seed, choice))


def seed_of(seed: int, choice: int) -> int:
    """The seed of one choice among several: the same for the same request."""
    if choice == 0:
        return seed
    digest = hashlib.sha256(f"{seed} {choice}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
