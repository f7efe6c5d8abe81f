"""Weights of the hybrid model by their published tensor names, and random ones from a seed

Sources: the names and shapes are those of the Qwen3.5 checkpoints (`model.*`, `lm_head.*`), of
their multi-token-prediction layer (`mtp.*`) and of their vision tower (`model.visual.*`), and those
of the Qwen3-Next checkpoints for experts (`mlp.experts.N.*`, `mlp.shared_expert.*`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from cache.fingerprint import weight_digest
from engine.config import HybridConfig
from engine.moe_config import MoeConfig
from engine.vision_config import VisionConfig

Shape = tuple[int, ...]

# The slowest and the fastest head forget at these rates a token. The usual initialisation forgets
# within a token, and a wrong state would leave no trace in the logits.
DECAY_SLOWEST, DECAY_FASTEST = 0.001, 0.1


def nothing() -> None:
    """Weights in memory have nothing to give back."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A complete set of tensors for `config`, checked, in the config's dtype.

    `A_log` and `dt_bias` keep the dtype they were stored in: they are only ever used in float32.
    """

    config: HybridConfig
    tensors: Mapping[str, torch.Tensor]
    recipe: str
    """How to get the same bits again: a seed, or the files."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Paths of the files they were read from, to a digest of each."""
    made_by: tuple[str, ...] = ()
    """Modules, beside this one, whose code decides their bits."""
    release: Callable[[], None] = nothing
    """Gives back the memory of what was read from files and is not held; views stay good."""

    @contextmanager
    def below(self, prefix: str) -> Iterator[dict[str, torch.Tensor]]:
        """The tensors below `prefix` by the rest of their names, read here and given back after."""
        names = [name for name in self.tensors if name.startswith(prefix)]
        yield {name.removeprefix(prefix): self.tensors[name] for name in names}
        self.release()


def expected_shapes(config: HybridConfig) -> dict[str, Shape]:
    """Name and shape of every tensor that `config` needs."""
    hidden = config.hidden
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab, hidden)}
    for layer in range(config.layers):
        kinds = config.is_attention(layer), config.is_sparse(layer)
        shapes |= _layer_shapes(config, f"model.layers.{layer}.", *kinds)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab, hidden)
    if config.draft:
        shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
        sparse = config.moe is not None and config.moe.draft
        for layer in range(config.draft_layers):
            shapes |= _layer_shapes(config, f"mtp.layers.{layer}.", True, sparse)
        for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            shapes[f"mtp.{name}.weight"] = (hidden,)
    if config.vision:
        # Last, so that a seed gives a model the same text weights with and without a tower.
        shapes |= _vision_shapes(config.vision, hidden)
    return shapes


def _vision_shapes(config: VisionConfig, out: int) -> dict[str, Shape]:
    hidden, wide = config.hidden, config.hidden * config.merge**2
    cut = (3, config.temporal, config.patch, config.patch)
    weights: dict[str, Shape] = {"patch_embed.proj": (hidden, *cut)}
    for block in range(config.depth):
        weights |= {
            f"blocks.{block}.norm1": (hidden,),
            f"blocks.{block}.norm2": (hidden,),
            f"blocks.{block}.attn.qkv": (3 * hidden, hidden),
            f"blocks.{block}.attn.proj": (hidden, hidden),
            f"blocks.{block}.mlp.linear_fc1": (config.intermediate, hidden),
            f"blocks.{block}.mlp.linear_fc2": (hidden, config.intermediate),
        }
    weights |= {
        "merger.norm": (hidden,),
        "merger.linear_fc1": (wide, wide),
        "merger.linear_fc2": (out, wide),
    }
    shapes: dict[str, Shape] = {"pos_embed.weight": (config.positions, hidden)}
    for name, shape in weights.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}


