"""Shape of the hybrid: gated delta nets, full attention every few layers, maybe a tower.

Defaults are those of the Qwen3.5 family.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from engine.bad import BadCheckpoint
from engine.moe_config import MoeConfig
from engine.vision_config import VisionConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KV = ("model", "e4m3")
VOCAB_MAX = 1 << 24
"""Tokens. More are no model's: tables of them are made before a weight is looked at."""
LAYERS_MAX = 1_024
"""More are no model's: tensors are named layer by layer before one of them is looked for."""
_MAX = torch.finfo(torch.float32).max
_REAL = ("rotary_fraction", "rope_theta", "rms_eps")
_OTHER = ("dtype", "tie_embeddings", "draft", "kv", "vision", "moe")
"""Fields that are no numbers."""


@dataclass(frozen=True, slots=True)
class HybridConfig:
    """Every number that shapes the model. Raises BadCheckpoint when they don't fit together."""

    vocab: int
    hidden: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    key_heads: int
    """Key (and query) heads of a gated delta net layer."""
    value_heads: int
    key_dim: int
    """Channels of one key head; a head's state is [key_dim, value_dim]."""
    value_dim: int
    intermediate: int
    full_attention_interval: int = 4
    """Every so many layers the last one is full attention, the others are gated delta nets."""
    rotary_fraction: float = 0.25
    rope_theta: float = 10_000_000.0
    conv_kernel: int = 4
    rms_eps: float = 1e-6
    dtype: str = "float32"
    tie_embeddings: bool = True
    draft: bool = True
    """Whether there are multi-token-prediction layers that propose drafts."""
    draft_layers: int = 1
    """How many there are, one after the other; the published checkpoints have one."""
    kv: str = "model"
    """How rows of keys and values are kept: "model" is the model's dtype, "e4m3" eight bits."""
    mrope_section: tuple[int, int, int] = (11, 11, 10)
    """Angles of a head that turn with time, height and width, taken in turn: every third is the
    height's while those last, the next the width's, all others the time's. A narrow head has fewer.
    """
    vision: VisionConfig | None = None
    """The tower that reads pictures; None for a model of text alone."""
    moe: MoeConfig | None = None
    """The mixture of experts in place of MLPs; None when every layer has an MLP."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _OTHER:
                continue
            if isinstance(value, tuple):
                if len(value) != 3 or not all(isinstance(n, int) and n >= 0 for n in value):
                    raise BadCheckpoint(f"config: {field.name} is {list(value)}, not three counts")
                continue
            kinds = (int, float) if field.name in _REAL else (int,)
            # A bool is an int to Python, but no size; JSON knows infinities, and ints beyond any.
            fits = isinstance(value, kinds) and not isinstance(value, bool)
            if not fits or not 0 < value <= _MAX:
                raise BadCheckpoint(f"config: {field.name} must be positive, not {value!r}")
        for name in _REAL:
            # A JSON number may be either kind, and torch takes no integer of any size.
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.vocab > VOCAB_MAX:
            raise BadCheckpoint(f"config: a vocabulary of {self.vocab:,} is above {VOCAB_MAX:,}")
        for name in ("layers", "draft_layers"):
            if (count := getattr(self, name)) > LAYERS_MAX:
                raise BadCheckpoint(f"config: {count:,} {name} are more than {LAYERS_MAX:,}")
        for many, few in (("q_heads", "kv_heads"), ("value_heads", "key_heads")):
            if getattr(self, many) % getattr(self, few):
                raise BadCheckpoint(f"config: {many} must be a multiple of {few}")
        if self.layers < self.full_attention_interval or self.full_attention_interval < 2:
            raise BadCheckpoint("config: a hybrid needs layers of both kinds")
        if self.conv_kernel < 2:
            raise BadCheckpoint("config: conv_kernel must be at least 2")
        if self.rotary_dim < 2 or self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise BadCheckpoint(f"config: {self.rotary_dim} rotary channels in {self.head_dim}")
        if self.dtype not in DTYPES:
            raise BadCheckpoint(f"config: dtype {self.dtype} is none of {', '.join(DTYPES)}")
        if self.kv not in KV:
            raise BadCheckpoint(f"config: kv {self.kv} is none of {', '.join(KV)}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """Dtype of weights, activations, rows and conv tails; states are float32 always."""
        return DTYPES[self.dtype]

    @property
    def rotary_dim(self) -> int:
        """Leading channels of an attention head that carry the position."""
        return int(self.head_dim * self.rotary_fraction)

    @property
    def channels(self) -> int:
        """Channels of the causal convolution: queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def is_attention(self, layer: int) -> bool:
        """Whether layer number `layer` is full attention."""
        return (layer + 1) % self.full_attention_interval == 0

    def is_sparse(self, layer: int) -> bool:
        """Whether layer number `layer` has experts in place of an MLP."""
        return self.moe is not None and self.moe.has(layer)

    @property
    def attention_layers(self) -> int:
        """Number of full-attention layers, the draft layer not counted."""
        return self.layers // self.full_attention_interval

    @property
    def delta_layers(self) -> int:
        """Number of gated delta net layers."""
        return self.layers - self.attention_layers

    @classmethod
    def tiny(cls, **changes: Any) -> HybridConfig:
        """A small shape for tests: no two dimensions that could be mixed up are equal."""
        shape: dict[str, Any] = {
            "vocab": 499,
            "hidden": 48,
            "layers": 4,
            "q_heads": 4,
            "kv_heads": 2,
            "head_dim": 16,
            "key_heads": 2,
            "value_heads": 4,
            "key_dim": 12,
            "value_dim": 20,
            "intermediate": 80,
        }
        return cls(**{**shape, **changes})

    @classmethod
    def replay(cls, **changes: Any) -> HybridConfig:
        """A narrow shape over the family's whole vocabulary, to forward whole nights on one core.

        One query head: at 100,000 tokens nearly all the time goes into attention scores, which
        cost the same for each query head however narrow it is.
        """
        shape: dict[str, Any] = {
            "vocab": 248_320,
            "hidden": 32,
            "layers": 4,
            "q_heads": 1,
            "kv_heads": 1,
            "head_dim": 16,
            "key_heads": 1,
            "value_heads": 2,
            "key_dim": 16,
            "value_dim": 16,
            "intermediate": 64,
            "vision": VisionConfig.small(),
        }
        return cls(**{**shape, **changes})

    @classmethod
    def qwen_27b(cls, **changes: Any) -> HybridConfig:
        """The text model of the published Qwen3.5 27B, in bfloat16."""
        shape: dict[str, Any] = {
            "vocab": 248_320,
            "hidden": 5_120,
            "layers": 64,
            "q_heads": 24,
            "kv_heads": 4,
            "head_dim": 256,
            "key_heads": 16,
            "value_heads": 48,
            "key_dim": 128,
            "value_dim": 128,
            "intermediate": 17_408,
            "dtype": "bfloat16",
            "tie_embeddings": False,
        }
        return cls(**{**shape, **changes})
