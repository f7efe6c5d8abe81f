"""A profile: the board a run pretends to be, read from TOML and changed by settings."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from cache.types import Cost, Limits
from sim.chunks import ChunkTimes
from sim.settable import MOST, NOT_NEGATIVE, REFUSED, SETTABLE

PROFILES = Path(__file__).parent / "profiles"
AnchorRule = Literal["worth", "heads", "even", "newest", "every"]
ANCHOR_RULES: tuple[AnchorRule, ...] = get_args(AnchorRule)
CODECS = ("planes", "raw")
"""How conversations are written: see cache.spill.codec.Mode."""


@dataclass(frozen=True, slots=True)
class PrefillCheck:
    """A measured prefill that the time model was not fitted to."""

    start: int
    stop: int
    seconds: float
    what: str


@dataclass(frozen=True, slots=True)
class Profile:
    """What the budgets count and the clock is charged with; the real model may be any size."""

    name: str
    about: str
    vocab: int
    grid: int
    window: int
    row_bytes: int
    anchor_bytes: int
    resident_bytes: int
    """Anchor budget."""
    anchor_rule: AnchorRule
    """Which anchor goes when it is full: worth, heads, even, newest, every."""
    end_anchor: bool
    park_bytes: int
    """Other conversations' rows in memory."""
    pin_bytes: int
    """Heads of replaced conversations; what they leave, parked conversations may use."""
    stash_bytes: int
    """Rows a short request borrows."""
    guest_tokens: int
    """A longer request is no guest."""
    store_bytes: int
    """Whole snapshots: shared heads and short chats."""
    store_entry_bytes: int
    """A larger snapshot is not taken."""
    store_boundaries: int
    """Grid lines of a prefill that are kept, the longest that fit; 0 keeps every one."""
    session_trim: bool
    """Keep a short chat's end although its last block ran past it."""
    checkpoint_tokens: int
    """Tokens of an answer from one checkpoint to the next; 0 takes none."""
    alignment: str
    """What of a client's copy may differ from the rows: one of ALIGNMENTS."""
    side_slots: int
    """Other sequences over the same weights, where short requests go first."""
    side_window: int
    answer_tokens: int
    """What an answer may have where a request does not say."""
    images_max: int
    image_rows_max: int
    """Images of a prompt, and their rows in all; over either the oldest are left out."""
    board_bytes: int
    """All the memory there is, for the engine and everything else on the box."""
    headroom_bytes: int
    """What everything else needs left of it at the worst case."""
    base_bytes: int
    """What the engine holds after its load, with empty caches, at this window."""
    ceiling_bytes: int
    peak_bytes: int
    slack_bytes: int
    """The memory budget's limits: see cache.types.Limits."""
    workspace_floor_bytes: int
    workspace_row_bytes: int
    workspace_cap_bytes: int
    """What a prefill is expected to take beside all that: see cache.types.Cost."""
    workspace_factor: float
    """What it takes in truth, as a multiple of what is expected: above 1 it has to be learned."""
    encoded_bytes: int
    """Encoded pictures."""
    encoded_row_bytes: int
    """One row of them."""
    disk: bool
    """Heads of prompts on the drive: see cache.disk.config.DiskConfig for what these bound."""
    disk_bytes: int
    disk_ttl_days: float
    disk_min_free_bytes: int
    disk_admit_after: int
    disk_head_anchors: int
    disk_branches: int
    disk_tokens_min: int
    spill: bool
    """Whole conversations on the drive: see cache.spill.config.SpillConfig for what these bound."""
    spill_bytes: int
    spill_ttl_hours: float
    spill_tokens_min: int
    spill_park_tokens_min: int
    spill_idle_s: float
    spill_codec: str
    """planes or raw: see cache.spill.codec.Mode."""
    spill_ratio: float
    """What is left of the board's rows once their planes are packed."""
    pack_bytes_s: float
    unpack_bytes_s: float
    """Rows through the codec in a second, all its threads together."""
    write_budget_bytes: int
    """What both may write in a day: see cache.writeguard.GuardConfig."""
    drive_bytes: int
    """All that the drive holds, the tier's files among it."""
    drive_write_bytes_s: float
    """Into its write cache: see sim.nvme.DriveParams for what these are."""
    drive_read_bytes_s: float
    drive_fsync_s: float
    """What it takes to say that all is written, when all is."""
    drive_cache_bytes: int
    drive_sustained_bytes_s: float
    drive_recover_bytes_s: float
    drive_settle_s: float
    drive_pause_bytes_s: float
    device_copy_bytes_s: float
    """Copies between the engine's buffers and the buffers that are written from and read into."""
    decode_tokens_s: float
    drafts: int
    """Drafts a verify block carries."""
    accepted: float
    """Chance that a draft is accepted, where a trace does not say."""
    prefill_fit: tuple[tuple[int, float], tuple[int, float]]
    """Two measured cold prefills, (tokens, seconds)."""
    prefill_checks: tuple[PrefillCheck, ...]
    chunk_times: ChunkTimes | None = None
    """What other chunks than the fitted prefills' cost; None where nobody measured."""

    def __post_init__(self) -> None:
        whole = ("vocab", "grid", "window", "row_bytes", "anchor_bytes", "side_window")
        whole += ("encoded_row_bytes",)
        whole += ("images_max", "image_rows_max")
        for name in whole:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
        for name in NOT_NEGATIVE:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise ValueError(f"{name} must be at most {most:,}")
        if self.alignment not in ALIGNMENTS:
            raise ValueError(f"alignment must be one of {', '.join(ALIGNMENTS)}")
        if self.anchor_rule not in ANCHOR_RULES:
            raise ValueError(f"anchor_rule must be one of {', '.join(ANCHOR_RULES)}")
        if not 0 < self.decode_tokens_s < math.inf or not 0 <= self.accepted <= 1:
            raise ValueError("decode_tokens_s must be positive and accepted within 0 and 1")
        if self.grid > self.window:
            raise ValueError("grid must not be above window")
        self._check_memory()
        self._check_drive()
        (short, _), (long, _) = self.prefill_fit
        if not 0 < short < long:
            raise ValueError("prefill_fit needs two different lengths, the shorter one first")

    def _check_memory(self) -> None:
        """Limits that contradict one another, or that no prefill could keep."""
        if not 1 <= self.workspace_factor <= 1_000:
            raise ValueError("workspace_factor must be within 1 and 1,000")
        if 0 < self.workspace_cap_bytes < self.workspace_floor_bytes:
            raise ValueError("workspace_cap_bytes must not be below workspace_floor_bytes")
        if self.limits.ceiling_bytes < self.loaded_bytes:
            held = f"{self.loaded_bytes:,} bytes that the engine holds with empty caches"
            raise ValueError(f"ceiling_bytes must not be below the {held}")

    def _check_drive(self) -> None:
        """Rates that no time could be told from; counts that start at one."""
        more = ("spill_park_tokens_min",)
        for name in ("disk_admit_after", "disk_tokens_min", "spill_tokens_min", *more):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        rates = ("drive_write_bytes_s", "drive_read_bytes_s", "device_copy_bytes_s")
        rates += ("drive_sustained_bytes_s", "pack_bytes_s", "unpack_bytes_s")
        if self.spill_codec not in CODECS:
            raise ValueError(f"spill_codec must be one of {', '.join(CODECS)}")
        for name in (*rates, "disk_ttl_days", "spill_ttl_hours", "spill_ratio"):
            # Slower than that, a file takes longer than any replay lasts.
            if not getattr(self, name) >= 1e-6:
                raise ValueError(f"{name} must be positive")

    @property
    def limits(self) -> Limits:
        """The memory budget's limits; ValueError when they contradict one another."""
        return Limits(self.ceiling_bytes, self.peak_bytes, self.slack_bytes)

    @property
    def cost(self) -> Cost:
        """What the budgets count with."""
        ratio = self.spill_ratio if self.spill_codec == "planes" else 1.0
        return Cost(
            row_bytes=self.row_bytes,
            anchor_bytes=self.anchor_bytes,
            workspace_floor_bytes=self.workspace_floor_bytes,
            workspace_row_bytes=self.workspace_row_bytes,
            workspace_cap_bytes=self.workspace_cap_bytes,
            spilled_row_bytes=round(self.row_bytes * ratio),
        )

    @property
    def loaded_bytes(self) -> int:
        """What the engine holds with empty caches, the side slots' rows and states among it."""
        side = self.side_window * self.row_bytes + self.anchor_bytes
        return self.base_bytes + self.side_slots * side


