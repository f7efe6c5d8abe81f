"""Values of spans as a manifest holds them: no text is written, only what tells it apart."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any


class Digested:
    """Stands for a text whose SHA-256 is known; equal to that text, and to what stands for it."""

    def __init__(self, digest: str) -> None:
        """`digest` is 64 hex digits."""
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise ValueError(f"no digest: {digest[:70]!r}")
        self.digest = digest

    @classmethod
    def of(cls, text: str) -> Digested:
        """What stands for a text."""
        return cls(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            other = Digested.of(other)
        return isinstance(other, Digested) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def plain(value: Hashable) -> Any:
    """A value as JSON holds it: a number itself, a text as its digest; None for anything else."""
    if isinstance(value, str):
        value = Digested.of(value)
    if isinstance(value, Digested):
        return value.digest
    return value if type(value) is int else None


def told(value: Any) -> Hashable:
    """The value that `plain` wrote; raises ValueError for what it never writes."""
    if isinstance(value, str):
        return Digested(value)
    if type(value) is not int:
        raise ValueError(f"no value: {value!r}")
    return value
