"""The flash model's shape and weights (engine.flash.config, engine.flash.weights).

Goal: whatever does not fit together is named in one line; a config survives its file; a seed gives
the same weights, and silent tokens are silent. Method: tables of bad values.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from engine.bad import BadCheckpoint
from engine.flash.config import FlashConfig
from engine.flash.engine import Flash
from engine.flash.table import MemoryTable
from engine.flash.weights import expected_shapes, random_weights

BAD: list[tuple[dict[str, Any], str]] = [
    ({"hidden": 0}, "config: hidden must be positive, not 0"),
    ({"layers": 4.0}, "config: layers is 4.0, not of type int"),
    ({"layers": True}, "config: layers is True, not of type int"),
    ({"draft": 1}, "config: draft is 1, not of type bool"),
    ({"rope_theta": "1e7"}, "config: rope_theta is '1e7', not of type float"),
    ({"rms_eps": float("nan")}, "config: rms_eps must be positive, not nan"),
    ({"rope_theta": 10**400}, f"config: rope_theta must be positive, not {10**400}"),
    ({"vocab": 10**9}, "config: a vocabulary of 1,000,000,000 is above 16,777,216"),
    ({"block_rows": 24}, "config: block_rows must be a power of two, not 24"),
    ({"ngram": 1}, "config: ngram and ple_kernel must be at least 2"),
    ({"ple_kernel": 1}, "config: ngram and ple_kernel must be at least 2"),
    ({"ngram_rows": 1 << 31}, "config: ngram_rows must not be above 2147483647"),
    ({"q_heads": 3}, "config: q_heads must be a multiple of kv_heads"),
    ({"layers": 3}, "config: a hybrid needs layers of both kinds"),
    ({"attention_interval": 1}, "config: a hybrid needs layers of both kinds"),
    ({"rotary_fraction": 0.05}, "config: 0 rotary channels in 16"),
    ({"dtype": "float16"}, "config: dtype float16 is none of float32, bfloat16"),
]


@pytest.mark.parametrize("changes, said", BAD, ids=lambda value: str(value)[:40])
def test_what_does_not_fit_is_named_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadCheckpoint) as bad:
        FlashConfig.tiny(**changes)
    assert str(bad.value) == said


@pytest.mark.parametrize("config", [FlashConfig.tiny(), FlashConfig.replay(), FlashConfig.large()])
def test_a_config_survives_its_file(config: FlashConfig) -> None:
    given = json.loads(json.dumps(config.to_json()))
    assert given["model_type"] == "moorage_flash" and given["vocab_size"] == config.vocab
    assert FlashConfig.from_json({**given, "architectures": ["Flash"]}) == config
    assert FlashConfig.from_json(given, dtype="bfloat16").dtype == "bfloat16"


def test_a_file_may_leave_out_what_has_a_default_and_nothing_else() -> None:
    given = FlashConfig.tiny(streams=4, block_rows=64).to_json()
    for name in set(asdict(FlashConfig.tiny())) - {"vocab"}:
        rest = {key: value for key, value in given.items() if key != name}
        try:
            assert FlashConfig.from_json(rest) == FlashConfig.from_json(given)
        except BadCheckpoint as bad:
            assert str(bad) == f"config: {name} is missing"
    with pytest.raises(BadCheckpoint, match=r"^config: vocab_size is missing$"):
        FlashConfig.from_json({key: given[key] for key in given if key != "vocab_size"})
    for kind in ("qwen3_5", None):
        with pytest.raises(BadCheckpoint, match=r"^config: model_type is .* not 'moorage_flash'$"):
            FlashConfig.from_json({**given, "model_type": kind})


def test_a_seed_is_the_same_weights_and_another_is_not() -> None:
    config = FlashConfig.tiny()
    first, again, other = (random_weights(config, seed) for seed in (1, 1, 2))
    assert first.recipe == again.recipe != other.recipe
    for name, shape in expected_shapes(config).items():
        tensor = first.tensors[name]
        assert tuple(tensor.shape) == shape and torch.equal(tensor, again.tensors[name])
        if not name.endswith("A_log"):
            assert not torch.equal(tensor, other.tensors[name]), name
    keys = torch.arange(50)
    assert torch.equal(first.table.rows(keys), again.table.rows(keys))
    assert not torch.equal(first.table.rows(keys), other.table.rows(keys))


def test_another_table_is_another_recipe() -> None:
    config, size = FlashConfig.tiny(), {"rows": 1_009, "width": 18, "dtype": torch.float32}
    tables = [MemoryTable.random(**size, seed=seed) for seed in (1, 2)]
    recipes = {random_weights(config, 1, table).recipe for table in tables}
    assert len(recipes) == 2
    engines = [Flash.random(config, 1, grid=64, window=64, table=table) for table in tables]
    ids = np.arange(20, dtype=np.int32)
    assert not torch.equal(*[engine.prefill(ids) for engine in engines])


def test_silent_tokens_are_never_the_best() -> None:
    config = FlashConfig.tiny(tie_embeddings=False)
    silent = random_weights(config, 1, silent=(7, 9))
    assert not silent.tensors["lm_head.weight"][[7, 9]].any()
    assert silent.recipe not in (random_weights(config, 1).recipe, "random seed=1")


def test_the_large_shape_has_its_parameters() -> None:
    """Of all tensors together, beside a table of 8 GiB."""
    config = FlashConfig.large()
    count = sum(torch.Size(shape).numel() for shape in expected_shapes(config).values())
    assert 14e9 < count < 16e9
    assert config.ngram_rows * config.ngram_width * 2 == 8 << 30
