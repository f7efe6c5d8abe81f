"""Restarts: after which requests a replay's process ends, and starts again on the same files"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.bad import BadInput


@dataclass(frozen=True, slots=True, order=True)
class Restart:
    """The process ends after so many requests: engine and caches in memory are made anew."""

    after: int
    """Requests served or refused before, in the order they were, from the replay's start."""
    deploys: bool = False
    """Other code starts: what computes rows is another one, as the drive's files see it."""
    kills: bool = False
    """It ends without a word: what memory holds is lost. Else it is a planned stop."""

    def __post_init__(self) -> None:
        assert self.after > 0


def restarts_of(
    texts: Sequence[str], requests: int, kills: Sequence[str] = ()
) -> tuple[Restart, ...]:
    """`--restart` and `--kill` values, ascending: numbers of requests, or percentages of them all.

    Raises BadInput for what is neither, or leaves no request on one of its sides.
    """
    planned = {Restart(_after(text, requests, "--restart")) for text in texts}
    killed = {Restart(_after(text, requests, "--kill"), kills=True) for text in kills}
    return tuple(sorted(planned | killed))


def _after(text: str, requests: int, flag: str) -> int:
    try:
        value = float(text.removesuffix("%").replace("_", ""))
    except ValueError:
        value = math.nan
    share = text.endswith("%")
    if math.isnan(value) or not (share or value.is_integer()):
        raise BadInput(flag, None, f"{text!r} is neither a number of requests nor a share")
    if math.isfinite(value):
        after = round(value / 100 * requests) if share else int(value)
        if 0 < after < requests:
            return after
    why = f"{text!r} leaves no request before or after it: there are {requests:,}"
    raise BadInput(flag, None, why)
