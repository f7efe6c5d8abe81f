"""The sections of the settings document: what may be set, in which unit, within which bounds"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cache.config import StackConfig
from cache.disk.config import DAY_S, DiskConfig
from cache.drive_config import Mode
from cache.spill.codec import Mode as CodecMode
from cache.spill.config import SpillConfig
from cache.types import Limits
from cache.writeguard import GuardConfig

GIB, GB, HOUR_S = 2**30, 10**9, 3_600.0
Gib = Annotated[float, Field(ge=0, le=2**20)]
Gb = Annotated[float, Field(ge=0, le=10**9)]
Seconds = Annotated[float, Field(ge=0, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=2**24)]
Some = Annotated[int, Field(ge=1, le=2**24)]
Thought = Annotated[int, Field(ge=0, le=2**24)] | None
"""Tokens; None is no limit."""


class Section(BaseModel):
    """Settings that belong together. An unknown name, another type or a bad value is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    units: ClassVar[Mapping[str, str]] = {}
    """What the tiers' own names for these settings end in, as their refusals have them, to ours."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """What a tier itself would refuse is refused here, under the document's name."""
        try:
            self._built()
        except ValueError as error:
            said = str(error)
            for theirs, ours in self.units.items():
                said = re.sub(rf"{theirs}\b", ours, said)
            raise ValueError(said) from None
        return self

    def _built(self) -> Any:
        """What the tiers would be given; raises ValueError."""


class MemorySettings(Section):
    """What engine and caches may hold, in GiB. Figures: the seed's, for a board of 128 GB."""

    units = {"_bytes": "_gib"}

    ceiling_gib: Gib = 70.0
    peak_gib: Gib = 77.0
    slack_gib: Gib = 2.0
    anchors_gib: Gib = 2.5
    park_gib: Gib = 4.0
    pin_gib: Gib = 4.0
    stash_gib: Gib = 1.0
    guest_tokens: Count = 8_192
    store_gib: Gib = 2.0
    store_entry_gib: Gib = 1.0

    def _built(self) -> Any:
        return self.limits()

    @classmethod
    def scaled(cls, share: float) -> MemorySettings:
        """The figures for a smaller machine: of everything in GiB this share."""
        usual: dict[str, Any] = cls().model_dump()
        return cls(**{k: round(v * share, 3) for k, v in usual.items() if k.endswith("_gib")})

    def limits(self) -> Limits:
        """What the memory budget is held to."""
        return Limits(*map(gib, (self.ceiling_gib, self.peak_gib, self.slack_gib)))

    def stack(self, base: StackConfig) -> StackConfig:
        """The caches' settings: these, and whatever else `base` says."""
        park, pin, stash = gib(self.park_gib), gib(self.pin_gib), gib(self.stash_gib)
        store, entry = gib(self.store_gib), gib(self.store_entry_gib)
        return replace(
            base,
            anchors=replace(base.anchors, budget_bytes=gib(self.anchors_gib)),
            park=replace(base.park, park_bytes=park, pin_bytes=pin),
            guest=replace(base.guest, tokens_max=self.guest_tokens, stash_bytes=stash),
            store=replace(base.store, budget_bytes=store, entry_bytes=entry),
        )


class DiskSettings(Section):
    """Heads of prompts on the drive. Figures: the seed's."""

    units = {"_bytes": "_gb", "ttl_s": "ttl_days"}

    mode: Mode = "on"
    budget_gb: Gb = 16.0
    ttl_days: Annotated[float, Field(gt=0, le=36_500)] = 7.0
    """An entry that nobody used for so long goes."""
    admit_after: Some = 2
    """Cold reads of a line, after which it is written."""
    min_free_gb: Gb = 50.0
    """Left to the file system."""
    head_anchors: Count = 4
    branches: Count = 4
    tokens_min: Some = 4_096
    """Shorter prompts are neither counted nor written."""

    def _built(self) -> Any:
        return self.config(DiskConfig())

    def config(self, base: DiskConfig) -> DiskConfig:
        """The tier's settings: these, and whatever else `base` says."""
        return replace(
            base,
            mode=self.mode,
            budget_bytes=gb(self.budget_gb),
            ttl_s=self.ttl_days * DAY_S,
            admit_after=self.admit_after,
            min_free_bytes=gb(self.min_free_gb),
            head_anchors=self.head_anchors,
            branches=self.branches,
            tokens_min=self.tokens_min,
        )


