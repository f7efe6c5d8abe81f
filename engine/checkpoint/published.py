"""A shape in the published words: the config.json of qwen3_5, qwen3_5_text and qwen3_next"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.checkpoint.nvfp4 import FORMAT, GROUP
from engine.checkpoint.shape import HYBRID, KINDS, MOE, VISION
from engine.config import HybridConfig

_CLASSES = {
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
}


def published_config(config: HybridConfig, kind: str) -> dict[str, Any]:
    """What `hybrid_config` reads back as `config`, its draft layers and kind of rows aside: those
    of qwen3_next stand in the weights alone, and the kind of rows is no part of a checkpoint.
    """
    assert kind in KINDS, kind
    assert (config.vision is not None) == (kind == "qwen3_5"), "a tower and nothing else is nested"
    assert config.moe is None or kind == "qwen3_next", "no experts in this kind"
    text = _text(config, kind)
    outer = {"architectures": [_CLASSES[kind]], "model_type": kind}
    if config.vision is None:
        return text | outer
    vision = {theirs: getattr(config.vision, ours) for ours, theirs in VISION.items()}
    vision |= {
        "model_type": "qwen3_5_vision",
        "out_hidden_size": config.hidden,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
        "rope_parameters": {"rope_type": "axial", "rope_theta": config.vision.rope_theta},
    }
    tied = {"tie_word_embeddings": config.tie_embeddings, "dtype": config.dtype}
    return {**outer, **tied, "text_config": text, "vision_config": vision}


def nvfp4_config(ignored: Iterable[str]) -> dict[str, Any]:
    """The quantization_config of weights that are packed but for these modules."""
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": GROUP}
    weights |= {"symmetric": True, "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(ignored),
    }


def _text(config: HybridConfig, kind: str) -> dict[str, Any]:
    text = _words(config, HYBRID)
    kinds = ("linear_attention", "full_attention")
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": config.rope_theta,
        "partial_rotary_factor": config.rotary_fraction,
    }
    text |= {
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": config.tie_embeddings,
        "dtype": config.dtype,
        "layer_types": [kinds[config.is_attention(at)] for at in range(config.layers)],
        "full_attention_interval": config.full_attention_interval,
    }
    if kind == "qwen3_next":
        text["rope_parameters"] = rope
        return text | _moe(config)
    rope |= {"mrope_section": list(config.mrope_section), "mrope_interleaved": True}
    drafts = config.draft_layers if config.draft else 0
    more = {"model_type": "qwen3_5_text", "mtp_num_hidden_layers": drafts}
    return text | more | {"rope_parameters": rope}


def _moe(config: HybridConfig) -> dict[str, Any]:
    moe = config.moe
    if moe is None:
        return {"num_experts": 0}
    return _words(moe, MOE) | {
        "norm_topk_prob": moe.renormalise,
        "decoder_sparse_step": moe.every,
        "mlp_only_layers": list(moe.dense),
    }


def _words(shape: object, words: Mapping[str, str]) -> dict[str, Any]:
    return {theirs: getattr(shape, ours) for ours, theirs in words.items()}
