"""The sizes of a model that this machine could not hold.

Goal: the published 27B's state, convolution tails, rows and weights come out of the code that
allocates them. Method: the figures as the field's notes give them, against engine.dry_run; small
models made for real have the sizes that a dry run says. Canaries change what is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch

from cache.types import View
from engine.buffers import Stack
from engine.config import HybridConfig
from engine.dry_run import Sizes, dry_run
from engine.flash.config import FlashConfig
from engine.flash.engine import Flash
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.vision_config import VisionConfig
from engine.weights import Weights, expected_shapes, random_weights

MIB = 1 << 20
DRAFTERS = 10
"""Layers of both drafters of the served 27B together."""


def test_the_published_27b_has_its_published_sizes() -> None:
    sizes = dry_run(HybridConfig.qwen_27b())
    assert sizes.section_bytes["gdn.S"] == 144 * MIB
    assert sizes.section_bytes["gdn.conv"] == 48 * 10_240 * 3 * 2
    assert round(sizes.section_bytes["gdn.conv"] / MIB, 2) == 2.81
    assert sizes.section_bytes["draft.h"] == 5_120 * 2
    assert sizes.kv_row_bytes == 64 * 1_024
    assert sizes.draft_row_bytes == 4_096
    assert sizes.row_bytes == 69_632
    assert sizes.weight_bytes == 2 * sizes.parameters


def test_with_its_drafters_a_row_has_106_496_bytes() -> None:
    sizes = dry_run(HybridConfig.qwen_27b(draft_layers=DRAFTERS))
    assert sizes.draft_row_bytes == 40_960
    assert sizes.row_bytes == 106_496
    assert sizes.anchor_bytes == dry_run(HybridConfig.qwen_27b()).anchor_bytes


def test_e4m3_rows_take_a_byte_a_channel_and_a_scale_a_head() -> None:
    sizes = dry_run(HybridConfig.qwen_27b(draft_layers=DRAFTERS, kv="e4m3"))
    layer = 2 * 4 * (256 + 4)
    assert sizes.kv_row_bytes == 16 * layer == 33_280
    assert sizes.draft_row_bytes == DRAFTERS * layer == 20_800
    assert sizes.workspace_row_bytes > 0 == dry_run(HybridConfig.qwen_27b()).workspace_row_bytes


def test_its_parameters_are_those_of_its_parts() -> None:
    """Counted here by hand, from the architecture's notes."""
    hidden, inner, vocab = 5_120, 17_408, 248_320
    mlp = 3 * hidden * inner
    attention = 24 * 256 * hidden * 3 + 2 * 4 * 256 * hidden + 2 * 256
    values = 48 * 128
    channels = 2 * 16 * 128 + values
    delta = hidden * (channels + 2 * values + 2 * 48) + 4 * channels + 2 * 48 + 128
    norms = 2 * hidden
    model = 16 * attention + 48 * delta + 64 * (mlp + norms) + 2 * vocab * hidden + hidden
    draft = attention + mlp + norms + 2 * hidden**2 + 3 * hidden
    assert dry_run(HybridConfig.qwen_27b(draft=False)).parameters == model
    assert dry_run(HybridConfig.qwen_27b()).parameters == model + draft
    assert round(model / 1e9, 1) == 26.9


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dtype": "bfloat16", "kv": "e4m3", "draft_layers": 2},
        {"draft": False, "tie_embeddings": False},
        {"vision": VisionConfig.small()},
    ],
)
def test_a_small_model_made_for_real_has_those_sizes(changes: dict[str, object]) -> None:
    config = HybridConfig.tiny(**changes)
    weights = random_weights(config, 1)
    made = Hybrid(Decoder(weights), grid=64, window=96)
    want = Sizes.of(made, weights.tensors.values())
    assert dry_run(config, grid=64, window=2_048) == want
    assert want.row_bytes == made.cost().row_bytes
    assert want.anchor_bytes == made.cost().anchor_bytes


def test_a_flash_models_drafter_is_counted_as_one() -> None:
    config = FlashConfig.tiny()
    sizes = Sizes.of(Flash.random(config, 0, grid=64, window=64), [])
    layer = (2 * config.kv_heads * config.head_dim + config.index_dim) * config.torch_dtype.itemsize
    assert sizes.draft_row_bytes == layer
    assert sizes.kv_row_bytes == config.attention_layers * layer


def test_nothing_of_it_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for angles and other constants: a millionth of the weights."""
    made = list[int]()
    zeros, empty = torch.zeros, torch.empty

    def watched(make):  # type: ignore[no-untyped-def]
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            tensor = make(*args, **kwargs)
            made.append(0 if tensor.is_meta else tensor.nbytes)
            return tensor

        return call

    monkeypatch.setattr(torch, "zeros", watched(zeros))
    monkeypatch.setattr(torch, "empty", watched(empty))
    dry_run(HybridConfig.qwen_27b())
    assert len(made) > 900 and sum(made) == 0


def test_canary_a_layer_without_rows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Stack.__init__

    def short(self: Stack, *args: object) -> None:
        whole(self, *args)  # type: ignore[arg-type]
        self.views = tuple(View(v.name, v.tensor[1:], v.axis) for v in self.views)

    monkeypatch.setattr(Stack, "__init__", short)
    sizes = dry_run(HybridConfig.qwen_27b())
    assert sizes.kv_row_bytes == 60 * 1_024 and math.isclose(sizes.draft_row_bytes, 0)


def strays(of: object, path: str = "", seen: set[int] | None = None) -> list[str]:
    """Where in an object there are tensors that are not on the meta device."""
    seen = set() if seen is None else seen
    if id(of) in seen or isinstance(of, str | int | float | torch.device | torch.dtype | type):
        return []
    seen.add(id(of))
    if isinstance(of, torch.Tensor):
        return [] if of.is_meta else [path]
    if isinstance(of, Mapping):
        parts = {str(key): value for key, value in of.items()}
    elif isinstance(of, list | tuple):
        parts = {str(at): value for at, value in enumerate(of)}
    else:
        slots = [n for kind in type(of).__mro__ for n in getattr(kind, "__slots__", ())]
        parts = {n: getattr(of, n) for n in slots if hasattr(of, n)} | getattr(of, "__dict__", {})
    return [found for n, part in parts.items() for found in strays(part, f"{path}.{n}", seen)]


def on_meta(**changes: object) -> Hybrid:
    """An engine over weights on that device, made as any other: no device is the default."""
    config = HybridConfig.tiny(vision=VisionConfig.small(), draft_layers=2, **changes)
    shapes = expected_shapes(config).items()
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes}
    return Hybrid(Decoder(Weights(config, tensors, "meta")), grid=64, window=96)


@pytest.mark.parametrize("kv", ["model", "e4m3"])
def test_an_engine_keeps_every_number_where_its_weights_lie(kv: str) -> None:
    assert strays(on_meta(kv=kv)) == []


def test_canary_a_table_on_another_device_is_found() -> None:
    of = on_meta()
    of._rope._cos = torch.zeros(3)
    assert [path.split(".")[-1] for path in strays(of)] == ["_cos"]