class SpillSettings(Section):
    """Whole conversations on the drive. Figures: the seed's."""

    units = {"_bytes": "_gb", "ttl_s": "ttl_hours"}

    mode: Mode = "on"
    budget_gb: Gb = 64.0
    ttl_hours: Annotated[float, Field(gt=0, le=10**6)] = 48.0
    tokens_min: Some = 16_384
    """A conversation in place is written from so many tokens on, when another one replaces it."""
    park_tokens_min: Some = 4_096
    """A parked one that memory gives up."""
    anchors_kept: Count = 4
    codec: CodecMode = "planes"
    idle_s: Seconds = 30.0
    """After such a pause conversations are written ahead; 0 never does."""
    idle_tokens_min: Some = 4_096
    min_free_gb: Gb = 50.0

    def _built(self) -> Any:
        return self.config(SpillConfig())

    def config(self, base: SpillConfig) -> SpillConfig:
        """The spill's settings: these, and whatever else `base` says."""
        return replace(
            base,
            mode=self.mode,
            budget_bytes=gb(self.budget_gb),
            ttl_s=self.ttl_hours * HOUR_S,
            tokens_min=self.tokens_min,
            park_tokens_min=self.park_tokens_min,
            anchors_kept=self.anchors_kept,
            codec=replace(base.codec, mode=self.codec),
            idle_s=self.idle_s,
            idle_tokens_min=self.idle_tokens_min,
            min_free_bytes=gb(self.min_free_gb),
        )


class WriteSettings(Section):
    """What may be written to the drive in a day. Figures: the seed's."""

    units = {"budget_bytes": "day_budget_gb"}

    day_budget_gb: Gb = 200.0
    hard_factor: Annotated[float, Field(ge=1, le=1_000)] = 1.5
    """Times the budget, from where nothing but a planned stop is written."""
    evict_tokens: Count = 32_768
    """Over the budget, conversations of so many tokens are still written."""
    days_kept: Annotated[int, Field(ge=1, le=366)] = 14
    idle_share: Share = 0.5

    def _built(self) -> Any:
        return self.config(GuardConfig())

    def config(self, base: GuardConfig) -> GuardConfig:
        """The write guard's settings: these, and whatever else `base` says."""
        return replace(
            base,
            budget_bytes=gb(self.day_budget_gb),
            hard_factor=self.hard_factor,
            evict_tokens=self.evict_tokens,
            days_kept=self.days_kept,
            idle_share=self.idle_share,
        )


class CompactionSettings(Section):
    """How a client's request to summarise its conversation is served."""

    mode: Literal["continue", "client"] = "continue"
    """As the next turn of the conversation that is in the caches; as the client wrote it."""
    prepare: bool = True
    """Whether the summary is written ahead when the engine is idle."""
    idle_s: Seconds = 30.0
    tokens_min: Some = 32_768
    """Of a conversation, from where its summary is prepared."""
    tail: Literal["cut", "whole"] = "cut"
    """What is summed up where a client's record leaves its newest messages out: what the record
    holds, or all of the conversation. Only the second can be written ahead for such a client."""


class ThinkingSettings(Section):
    """Tokens of thinking by `reasoning_effort`; null is no limit."""

    none: Thought = 0
    minimal: Thought = 512
    low: Thought = 2_048
    medium: Thought = 8_192
    high: Thought = 32_768
    xhigh: Thought = None
    unsaid: Thought = None
    """Where a request names no effort."""

    @property
    def efforts(self) -> dict[str, int | None]:
        """Tokens by effort."""
        return {name: most for name, most in self if name != "unsaid"}


class ServingSettings(Section):
    """What holds where a request says nothing, and what a request may be."""

    answer_tokens: Some | None = 32_768
    """Of an answer whose request names no limit; null is what the window leaves."""
    thinking: ThinkingSettings = ThinkingSettings()
    thinking_phrase: Annotated[str, Field(max_length=2_000)] = (
        "\n\nI have thought about this long enough, and answer now.\n"
    )
    """Written when the thinking's tokens are used up; no client sees it."""
    keepalive_s: Annotated[float, Field(gt=0, le=3_600)] = 15.0
    """A stream that has said nothing for so long gets a comment."""
    request_bytes_max: Annotated[int, Field(ge=1_024, le=2**32)] = 32 * 2**20
    images_max: Some = 16
    """Images of a conversation; over it the oldest are left out."""
    image_rows_max: Some = 32_768


def gib(amount: float) -> int:
    """Bytes of so many GiB."""
    return round(amount * GIB)


def gb(amount: float) -> int:
    """Bytes of so many GB."""
    return round(amount * GB)
