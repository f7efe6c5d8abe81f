"""What a prefill's products alone take: their operations, at this machine's rate for them"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.config import HybridConfig
from engine.layers.delta_rule import INNER
from engine.layers.linear import linear

ROUNDS = 9


def operations(config: HybridConfig, tokens: int) -> float:
    """Multiplications and additions of a cold prefill's products, the draft layers' left out.

    Of the last layer, after which one row is read, only what makes keys and values. Linear layers
    and the convolution as they are; attention of every row to half of all; the delta rule in inner
    chunks, as engine/layers/wide_rule.py writes it down. Norms, gates and exponentials are none.
    """
    values = config.value_heads * config.value_dim
    queries, keys = config.q_heads * config.head_dim, config.kv_heads * config.head_dim
    delta = 1.0 * config.hidden * (config.channels + 2 * values + 2 * config.value_heads)
    delta += config.channels * config.conv_kernel
    # A row's part of an inner chunk: scores and system; states read twice and written; the system
    # solved by an inverse, of two thirds of a square; its product and that of the scores.
    delta += config.key_heads * 2 * INNER * config.key_dim
    delta += config.value_heads * 3 * config.key_dim * config.value_dim
    delta += config.value_heads * (INNER * INNER / 3 + 2 * INNER * config.value_dim)
    attention = config.hidden * (3 * queries + 2 * keys) + tokens * queries
    mlp = 3 * config.hidden * config.intermediate
    layers = config.delta_layers * delta + config.attention_layers * attention + config.layers * mlp
    last = attention - 2 * config.hidden * keys + mlp
    return 2.0 * tokens * (layers - last)


def rate_per_s(config: HybridConfig, dtype: torch.dtype, now: Callable[[], float]) -> float:
    """Operations a second of the model's largest product, 1,024 rows; the quickest of some."""
    x = torch.ones(1_024, config.hidden, dtype=dtype)
    weight = torch.ones(2 * config.intermediate, config.hidden, dtype=dtype)
    took = []
    for _ in range(ROUNDS):
        begun = now()
        linear(x, weight)
        took.append(now() - begun)
    return 2.0 * x.shape[0] * weight.numel() / min(took)