ALIGNMENTS = ("off", "spans", "full")
"""Nothing; what the server put in and the whitespace beside it; all that clients do to answers."""


def load(name: str) -> Profile:
    """The profile of this name; raises ValueError with one line for an unknown or broken one."""
    known = sorted(path.stem for path in PROFILES.glob("*.toml"))
    if name not in known:
        raise ValueError(f"unknown profile {name!r}; there are: {', '.join(known)}")
    return parse(name, tomllib.loads((PROFILES / f"{name}.toml").read_text()))


def parse(name: str, data: Mapping[str, Any]) -> Profile:
    """A profile from a TOML document's tables."""
    try:
        prefill = data["prefill"]
        short, long = ((int(tokens), float(seconds)) for tokens, seconds in prefill["fit"])
        return Profile(
            name=name,
            about=data["about"],
            vocab=data["vocab"],
            **data["shape"],
            **data["budgets"],
            **data["slots"],
            **data["memory"],
            **data["disk"],
            **data["spill"],
            decode_tokens_s=data["decode"]["tokens_s"],
            drafts=data["decode"]["drafts"],
            accepted=data["decode"]["accepted"],
            prefill_fit=(short, long),
            prefill_checks=tuple(PrefillCheck(**check) for check in prefill.get("checks", ())),
            chunk_times=ChunkTimes.of(prefill["chunks"]) if "chunks" in prefill else None,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"profile {name}: {error}") from error


