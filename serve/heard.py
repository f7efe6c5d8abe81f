"""What is heard of a request while the engine works on it, in order"""

from __future__ import annotations

from dataclasses import dataclass

from cache.journal import TurnRow
from cache.types import Line
from serve.chat.deltas import Delta


@dataclass(frozen=True, slots=True)
class Reading:
    """The prefill has come to `done` of `size` tokens; it began at `line`."""

    done: int
    size: int
    line: Line


@dataclass(frozen=True, slots=True)
class Said:
    """The answer goes on; `deltas` are new for the client, perhaps none."""

    deltas: tuple[Delta, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class NoRoom:
    """There is no memory to read the prompt now; it may be sent again."""

    why: str
    retry_after_s: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The turn is over, also when the client went away; its row is in the journal."""

    row: TurnRow


@dataclass(frozen=True, slots=True)
class Broke:
    """The engine failed, or the server stops; the text is for the log."""

    why: str
    stops: bool = False


Heard = Reading | Said | NoRoom | Ended | Broke
LAST = NoRoom | Ended | Broke
"""Nothing follows one of these."""
