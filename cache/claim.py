"""Claiming a directory: it is one of ours or an empty one, it is marked, and nobody else has it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from cache.format import Bad, read_record, write_record
from cache.ports import Files
from cache.saving import TMP, said
from cache.types import Refusal


@dataclass(frozen=True, slots=True)
class Claimed:
    """A directory that is this process's."""

    lock: int
    """A handle; whoever closes it gives the directory back."""
    names: list[str]
    """What lies in it."""


def claim(
    files: Files,
    marker: str,
    lock: str,
    tier: str,
    what: str,
    counts: Callable[[str], bool] = lambda name: True,
) -> Claimed | Refusal:
    """Take a directory and mark it as that of a tier; never raises.

    Without the marker only an empty one is taken; `counts` says of a name whether it is one that
    makes a directory not empty. `what` names the tier to a person.
    """
    try:
        handle = _locked(files, marker, lock, tier, what, counts)
    except OSError as error:
        return Refusal("", f"cannot be used: {said(error)}")
    if isinstance(handle, Refusal):
        return handle
    try:
        return Claimed(handle, files.list())
    except OSError as error:
        with suppress(OSError):
            files.close(handle)
        return Refusal("", f"cannot be listed: {said(error)}")


def _locked(
    files: Files, marker: str, lock: str, tier: str, what: str, counts: Callable[[str], bool]
) -> int | Refusal:
    """The handle of the lock. Raises OSError."""
    names = [name for name in files.list() if name != lock]
    if marker not in names:
        # A crash may have come between the directory and its marker.
        others = [name for name in names if name != marker + TMP and counts(name)]
        if others:
            first = others[0] if others[0].isprintable() else ascii(others[0])
            why = f"holds {first}, which is no {what}'s: give it a folder of its own"
            return Refusal("", why)
    found = read_record(files, marker, marker) if marker in names else Bad("there is none")
    if isinstance(found, Bad) and (found.foreign or found.future):
        return Refusal(marker, f"is no {what}'s marker: {found.why}")
    try:
        handle = files.lock(lock)
    except OSError as error:
        return Refusal(lock, f"cannot be locked: {said(error)}")
    if handle is None:
        return Refusal(lock, "another process uses this directory")
    lacks = isinstance(found, Bad) and not found.error
    if lacks and (why := write_record(files, marker, marker, {"tier": tier})):
        files.close(handle)
        return Refusal(marker, f"cannot be written: {why}")
    return handle