def with_settings(profile: Profile, settings: Mapping[str, str]) -> Profile:
    """The profile with `--set` values in place; raises ValueError with one line for a bad one."""
    assert set(SETTABLE) <= {field.name for field in fields(Profile)}
    values: dict[str, Any] = {}
    for key, text in settings.items():
        if key in REFUSED:
            raise ValueError(f"{key} can't be set here: {REFUSED[key]}")
        if key not in SETTABLE:
            raise ValueError(f"unknown setting {key!r}; there are: {', '.join(sorted(SETTABLE))}")
        values[key] = _value(key, text, SETTABLE[key])
    return replace(profile, **_moved(profile, values), **values)


def _moved(profile: Profile, values: Mapping[str, Any]) -> dict[str, int]:
    """With other buffers, what the engine holds and its limits, as far as they are not set.

    They move by the buffers' bytes, so that caches and workspace have the room they had.
    """
    rows, size = (values.get(key, getattr(profile, key)) for key in ("window", "row_bytes"))
    more = rows * size - profile.window * profile.row_bytes
    names = [name for name in ("base_bytes", "ceiling_bytes", "peak_bytes") if name not in values]
    return {name: max(0, getattr(profile, name) + more) for name in names} if more else {}


def _value(key: str, text: str, kind: type) -> Any:
    try:
        if kind is bool:
            return {"on": True, "true": True, "off": False, "false": False}[text.lower()]
        return text if kind is str else kind(text.replace("_", ""))
    except (KeyError, ValueError):
        hint = "on or off" if kind is bool else f"a number ({kind.__name__})"
        raise ValueError(f"setting {key}={text!r} is not {hint}") from None
