"""Penalties of what was said already, and biases of single tokens, whatever is drafted"""

from __future__ import annotations

from dataclasses import dataclass

BIAS_MAX = 100.0


@dataclass(frozen=True, slots=True)
class Penalties:
    """What a request adds to the logits before a token is chosen."""

    presence: float = 0.0
    """Taken from each token that the answer has already."""
    frequency: float = 0.0
    """Taken from a token as often as the answer has it."""
    repetition: float = 1.0
    """Divides positive logits, and multiplies others, of tokens that prompt or answer have."""
    bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit), ascending."""

    def __post_init__(self) -> None:
        assert self.repetition > 0.0
        assert all(token >= 0 and abs(by) <= BIAS_MAX for token, by in self.bias)

    @property
    def none(self) -> bool:
        """Whether it changes nothing."""
        return self == Penalties()
