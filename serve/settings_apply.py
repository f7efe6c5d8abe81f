"""Settings reach what runs: checked, then written to the drive, then given to every tier"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cache.configure import configure
from cache.disk.tier import DiskTier
from cache.meet import Switch
from cache.spill.tier import Spill
from cache.writeguard import WriteGuard
from engine.box import Box
from serve.settings import Settings
from serve.settings_file import SettingsFile


@dataclass(frozen=True, slots=True)
class Running:
    """What takes other settings while it runs. None where this server has no such thing."""

    box: Box
    """The main slot; side slots have what they were made with, and share its store and budget."""
    meets: Switch
    disk: DiskTier | None = None
    spill: Spill | None = None
    guard: WriteGuard | None = None

    def check(self, old: Settings, new: Settings) -> None:
        """Raise ValueError, in one line that names the setting, for what can't be had here."""
        for name, tier in (("disk", self.disk), ("spill", self.spill), ("writes", self.guard)):
            if tier is None and getattr(old, name) != getattr(new, name):
                raise ValueError(f"{name}: nothing is kept on a drive; start with --cache-dir")
        if self.box.budget is None and old.limits() != new.limits():
            raise ValueError("memory: nobody counts this engine's memory; its limits do nothing")
        for name, drive in (("disk", self.disk), ("spill", self.spill)):
            was_gb, free_gb = (getattr(one, name).min_free_gb for one in (old, new))
            if drive is None or free_gb == was_gb:
                continue
            floor_gb = drive.config.floor_bytes / 10**9
            if free_gb < floor_gb:
                raise ValueError(f"{name}.min_free_gb: at least {floor_gb:g} GB stay free here")

    def apply(self, settings: Settings) -> None:
        """From now on. On the engine's thread, while no request is served: what shrinks gives back
        at once, and waits for the drive where what it loses is worth being written."""
        if self.guard is not None:
            self.guard.config = settings.guard_config(self.guard.config)
        if self.spill is not None:
            spill = settings.spill_config(self.spill.config)
            if spill != self.spill.config:
                self.spill.configure(spill)
        if self.disk is not None:
            disk = settings.disk_config(self.disk.config)
            if disk != self.disk.config:
                self.disk.configure(disk)
        self.meets.on = settings.alignment == "full"
        stack, budget = self.box.stack, self.box.budget
        configure(stack, self.box.engine, settings.stack_config(stack.config))
        if budget is not None:
            budget.limits = settings.limits()
            budget.after_request()


class Unwritten(OSError):
    """The drive did not take the settings: the old ones hold."""


def put(
    patch: Mapping[str, Any], now: Settings, running: Running, file: SettingsFile | None = None
) -> Settings:
    """Change the settings in force; the document that is in force afterwards.

    Raises Stale or ValueError, in one line that names the setting, and Unwritten; then nothing has
    changed. Nothing is applied that the next start would not find again.
    """
    new = now.changed(patch)
    if new is now:
        return now
    running.check(now, new)
    why = file.save(new) if file is not None else ""
    if why:
        raise Unwritten(f"settings.json: {why}")
    running.apply(new)
    return new
