"""Weights of the flash model by name: their shapes, and a random draw"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from engine.flash.config import FlashConfig
from engine.flash.table import MemoryTable, Table
from engine.weights import DECAY_FASTEST, DECAY_SLOWEST, Shape, as_stored, nothing


@dataclass(frozen=True, slots=True)
class FlashWeights:
    """A complete set of tensors for `config`, checked, in the config's dtype, with the table."""

    config: FlashConfig
    tensors: Mapping[str, torch.Tensor]
    table: Table
    recipe: str
    """How to get the same bits again: a seed, a digest of the content, or the files."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Paths of the files they were read from, the table's among them, to a digest of each."""
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


def expected_shapes(config: FlashConfig) -> dict[str, Shape]:
    """Name and shape of every tensor that `config` needs; the n-gram table is a file of its own."""
    hidden, ple = config.hidden, config.ple_channels
    orders = config.ngram - 1
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab, hidden),
        "model.ple.embed_tokens.weight": (config.vocab, ple),
        "model.ple.ngram_proj.weight": (ple, orders * config.ngram_width),
        "model.ple.conv1d.weight": (ple, 1, config.ple_kernel),
    }
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        mixer = _sparse_shapes(config) if config.is_attention(layer) else _delta_shapes(config)
        parts = mixer | _mlp_shapes(config) | _ple_shapes(config)
        shapes |= {prefix + name: shape for name, shape in parts.items()}
    shapes |= {"model.streams.read": (config.streams,), "model.norm.weight": (hidden,)}
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab, hidden)
    if config.draft:
        parts = _sparse_shapes(config) | _mlp_shapes(config)
        shapes |= {f"mtp.layers.0.{name}": shape for name, shape in parts.items()}
        shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
        shapes["mtp.streams.read"] = (config.streams,)
        for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            shapes[f"mtp.{name}.weight"] = (hidden,)
    return shapes


def _branch(config: FlashConfig, norm: str, streams: str) -> dict[str, Shape]:
    many = config.streams
    return {
        f"{norm}.weight": (config.hidden,),
        f"{streams}.read": (many,),
        f"{streams}.mix": (many, many),
        f"{streams}.write": (many,),
    }


def _sparse_shapes(config: FlashConfig) -> dict[str, Shape]:
    hidden, head, index = config.hidden, config.head_dim, config.index_dim
    queries, keys = config.q_heads * head, config.kv_heads * head
    return _branch(config, "input_layernorm", "mixer_streams") | {
        "self_attn.q_proj.weight": (2 * queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "self_attn.index_q_proj.weight": (config.index_heads * index, hidden),
        "self_attn.index_k_proj.weight": (index, hidden),
        "self_attn.index_weights_proj.weight": (config.index_heads, hidden),
        "self_attn.index_q_norm.weight": (index,),
        "self_attn.index_k_norm.weight": (index,),
    }


def _delta_shapes(config: FlashConfig) -> dict[str, Shape]:
    hidden, heads = config.hidden, config.value_heads
    values = heads * config.value_dim
    return _branch(config, "input_layernorm", "mixer_streams") | {
        "linear_attn.in_proj_qkv.weight": (config.channels, hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.conv1d.weight": (config.channels, 1, config.conv_kernel),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (config.value_dim,),
        "linear_attn.out_proj.weight": (hidden, values),
    }


def _mlp_shapes(config: FlashConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden, config.intermediate
    return _branch(config, "post_attention_layernorm", "mlp_streams") | {
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def _ple_shapes(config: FlashConfig) -> dict[str, Shape]:
    hidden, dim = config.hidden, config.ple_dim
    return _branch(config, "pre_ple_layernorm", "ple_streams") | {
        "ple.gate_proj.weight": (dim, hidden),
        "ple.up_proj.weight": (hidden, dim),
    }


def random_weights(
    config: FlashConfig, seed: int, table: Table | None = None, silent: Sequence[int] = ()
) -> FlashWeights:
    """Weights drawn in float32 from `seed`, then rounded to the config's dtype but for decay rates.

    Without a table one is drawn from the same seed and held in memory. Greedy decoding never writes
    `silent` tokens: their output rows are zero, and with them their logits, which the highest of
    many others is above.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        drawn = _draw(name, shape, generator)
        tensors[name] = drawn if as_stored(name) else drawn.to(config.torch_dtype)
    recipe = f"random seed={seed}"
    if silent:
        assert not config.tie_embeddings, "a token that is silent is still read"
        tensors["lm_head.weight"][list(silent)] = 0
        recipe += f" silent={hashlib.sha256(repr(sorted(silent)).encode()).hexdigest()[:16]}"
    if table is None:
        size = {"rows": config.ngram_rows, "width": config.ngram_width}
        table = MemoryTable.random(**size, dtype=config.torch_dtype, seed=seed)
    return FlashWeights(config, tensors, table, f"{recipe} table={table.digest()}")


def _draw(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    if name.endswith("A_log"):
        # A is 4 for every head, the middle of the usual range, so dt_bias alone sets the rate.
        return torch.full(shape, math.log(4.0))
    if name.endswith("dt_bias"):
        low, high = math.log(DECAY_SLOWEST), math.log(DECAY_FASTEST)
        rate = torch.empty(shape).uniform_(low, high, generator=generator).exp()
        return torch.log(torch.expm1(rate / 4.0))
    noise = torch.empty(shape).normal_(generator=generator)
    # Streams start equal: around these they come apart, and none fades or grows over the layers.
    if name.endswith("streams.read"):
        return (1.0 + 0.3 * noise) / shape[0]
    if name.endswith("streams.write"):
        return 1.0 + 0.3 * noise
    if name.endswith("streams.mix"):
        return torch.eye(shape[0]) + 0.05 * noise
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.1 * noise
    if "norm" in name:
        return 0.1 * noise
    # As in the hybrid's draw: in_proj_a moves a token's decay around its head's own rate.
    scale = 0.5 if name.endswith("in_proj_a.weight") else 1.0
    return noise * (scale / math.sqrt(shape[-1]))
