"""Faults of simulated files: which calls fail and how, and what a reader gets instead."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

Rot = Callable[[str, bytes], bytes]
"""From a file's name and all its bytes to what is read in their place. A function of the content,
so that reading again heals nothing."""
Short = Callable[[str, int], int]
"""From a file's name and the bytes that a read found to how many of them it gives."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Call `call`, counted from 0, fails; with `for_ever` every call from it on."""

    call: int
    errno: int
    for_ever: bool = False
    half: bool = False
    """The first half of a write is made, of a read given, before it fails."""
    reverts: bool = False
    """A sync that fails leaves readers what was synced before, not what was written since."""

    def hits(self, call: int) -> bool:
        """Whether this call fails."""
        return call == self.call or (self.for_ever and call > self.call)

    def error(self) -> OSError:
        """What the call raises."""
        return OSError(self.errno, f"planted {errno.errorcode[self.errno]}")
