"""A published config.json as a model's shape: qwen3_5, qwen3_5_text and qwen3_next

Sources: the configuration files of those checkpoints, and the defaults that transformers gives what
they leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.bad import BadCheckpoint
from engine.config import HybridConfig
from engine.moe_config import MoeConfig
from engine.vision_config import VisionConfig

KINDS = ("qwen3_5", "qwen3_5_text", "qwen3_next")
"""Model types that are read; the first is a text model and a tower around the second."""

HYBRID = {
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
"""Our words and the published ones."""
MOE = {
    "experts": "num_experts",
    "per_token": "num_experts_per_tok",
    "intermediate": "moe_intermediate_size",
    "shared_intermediate": "shared_expert_intermediate_size",
}
VISION = {
    "hidden": "hidden_size",
    "depth": "depth",
    "heads": "num_heads",
    "intermediate": "intermediate_size",
    "patch": "patch_size",
    "temporal": "temporal_patch_size",
    "merge": "spatial_merge_size",
    "positions": "num_position_embeddings",
}
_FIXED = {
    "attention_bias": (False, None),
    "hidden_act": ("silu",),
    "attn_output_gate": (True,),
    "mtp_use_dedicated_embeddings": (False,),
}
"""Options of a text model that have one supported value, or a few."""


def hybrid_config(config: Mapping[str, Any], **changes: Any) -> HybridConfig:
    """The shape in a published config.json; raises BadCheckpoint that names what doesn't fit.

    With a `vision_config` the tower is part of it; `vision=None` leaves it out. `draft` and
    `draft_layers` are what the file promises.
    """
    kind = config.get("model_type")
    if kind not in KINDS:
        raise BadCheckpoint(f"config: model_type is {kind!r}, none of {', '.join(KINDS)}")
    text = _part(config, "text_config") or config
    if text is not config and text.get("model_type") != "qwen3_5_text":
        raise BadCheckpoint(f"config: text model_type is {text.get('model_type')!r}")
    for name, allowed in _FIXED.items():
        if text.get(name, allowed[0]) not in allowed:
            raise BadCheckpoint(f"config: {name} {text[name]!r} is not supported")
    shape = _required(text, HYBRID) | _rope(text)
    shape |= {"full_attention_interval": _interval(text), "dtype": _dtype(config, text)}
    drafts = _count(text, "mtp_num_hidden_layers", 0)
    shape |= {"draft": drafts > 0, "draft_layers": max(1, drafts)}
    if kind == "qwen3_next" and text.get("num_experts") != 0:
        shape["moe"] = _moe(text)
    tower = _part(config, "vision_config")
    if tower and "vision" not in changes:
        shape["vision"] = vision_config(tower, shape["hidden"])
    shape["tie_embeddings"] = _tied(config, text)
    made = HybridConfig(**{**shape, **changes})
    _check_layer_types(made, text.get("layer_types"))
    return made


def vision_config(config: Mapping[str, Any], hidden: int) -> VisionConfig:
    """The shape in a published `vision_config`, beside a text model of `hidden` channels."""
    act = config.get("hidden_act", "gelu_pytorch_tanh")
    if act != "gelu_pytorch_tanh":
        raise BadCheckpoint(f"config: vision hidden_act {act!r} is not supported")
    if config.get("deepstack_visual_indexes") or config.get("in_channels", 3) != 3:
        raise BadCheckpoint("config: only a plain vision tower of three channels is supported")
    out = _required(config, {"out": "out_hidden_size"}, "vision ")["out"]
    if out != hidden:
        raise BadCheckpoint(f"config: the tower gives {out} channels, not {hidden}")
    shape = _required(config, VISION, "vision ")
    theta = _number(_part(config, "rope_parameters"), "rope_theta", 10_000.0)
    return VisionConfig(**shape, rope_theta=theta)


def _required(config: Mapping[str, Any], names: Mapping[str, str], of: str = "") -> dict[str, Any]:
    for theirs in names.values():
        if config.get(theirs) is None:
            raise BadCheckpoint(f"config: {of}{theirs} is missing")
    return {ours: config[theirs] for ours, theirs in names.items()}


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside it, an empty one where there is none."""
    part = config.get(name) or {}
    if not isinstance(part, Mapping):
        raise BadCheckpoint(f"config: {name} is no object")
    return part


def _number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = config.get(name, default)
    if value is None:
        raise BadCheckpoint(f"config: {name} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadCheckpoint(f"config: {name} is {value!r}, no number")
    try:
        return float(value)
    except OverflowError as error:
        raise BadCheckpoint(f"config: {name} is beyond any float") from error


def _count(config: Mapping[str, Any], name: str, default: int) -> int:
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadCheckpoint(f"config: {name} is {value!r}, no count")
    return value


def _rope(text: Mapping[str, Any]) -> dict[str, Any]:
    """Newer files have rope_parameters, older ones rope_scaling, which counts where both are; what
    is in neither may stand beside them.
    """
    rope = {**text, **(_part(text, "rope_scaling") or _part(text, "rope_parameters"))}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise BadCheckpoint(f"config: rope_type {kind!r} is not supported")
    if not rope.get("mrope_interleaved", True):
        raise BadCheckpoint("config: mrope_interleaved false is not supported")
    shape: dict[str, Any] = {
        "rope_theta": _number(rope, "rope_theta"),
        "rotary_fraction": _number(rope, "partial_rotary_factor", 0.25),
    }
    if "mrope_section" in rope:
        section = rope["mrope_section"]
        shape["mrope_section"] = tuple(section) if isinstance(section, list) else (section,)
    return shape


def _interval(text: Mapping[str, Any]) -> int:
    """Newer files name every layer instead of the interval; the pattern is checked afterwards."""
    types = text.get("layer_types") or []
    if not isinstance(types, list):
        raise BadCheckpoint("config: layer_types is no list")
    first = types.index("full_attention") + 1 if "full_attention" in types else 4
    return _count(text, "full_attention_interval", first)


def _check_layer_types(config: HybridConfig, types: list[str] | None) -> None:
    if types is None:
        return
    kinds = ("linear_attention", "full_attention")
    want = [kinds[config.is_attention(layer)] for layer in range(config.layers)]
    if types != want:
        raise BadCheckpoint(
            f"config: layer_types do not repeat every {config.full_attention_interval} layers"
        )


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    found = [part.get(name) for part in (text, config) for name in ("dtype", "torch_dtype")]
    return str(next((dtype for dtype in found if dtype is not None), "float32"))


def _tied(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    found = [part.get("tie_word_embeddings") for part in (config, text)]
    tied = next((one for one in found if one is not None), False)
    if not isinstance(tied, bool):
        raise BadCheckpoint(f"config: tie_word_embeddings is {tied!r}, neither true nor false")
    return tied


def _moe(text: Mapping[str, Any]) -> MoeConfig:
    dense = text.get("mlp_only_layers") or []
    renormalise = text.get("norm_topk_prob", True)
    if not isinstance(renormalise, bool):
        raise BadCheckpoint(f"config: norm_topk_prob is {renormalise!r}, neither true nor false")
    if not isinstance(dense, list):
        raise BadCheckpoint("config: mlp_only_layers is no list")
    return MoeConfig(
        **_required(text, MOE),
        renormalise=renormalise,
        every=_count(text, "decoder_sparse_step", 1),
        dense=tuple(dense),
    )