def _layer_shapes(
    config: HybridConfig, prefix: str, attention: bool, sparse: bool
) -> dict[str, Shape]:
    hidden, head = config.hidden, config.head_dim
    queries, keys = config.q_heads * head, config.kv_heads * head
    values = config.value_heads * config.value_dim
    shapes: dict[str, Shape] = {"input_layernorm.weight": (hidden,)}
    if attention:
        shapes |= {
            "self_attn.q_proj.weight": (2 * queries, hidden),
            "self_attn.k_proj.weight": (keys, hidden),
            "self_attn.v_proj.weight": (keys, hidden),
            "self_attn.o_proj.weight": (hidden, queries),
            "self_attn.q_norm.weight": (head,),
            "self_attn.k_norm.weight": (head,),
        }
    else:
        shapes |= {
            "linear_attn.in_proj_qkv.weight": (config.channels, hidden),
            "linear_attn.in_proj_z.weight": (values, hidden),
            "linear_attn.in_proj_b.weight": (config.value_heads, hidden),
            "linear_attn.in_proj_a.weight": (config.value_heads, hidden),
            "linear_attn.conv1d.weight": (config.channels, 1, config.conv_kernel),
            "linear_attn.A_log": (config.value_heads,),
            "linear_attn.dt_bias": (config.value_heads,),
            "linear_attn.norm.weight": (config.value_dim,),
            "linear_attn.out_proj.weight": (hidden, values),
        }
    shapes["post_attention_layernorm.weight"] = (hidden,)
    if sparse and config.moe:
        shapes |= _moe_shapes(config.moe, hidden)
    else:
        shapes |= _mlp_shapes("mlp.", hidden, config.intermediate)
    return {prefix + name: shape for name, shape in shapes.items()}


def _moe_shapes(moe: MoeConfig, hidden: int) -> dict[str, Shape]:
    """Experts one by one, as they are published; a fused set is as many views."""
    shapes: dict[str, Shape] = {"mlp.gate.weight": (moe.experts, hidden)}
    for expert in range(moe.experts):
        shapes |= _mlp_shapes(f"mlp.experts.{expert}.", hidden, moe.intermediate)
    shapes |= _mlp_shapes("mlp.shared_expert.", hidden, moe.shared_intermediate)
    shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
    return shapes


def _mlp_shapes(prefix: str, hidden: int, inner: int) -> dict[str, Shape]:
    return {
        f"{prefix}gate_proj.weight": (inner, hidden),
        f"{prefix}up_proj.weight": (inner, hidden),
        f"{prefix}down_proj.weight": (hidden, inner),
    }


def random_weights(config: HybridConfig, seed: int, silent: Sequence[int] = ()) -> Weights:
    """Weights drawn in float32 from `seed`, then rounded to the config's dtype.

    Greedy decoding never writes `silent` tokens: their output rows are zero, and with them their
    logits, which the highest of many others is above.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: _draw(name, shape, generator).to(config.torch_dtype)
        for name, shape in expected_shapes(config).items()
    }
    recipe = f"random seed={seed}"
    if silent:
        assert not config.tie_embeddings, "a token that is silent is still read"
        tensors["lm_head.weight"][list(silent)] = 0
        recipe += f" silent={hashlib.sha256(repr(sorted(silent)).encode()).hexdigest()[:16]}"
    return Weights(config, tensors, recipe)


def _draw(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    if name.endswith(("A_log", "dt_bias")):
        return _draw_decay(name, shape, generator)
    noise = torch.empty(shape).normal_(generator=generator)
    if name.startswith("model.visual."):
        return _draw_vision(name, noise)
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.1 * noise
    if "norm" in name:
        return 0.1 * noise
    # in_proj_a moves the decay of a token around its head's own rate; half keeps it within a factor
    # of about three.
    scale = 0.5 if name.endswith("in_proj_a.weight") else 1.0
    return noise * (scale / math.sqrt(shape[-1]))


def _draw_vision(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Norms around one, small biases, positions that show beside the patches."""
    if name.endswith(".bias"):
        return 0.1 * noise
    if "norm" in name:
        return 1.0 + 0.1 * noise
    return noise if name.endswith("pos_embed.weight") else noise / math.sqrt(noise[0].numel())


def _draw_decay(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """A token decays a head's state by exp(-exp(A_log) * softplus(a + dt_bias)).

    A is 4 for every head (the middle of the usual range), so dt_bias alone sets the rate.
    """
    if name.endswith("A_log"):
        return torch.full(shape, math.log(4.0))
    low, high = math.log(DECAY_SLOWEST), math.log(DECAY_FASTEST)
    rate = torch.empty(shape).uniform_(low, high, generator=generator).exp()
    return torch.log(torch.expm1(rate / 4.0))


def as_stored(name: str) -> bool:
    """Whether a tensor keeps the dtype it is stored in: decay rates are read in float32."""
    return name.endswith(("A_log", "dt_bias"))


def file_digest(path: str) -> str:
    """Size and content of a weights file, a large one's sampled. Raises OSError."""
    data = np.memmap(path, np.uint8, "r")
    return weight_digest(len(data), lambda offset, nbytes: data[offset : offset + nbytes].tobytes())
