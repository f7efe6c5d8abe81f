"""Names of the spill's files: what a file is, of which entry, and what it holds."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence

from cache.spill.sums import Sums
from cache.types import Ids

NAME = "spill"
YIELDED = "yielded"
"""Why a save or a reading that could wait ended: somebody wanted the engine."""
"""Of the tier, in offers and in the journal."""
MARKER, LOCK, LAST = "moorage-spill", "lock", "last"
"""The directory's marker, its lock, and the record of the conversation that was in place."""
BLOCK, COPY, MANIFEST = "block", "anchor", "manifest"
"""Kinds of file, and how their names end."""

OURS = re.compile(
    r"(?P<key>[0-9a-f]{16})(?:"
    r"\.(?P<start>\d{8})-(?P<stop>\d{8})\.[0-9a-f]{16}\.block"
    r"|\.(?P<tokens>\d{8})-(?:grid|checkpoint|end)\.[0-9a-f]{16}\.anchor"
    r"|\.manifest)"
)
"""The files of entries."""
RECORDS = re.compile(rf"{MARKER}|{LAST}|equal|inputs-[0-9a-f]{{12}}")


def block_name(key: int, start: int, stop: int, ids: Ids, sums: Sequence[Sums]) -> str:
    """Of a block with these tokens and sums: another content has another name."""
    return f"{key:016x}.{start:08d}-{stop:08d}.{_digest(ids, sums)}.{BLOCK}"


def copy_name(key: int, tokens: int, kind: str, sums: Sequence[Sums]) -> str:
    """Of a copy of the sections with these sums."""
    return f"{key:016x}.{tokens:08d}-{kind}.{_digest(None, sums)}.{COPY}"


def manifest_name(key: int) -> str:
    """Of an entry's manifest."""
    return f"{key:016x}.{MANIFEST}"


def key_of(name: str) -> int | None:
    """The entry that a file belongs to; None for a file of no entry."""
    match = OURS.fullmatch(name)
    return int(match["key"], 16) if match else None


def rows_of(name: str) -> int | None:
    """Rows in a block's file, by its name; None for any other file."""
    match = OURS.fullmatch(name)
    return int(match["stop"]) - int(match["start"]) if match and match["stop"] else None


def _digest(ids: Ids | None, sums: Sequence[Sums]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for plain, weighted in sums:
        digest.update(struct.pack("<2Q", plain, weighted))
    if ids is not None:
        digest.update(ids.tobytes())
    return digest.hexdigest()
