"""Shape of the hybrid: gated delta nets, full attention every few layers, maybe a tower.

Defaults are those of the Qwen3.5 family; `from_hf` reads a published config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from engine.bad import BadCheckpoint
from engine.moe_config import MoeConfig
from engine.vision_config import VisionConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KV = ("model", "e4m3")


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
    """How many there are, one for each of the next guesses, taken in turn."""
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
            if isinstance(value, bool | str | VisionConfig | MoeConfig | None):
                continue
            if isinstance(value, tuple):
                if len(value) != 3 or not all(isinstance(n, int) and n >= 0 for n in value):
                    raise BadCheckpoint(f"config: {field.name} is {list(value)}, not three counts")
                continue
            if not value > 0:
                raise BadCheckpoint(f"config: {field.name} must be positive, not {value}")
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
    def from_hf(cls, config: Mapping[str, Any], **changes: Any) -> HybridConfig:
        """The shape in a published config.json (model type qwen3_5_text, or qwen3_5 around it).

        With a `vision_config` the tower is part of it; `vision=None` leaves it out.
        """
        text: Mapping[str, Any] = config.get("text_config") or config
        kind = text.get("model_type")
        if kind != "qwen3_5_text":
            raise BadCheckpoint(f"config: model_type is {kind!r}, not 'qwen3_5_text'")
        if text.get("attention_bias"):
            raise BadCheckpoint("config: attention_bias is not supported")
        if text.get("hidden_act", "silu") != "silu":
            raise BadCheckpoint(f"config: hidden_act {text['hidden_act']!r} is not supported")
        try:
            shape = _shape_of(text)
        except KeyError as missing:
            raise BadCheckpoint(f"config: {missing.args[0]} is missing") from missing
        if config.get("vision_config") and "vision" not in changes:
            shape["vision"] = VisionConfig.from_hf(config["vision_config"], shape["hidden"])
        tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
        made = cls(**{**shape, "tie_embeddings": bool(tied), **changes})
        _check_layer_types(made, text.get("layer_types"))
        return made


_FROM_HF = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "q_heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "key_heads": "linear_num_key_heads",
    "value_heads": "linear_num_value_heads",
    "key_dim": "linear_key_head_dim",
    "value_dim": "linear_value_head_dim",
    "intermediate": "intermediate_size",
    "conv_kernel": "linear_conv_kernel_dim",
    "rms_eps": "rms_norm_eps",
}


def _shape_of(text: Mapping[str, Any]) -> dict[str, Any]:
    shape = {ours: text[theirs] for ours, theirs in _FROM_HF.items()}
    rope = text.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise BadCheckpoint(f"config: rope_type {rope['rope_type']!r} is not supported")
    if not rope.get("mrope_interleaved", True):
        raise BadCheckpoint("config: mrope_interleaved false is not supported")
    if "mrope_section" in rope:
        shape["mrope_section"] = tuple(rope["mrope_section"])
    shape["rope_theta"] = float(rope["rope_theta"])
    shape["rotary_fraction"] = float(rope.get("partial_rotary_factor", 0.25))
    # Newer files name every layer instead of the interval; the pattern is checked afterwards.
    types = text.get("layer_types") or []
    first = types.index("full_attention") + 1 if "full_attention" in types else 4
    shape["full_attention_interval"] = int(text.get("full_attention_interval") or first)
    shape["draft"] = int(text.get("mtp_num_hidden_layers") or 0) > 0
    shape["dtype"] = str(text.get("dtype") or text.get("torch_dtype") or "float32")
    return shape


def _check_layer_types(config: HybridConfig, types: list[str] | None) -> None:
    if types is None:
        return
    kinds = ("linear_attention", "full_attention")
    want = [kinds[config.is_attention(layer)] for layer in range(config.layers)]
    if list(types) != want:
        raise BadCheckpoint(
            f"config: layer_types do not repeat every {config.full_attention_interval} layers"
        )
