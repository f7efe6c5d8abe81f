"""The settings document: one versioned value that says what holds from the next request on"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from cache.config import StackConfig
from cache.disk.config import DiskConfig
from cache.spill.config import SpillConfig
from cache.types import Limits
from cache.writeguard import GuardConfig
from serve.sections import (
    CompactionSettings,
    DiskSettings,
    MemorySettings,
    Section,
    ServingSettings,
    SpillSettings,
    WriteSettings,
)

VERSION = 1
"""Of the document's format."""
BOARD_BYTES = 119 * 2**30
"""What a board of 128 GB has for its programs; the usual figures are for one."""
MACHINE_BYTES_MIN = 2**30
NAME_CHARACTERS_MAX = 80


class Stale(ValueError):
    """A change to a document that is no longer the one in force."""


class Settings(Section):
    """All that may be changed while the server runs. A change makes another document."""

    version: int = Field(default=VERSION, ge=VERSION, le=VERSION)
    revision: int = Field(default=0, ge=0, lt=2**53)
    """Counted up at every change."""
    memory: MemorySettings = MemorySettings()
    disk: DiskSettings = DiskSettings()
    spill: SpillSettings = SpillSettings()
    writes: WriteSettings = WriteSettings()
    alignment: Literal["full", "off"] = "full"
    """Whether a client's copy of a conversation may differ from the rows and meet them all the
    same."""
    compaction: CompactionSettings = CompactionSettings()
    serving: ServingSettings = ServingSettings()

    @classmethod
    def for_machine(cls, total_bytes: int) -> Settings:
        """The usual document; on a machine of less memory than a board, its share of the GiB."""
        share = min(1.0, max(total_bytes, MACHINE_BYTES_MIN) / BOARD_BYTES)
        return cls(memory=MemorySettings.scaled(share))

    # a document as others write it

    def as_json(self) -> dict[str, Any]:
        """The document in plain values."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, document: Mapping[str, Any], over: Settings | None = None) -> Settings:
        """A document that was written before; what it does not name is as in `over`.

        Raises ValueError, in one line that names the setting.
        """
        return _read(_merged((over or cls()).as_json(), document))

    def changed(self, patch: Mapping[str, Any]) -> Settings:
        """The document with some of its settings replaced, one revision on; itself when nothing is
        another than it was.

        A patch that names a `revision` is for that document alone: Stale for any other. Raises
        ValueError, in one line that names the setting.
        """
        if not isinstance(patch, Mapping):
            raise ValueError("settings: an object of sections is wanted")
        revision = patch.get("revision", self.revision)
        if type(revision) is not int:
            raise ValueError("revision: a whole number is wanted")
        if revision != self.revision:
            raise Stale(
                f"revision: {revision} is not in force, {self.revision} is; read it, then change it"
            )
        other = _read(_merged(self.as_json(), patch))
        if other == self:
            return self
        return other.model_copy(update={"revision": self.revision + 1})

    # what the tiers are given

    def limits(self) -> Limits:
        """What the memory budget is held to."""
        return self.memory.limits()

    def stack_config(self, base: StackConfig | None = None) -> StackConfig:
        """The caches' settings; what the document does not say is as in `base`."""
        return self.memory.stack(base or StackConfig())

    def disk_config(self, base: DiskConfig | None = None) -> DiskConfig:
        """The disk tier's."""
        return self.disk.config(base or DiskConfig())

    def spill_config(self, base: SpillConfig | None = None) -> SpillConfig:
        """The spill's."""
        return self.spill.config(base or SpillConfig())

    def guard_config(self, base: GuardConfig | None = None) -> GuardConfig:
        """The write guard's."""
        return self.writes.config(base or GuardConfig())


def parsed(text: bytes) -> Mapping[str, Any]:
    """A document's JSON; raises ValueError, in one line."""
    try:
        found = json.loads(text.decode(), parse_constant=_refused)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    if not isinstance(found, dict):
        raise ValueError("an object of sections is wanted")
    return found


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _merged(document: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the patch's values in place of its own, section by section."""
    merged = dict(document)
    for key, value in patch.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


def _read(document: Mapping[str, Any]) -> Settings:
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise ValueError(f"version: {version} is a later one, this server reads up to {VERSION}")
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        raise ValueError(_line(error)) from None


def _line(error: ValidationError) -> str:
    """The first thing that is wrong, in one line, and how many more there are."""
    errors = error.errors(include_url=False, include_input=False)
    first, more = errors[0], len(errors) - 1
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        what = "there is no such setting"
    elif first["type"] == "model_type":
        what = "an object of settings is wanted"
    names = [_shown(part) for part in first["loc"]]
    line = f"{'.'.join(names) or 'settings'}: {what[:1].lower()}{what[1:]}"
    return f"{line} (and {more} more)" if more else line


def _shown(part: int | str) -> str:
    """A name of whatever characters, on one line."""
    name = str(part)[:NAME_CHARACTERS_MAX]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)
