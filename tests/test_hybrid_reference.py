"""The hybrid against another implementation of the same architecture.

Goal: a published checkpoint of this family loads by its tensor names and computes what
Qwen3_5ForCausalLM of transformers computes. Method: a tiny random checkpoint is saved by
transformers itself and read back here; logits, states, conv tails and rows are compared along a
text of random tokens, and greedy text is written by both, ours through prefill, verify blocks and
partial acceptance.

Bounds. float32: both round differently in every sum, about 1e-7 a step of order one, amplified over
4 layers to the 6e-6 seen in logits of up to 3.5; 3e-5 is asked for. bfloat16: one unit of a value
between 2 and 4 is 2^-6, and a norm that rounds one element otherwise moves the logits by one to
four of these; 0.1 is asked for. A wrong formula is off by the logits' own size in either.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cache.types import Ids
from engine.adapter import Engine
from engine.checkpoint.shape import hybrid_config
from engine.config import HybridConfig
from engine.decode import decode
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.sampling import Greedy
from engine.weights import random_weights, read_safetensors

transformers = pytest.importorskip("transformers", reason="the other implementation")

LOGITS = {"float32": 3e-5, "bfloat16": 0.1}
MEMORY = {"float32": 5e-5, "bfloat16": 0.15}


def published(config: HybridConfig) -> dict[str, Any]:
    """The shape in the published words."""
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.q_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "linear_num_key_heads": config.key_heads,
        "linear_num_value_heads": config.value_heads,
        "linear_key_head_dim": config.key_dim,
        "linear_value_head_dim": config.value_dim,
        "linear_conv_kernel_dim": config.conv_kernel,
        "tie_word_embeddings": config.tie_embeddings,
        "dtype": config.dtype,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.rotary_fraction,
            "mrope_section": [11, 11, 10],
        },
    }


def both(tmp_path: Path, dtype: str, **changes: Any) -> tuple[Any, Decoder]:
    """Their model with random weights, and ours read from the checkpoint that theirs saved."""
    config = HybridConfig.tiny(dtype=dtype, draft=False, **changes)
    shape = transformers.Qwen3_5TextConfig(**published(config))
    theirs = transformers.Qwen3_5ForCausalLM(shape).to(config.torch_dtype).eval()
    # Their own initialisation forgets within a token and leaves the layers nearly silent.
    loaded = theirs.load_state_dict(dict(random_weights(config, 3).tensors), strict=False)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) <= ({"lm_head.weight"} if config.tie_embeddings else set())
    theirs.save_pretrained(tmp_path)
    read = hybrid_config(json.loads((tmp_path / "config.json").read_text()))
    assert read == config
    weights = read_safetensors(read, [str(file) for file in tmp_path.glob("*.safetensors")])
    return theirs, Decoder(weights)


def ids_of(count: int, seed: int = 0) -> Ids:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, 499, count).astype(np.int32)


def near(got: torch.Tensor, want: torch.Tensor, bound: float) -> None:
    """Element by element within `bound`, and not by being NaN together."""
    torch.testing.assert_close(got.float(), want.float(), atol=bound, rtol=0.0)


@torch.no_grad()
def forward(theirs: Any, ids: Ids, memory: Any = None) -> Any:
    """Their output for more tokens, with the memory in it."""
    pieces = torch.from_numpy(ids.astype(np.int64))[None]
    return theirs(pieces, cache=memory, use_cache=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes", [{}, {"tie_embeddings": False, "head_dim": 32, "kv_heads": 1, "key_heads": 1}]
)
def test_logits_states_and_rows(tmp_path: Path, dtype: str, changes: dict[str, Any]) -> None:
    theirs, decoder = both(tmp_path, dtype, **changes)
    ids = ids_of(203)
    out = forward(theirs, ids)
    engine = Hybrid(decoder, grid=64, window=256)
    for start in range(0, 192, 64):
        logits = engine.prefill(ids[start : start + 64])
        near(logits, out.logits[0, start + 63], LOGITS[dtype])
    near(engine.verify(ids[192:]), out.logits[0, 192:], LOGITS[dtype])
    engine.accept(11)
    engine.settle()
    state = engine.cache_state()
    sections = {section.name: section.tensor for section in state.sections}
    rows = {view.name: view.rows(0, 203) for view in state.views}
    for at in range(3):
        layer = out.past_key_values.layers[at]
        near(sections["gdn.S"][at], layer.recurrent_states[0][0], MEMORY[dtype])
        # They keep as many columns as the kernel has taps; the oldest is never read again.
        near(sections["gdn.conv"][at], layer.conv_states[0][0, :, -3:], MEMORY[dtype])
    near(rows["K"][0], out.past_key_values.layers[3].keys[0], MEMORY[dtype])
    near(rows["V"][0], out.past_key_values.layers[3].values[0], MEMORY[dtype])


class Script(Greedy):
    """Greedy, with drafts that are right for so many tokens and wrong after them."""

    def __init__(self, text: list[int], rights: Sequence[int]) -> None:
        super().__init__()
        self._text, self._rights, self._round = text, rights, 0
        self.accepted: list[int] = []

    def drafts(self, engine: Engine, token: int) -> list[int]:
        """Three guesses a round, none in every fifth."""
        self._round += 1
        if self._round % 5 == 0:
            return []
        at = 1 + sum(count + 1 for count in self.accepted)
        right = self._text[at : at + self._rights[self._round % len(self._rights)]]
        return [*right, *[(token + 1) % engine.vocab] * (3 - len(right))]

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        """Greedy's, remembered."""
        accepted, token = super().judge(logits, drafts)
        self.accepted.append(accepted)
        return accepted, token


def test_greedy_text_through_prefill_blocks_and_partial_acceptance(tmp_path: Path) -> None:
    theirs, decoder = both(tmp_path, "float32")
    ids = ids_of(100, seed=1)
    out = forward(theirs, ids)
    text = [int(out.logits[0, -1].argmax())]
    while len(text) < 72:
        out = forward(theirs, np.array(text[-1:], np.int32), out.past_key_values)
        text.append(int(out.logits[0, -1].argmax()))
    engine = Hybrid(decoder, grid=64, window=256)
    engine.prefill(ids[:64])
    rule = Script(text, rights=(3, 0, 2, 1))
    rounds = decode(engine, engine.prefill(ids[64:]), rule, len(text), frozenset())
    assert [token for new in rounds for token in new] == text
    assert {0, 1, 2, 3} <= set(rule.accepted)
    assert len(set(text)) > 10
