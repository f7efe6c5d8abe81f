"""What an anchor is worth: the tokens read again for want of it, by where prompts part.

The next prompt parts from the rows at x. With anchors at a_1 < a_2 < ... it resumes at the highest
a_i <= x and reads x - a_i tokens again (a_0 = 0: cold). An anchor that goes costs

    cost(i) = P(a_i <= x < a_{i+1}) * (a_i - a_{i-1})

tokens a turn, and the one that costs least goes. P is a mixture over x, with p the end of the last
prompt, s the end of the rows and h the end of the head (tools and system text):

    weight of the rest  f(x) = 1 / (x - p + answer_knee)  on [p, s): inside or after the last answer
    before              f(x) = 1 / (p - x + before_knee)  on [0, p): an edit, likelier the later
    head                uniform on [0, h): another client's, or one whose tools or folder differ
    border              at h: a new conversation, or one that goes on from its summary
    whole               uniform on [0, s)

The constants of `Partings` were chosen among some twenty by the tokens that the Weka traces and the
bundled night read again as spark-27b. `head` and `border` matter most, by half a percent of the new
tokens each; the others by a fifth.
`moorage experiment anchor-rules --traces FOLDER` compares the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Literal, get_args

Rule = Literal["worth", "heads", "even", "newest", "every"]
"""Which anchor goes when the budget is full; `every`: none, the budget does not count."""
RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a sequence's parts end, in rows; what a rule may know of it."""

    system: int = 0
    """Tool block and system text."""
    prompt: int = 0
    """The last prompt; past the rows while it is being read."""
    stop: int = 0
    """The rows."""


@dataclass(frozen=True, slots=True)
class Partings:
    """Where prompts part from the rows in place: the mixture's constants."""

    before: float = 0.14
    """Weight of partings before the prompt's end, as 1 / distance."""
    head: float = 0.2
    """Weight of partings spread over the head."""
    whole: float = 0.03
    """Weight of partings spread over everything; the rest is the last answer's."""
    answer_knee: float = 1_000.0
    """Rows past the prompt's end within which its answer's partings are about even."""
    before_knee: float = 10.0
    """The same before it."""
    border: float = 0.03
    """Weight of partings right at the head's end."""

    def __post_init__(self) -> None:
        weights = (self.before, self.head, self.whole, self.border)
        assert min(weights) >= 0 and self.answer >= -1e-9
        assert self.answer_knee > 0 and self.before_knee > 0

    @property
    def answer(self) -> float:
        """Weight of partings in the last answer or at its end."""
        return 1.0 - self.before - self.head - self.whole - self.border

    def below(self, x: int, layout: Layout) -> float:
        """Probability that the next prompt parts below row `x`; 1 from the rows' end on."""
        prompt, stop = layout.prompt, max(layout.stop, layout.prompt, 1)
        if x >= stop:
            return 1.0
        total = self.whole * x / stop + self.border * (x > layout.system)
        total += self.head * (min(1.0, x / layout.system) if layout.system else x / stop)
        if x >= prompt:
            knee = self.answer_knee
            total += self.before
            total += self.answer * log((x - prompt) / knee + 1) / log((stop - prompt) / knee + 1)
        else:
            knee = self.before_knee
            total += self.before * (1 - log((prompt - x) / knee + 1) / log(prompt / knee + 1))
        return total


def costs(lines: Sequence[int], layout: Layout, partings: Partings) -> list[float]:
    """Tokens a turn read again for want of each line (ascending), were it alone to go."""
    below = [partings.below(line, layout) for line in lines] + [1.0]
    gaps = [line - under for under, line in pairwise([0, *lines])]
    return [(b - a) * gap for (a, b), gap in zip(pairwise(below), gaps, strict=True)]


def spans(lines: Sequence[int]) -> list[int]:
    """Rows between each line's neighbours (ascending; the last has none above): even spacing."""
    inner = [above - below for below, above in zip([0, *lines], lines[1:], strict=False)]
    return [*inner, 2**62]
