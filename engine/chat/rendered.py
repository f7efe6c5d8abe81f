"""What the chat template gives: a prompt or an answer as tokens, with what stands where"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cache.types import Ids, Valued
from engine.chat.messages import Show


class Shown(NamedTuple):
    """An image of a prompt: its rows begin at `start`."""

    start: int
    image: Show


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt. `system`, `tools`, `history` and `images` are its tokens by what they are, and add
    up. An image's rows hold its key ids; the marks around them are history."""

    ids: Ids
    system: int
    tools: int
    history: int
    valued: tuple[Valued, ...] = ()
    """Where its tool calls stand, with what they say."""
    images: int = 0
    shown: tuple[Shown, ...] = ()
    """Its images, in order."""
    last_user: int = 0
    """Where its last message of a user starts; 0 without any, or where it begins with one."""
    first_answer: int = 0
    """Where the first answer in it starts, behind what the template opens for one; 0 without."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded reply as the tokens an engine would have written after the prompt."""

    ids: Ids
    think_end: int | None
    """Tokens up to and with the end of the thinking the answer begins with, all of them when it
    was cut inside; None when it begins without a thought."""
    valued: tuple[Valued, ...] = ()
    """Where its tool calls stand, with what they say."""


def moved(spans: Iterable[Valued], by: int) -> Iterator[Valued]:
    """The spans where `by` tokens stand before them."""
    return (Valued(span.start + by, span.stop + by, span.value) for span in spans)
