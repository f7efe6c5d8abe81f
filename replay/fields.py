"""A JSON object's fields, each checked for its type and range on the way out"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from replay.open import Malformed, parse_json

SEQUENCE_MAX = 1 << 24
"""Most tokens of a prompt and its answer together: a limit, so that no line asks for terabytes."""
COUNT_MAX = 1 << 53
"""Largest whole number that every JSON reader keeps exact."""

D = TypeVar("D")


def whole(value: Any, what: str, low: int, high: int = COUNT_MAX) -> int:
    """An int in [low, high]; true and false are none."""
    if type(value) is not int:
        raise Malformed(f"{what} is not a whole number: {shown(value)}")
    if not low <= value <= high:
        raise Malformed(f"{what} is not in {low}..{high}: {shown(value)}")
    return value


def finite(value: Any, what: str, low: float = 0.0) -> float:
    """A finite number of at least `low`."""
    if type(value) is not int and type(value) is not float:
        raise Malformed(f"{what} is not a number: {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < low:
        raise Malformed(f"{what} is not a finite number of at least {low:g}: {shown(value)}")
    return number


def shown(value: Any) -> str:
    """A value for an error message: one line, not long."""
    text = repr(value) if not isinstance(value, int) or abs(value) < COUNT_MAX else "a huge one"
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, slots=True)
class Fields:
    """An object's values by key. A getter with a default takes a missing key or null for it."""

    values: dict[str, Any]

    @classmethod
    def of(cls, value: Any, what: str = "the line") -> Fields:
        """A value that must be an object."""
        if not isinstance(value, dict):
            raise Malformed(f"{what} is not an object")
        return cls(value)

    @classmethod
    def parse(cls, line: str) -> Fields:
        """A line of JSON that must be an object."""
        return cls.of(parse_json(line))

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def get(self, key: str) -> Any:
        """A value that must be there."""
        if not self.has(key):
            raise Malformed(f"no {key!r}")
        return self.values[key]

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self.get(key) if default is None else self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise Malformed(f"{key!r} is not a string: {shown(value)}")
        return value

    def whole(self, key: str, low: int = 0, high: int = COUNT_MAX) -> int:
        """A whole number that must be there."""
        return whole(self.get(key), repr(key), low, high)

    def whole_or(self, key: str, default: D, low: int = 0, high: int = COUNT_MAX) -> int | D:
        """A whole number, or `default`."""
        return self.whole(key, low, high) if self.has(key) else default

    def finite(self, key: str, low: float = 0.0) -> float:
        """A number that must be there."""
        return finite(self.get(key), repr(key), low)

    def finite_or(self, key: str, default: D, low: float = 0.0) -> float | D:
        """A number, or `default`."""
        return self.finite(key, low) if self.has(key) else default

    def items(self, key: str) -> list[Any]:
        """A list; a missing one is empty."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise Malformed(f"{key!r} is not a list")
        return value

    def object(self, key: str) -> dict[str, Any]:
        """An object; a missing one is empty."""
        return Fields.of(self.values[key], repr(key)).values if self.has(key) else {}

    def without(self, known: Iterable[str]) -> dict[str, Any]:
        """The keys that are not in `known`."""
        known = set(known)
        return {key: value for key, value in self.values.items() if key not in known}


def spans(row: Fields, key: str, size: int, names: tuple[str, ...]) -> Iterator[list[Any]]:
    """Spans [start, length, ...] within `size` tokens, each past the one before.

    What follows the length is unread; `names` says what the entries are.
    """
    end = 0
    for given in row.items(key):
        if not isinstance(given, list) or len(given) != len(names):
            raise Malformed(f"a span of {key!r} is not [{', '.join(names)}]: {shown(given)}")
        start = whole(given[0], f"a start in {key!r}, past the span before it,", end, size)
        length = whole(given[1], f"a length in {key!r}", 1, size - start)
        yield [start, length, *given[2:]]
        end = start + length
