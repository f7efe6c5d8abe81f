"""Shape of the flash model; docs/flash.md says what each number stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, get_type_hints

import torch

from engine.bad import BadCheckpoint
from engine.config import DTYPES, HybridConfig

MODEL_TYPE = "moorage_flash"
"""Of config.json."""
FIXED_BLOCKS = 3
"""What every query attends beside the chosen: its own block, the one before and the first."""
HASH_PRIME = 2**31 - 1
HASH_FACTOR = 1_000_003
"""Of the n-gram keys; their products stay below 2^63."""


@dataclass(frozen=True, slots=True)
class FlashConfig:
    """Every number that shapes the model. Raises BadCheckpoint when they don't fit together."""

    vocab: int
    hidden: int
    """Channels of one residual stream."""
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    index_heads: int
    """Query heads of the indexer; it has one key head."""
    index_dim: int
    top_blocks: int
    """Blocks the indexer chooses beside the fixed ones."""
    key_heads: int
    """Key (and query) heads of a gated delta net layer."""
    value_heads: int
    key_dim: int
    value_dim: int
    intermediate: int
    ple_dim: int
    """Channels of a per-layer embedding."""
    ngram_rows: int
    ngram_width: int
    """Of the n-gram table, in elements."""
    streams: int = 4
    attention_interval: int = 4
    """Every so many layers the last one is sparse attention, the others are gated delta nets."""
    block_rows: int = 64
    """Rows of a block of the sparse attention; a power of two."""
    ngram: int = 3
    """The longest n-gram; every order from 2 on has its row of the table."""
    ple_kernel: int = 4
    rotary_fraction: float = 0.25
    rope_theta: float = 10_000_000.0
    conv_kernel: int = 4
    rms_eps: float = 1e-6
    dtype: str = "float32"
    tie_embeddings: bool = True
    draft: bool = True
    """Whether there is a multi-token-prediction layer that proposes drafts."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(FlashConfig).items():
            value = getattr(self, name)
            # A bool is an int to Python, but no size; and a JSON number may be either kind.
            fits = isinstance(value, bool) == (kind is bool) and isinstance(
                value, (int, float) if kind is float else kind
            )
            if not fits:
                raise BadCheckpoint(f"config: {name} is {value!r}, not of type {kind.__name__}")
            if not isinstance(value, bool | str) and not value > 0:
                raise BadCheckpoint(f"config: {name} must be positive, not {value}")
        if self.block_rows & (self.block_rows - 1):
            raise BadCheckpoint(f"config: block_rows must be a power of two, not {self.block_rows}")
        if self.ngram < 2 or self.ple_kernel < 2:
            raise BadCheckpoint("config: ngram and ple_kernel must be at least 2")
        if self.ngram_rows > HASH_PRIME:
            raise BadCheckpoint(f"config: ngram_rows must not be above {HASH_PRIME}")
        # The rest is a hybrid's and checked there.
        self.hybrid()
        for name, kind in get_type_hints(FlashConfig).items():
            if kind is float:
                object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def torch_dtype(self) -> torch.dtype:
        """Dtype of weights, streams, rows and conv tails; states are float32 always."""
        return DTYPES[self.dtype]

    @property
    def rotary_dim(self) -> int:
        """Leading channels of an attention head that carry the position."""
        return int(self.head_dim * self.rotary_fraction)

    @property
    def channels(self) -> int:
        """Channels of a gated delta net's convolution: queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def ple_channels(self) -> int:
        """Channels of the per-layer embeddings of all layers side by side."""
        return self.layers * self.ple_dim

    def is_attention(self, layer: int) -> bool:
        """Whether layer number `layer` is sparse attention."""
        return (layer + 1) % self.attention_interval == 0

    @property
    def attention_layers(self) -> int:
        """Number of sparse-attention layers, the draft layer not counted."""
        return self.layers // self.attention_interval

    @property
    def delta_layers(self) -> int:
        """Number of gated delta net layers."""
        return self.layers - self.attention_layers

    def hybrid(self) -> HybridConfig:
        """What both architectures have: the layers of engine/layers read their sizes from it."""
        try:
            return HybridConfig(
                vocab=self.vocab,
                hidden=self.hidden,
                layers=self.layers,
                q_heads=self.q_heads,
                kv_heads=self.kv_heads,
                head_dim=self.head_dim,
                key_heads=self.key_heads,
                value_heads=self.value_heads,
                key_dim=self.key_dim,
                value_dim=self.value_dim,
                intermediate=self.intermediate,
                full_attention_interval=self.attention_interval,
                rotary_fraction=self.rotary_fraction,
                rope_theta=self.rope_theta,
                conv_kernel=self.conv_kernel,
                rms_eps=self.rms_eps,
                dtype=self.dtype,
                tie_embeddings=self.tie_embeddings,
                draft=False,
            )
        except BadCheckpoint as error:
            what = error.what.replace("full_attention_interval", "attention_interval")
            raise BadCheckpoint(f"{error.source}: {what}") from None

    @classmethod
    def tiny(cls, **changes: Any) -> FlashConfig:
        """A small shape for tests: blocks are left out from row 40 on, and no two dimensions that
        could be mixed up are equal.
        """
        shape: dict[str, Any] = {
            "vocab": 499,
            "hidden": 48,
            "layers": 4,
            "q_heads": 4,
            "kv_heads": 2,
            "head_dim": 16,
            "index_heads": 3,
            "index_dim": 14,
            "top_blocks": 2,
            "key_heads": 2,
            "value_heads": 4,
            "key_dim": 12,
            "value_dim": 20,
            "intermediate": 80,
            "ple_dim": 10,
            "ngram_rows": 1_009,
            "ngram_width": 18,
            "streams": 2,
            "block_rows": 8,
        }
        return cls(**{**shape, **changes})

    @classmethod
    def replay(cls, **changes: Any) -> FlashConfig:
        """A narrow shape over the family's whole vocabulary, to forward long prompts on one core:
        a query attends at most 704 rows.
        """
        shape: dict[str, Any] = {
            "vocab": 248_320,
            "hidden": 32,
            "layers": 4,
            "q_heads": 1,
            "kv_heads": 1,
            "head_dim": 16,
            "index_heads": 1,
            "index_dim": 8,
            "top_blocks": 8,
            "key_heads": 1,
            "value_heads": 2,
            "key_dim": 16,
            "value_dim": 16,
            "intermediate": 64,
            "ple_dim": 8,
            "ngram_rows": 65_536,
            "ngram_width": 16,
            "streams": 2,
        }
        return cls(**{**shape, **changes})

    @classmethod
    def large(cls, **changes: Any) -> FlashConfig:
        """A full size with the seed's figures for this shape, in bfloat16 on a grid of 4,096:
        115,662,864 bytes in 75 sections and 29,952 bytes a token. The sizes are ours, chosen to
        give them.
        """
        shape: dict[str, Any] = {
            "vocab": 248_320,
            "hidden": 2_560,
            "layers": 48,
            "q_heads": 16,
            "kv_heads": 2,
            "head_dim": 256,
            "index_heads": 4,
            "index_dim": 128,
            "top_blocks": 32,
            "key_heads": 16,
            "value_heads": 48,
            "key_dim": 128,
            "value_dim": 128,
            "intermediate": 9_216,
            "ple_dim": 640,
            "ngram_rows": 1 << 24,
            "ngram_width": 256,
            "dtype": "bfloat16",
            "tie_embeddings": False,
        }
        return cls(**{**shape, **changes})

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint's config.json holds."""
        shape = {_WORDS.get(name, name): value for name, value in asdict(self).items()}
        return {"model_type": MODEL_TYPE, **shape}

    @classmethod
    def from_json(cls, config: Mapping[str, Any], **changes: Any) -> FlashConfig:
        """The shape in a config.json of ours. Fields that have a default may be absent; further
        ones are another program's and are passed over. Raises BadCheckpoint.
        """
        if (kind := config.get("model_type")) != MODEL_TYPE:
            raise BadCheckpoint(f"config: model_type is {kind!r}, not {MODEL_TYPE!r}")
        known = {field.name for field in fields(cls)}
        for name in _NEEDED:
            if (word := _WORDS.get(name, name)) not in config:
                raise BadCheckpoint(f"config: {word} is missing")
        words = {_WORDS.get(name, name): name for name in known}
        shape = {words[word]: value for word, value in config.items() if word in words}
        return cls(**shape | changes)


_WORDS = {"vocab": "vocab_size"}
"""Ours, and those of a file where they are others."""
_NEEDED = [field.name for field in fields(FlashConfig) if field.default is MISSING]
