"""The vision tower.

Goal: engine.layers.vision computes the published formulas, and what it gives hangs on nothing but
the picture. Method: engine.oracle.vision, in float64, on pictures of several shapes;
the tower of another implementation (transformers) with the same weights; bits compared under other
thread counts, after other pictures and at other addresses. Bounds as in test_hybrid: absolute, on
values of order one.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import HybridConfig
from engine.layers import vision
from engine.layers.vision import Tower, in_blocks, one_thread
from engine.oracle.vision import tower as oracle_tower
from engine.pictures.patches import named
from engine.pictures.picture import Picture
from engine.vision_config import VisionConfig
from engine.weights import random_weights

CONFIG = HybridConfig.tiny(vision=VisionConfig.small())
BOUND = {"float32": 2e-5, "bfloat16": 0.15}


def drawn(h: int, w: int, seed: int = 0) -> Picture:
    """A still of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (h * w, 768), np.uint8)
    return named(torch.from_numpy(pixels), (1, h, w))


def visual(config: HybridConfig = CONFIG) -> dict[str, torch.Tensor]:
    """The tower's weights by their names inside it."""
    tensors = random_weights(config, 3).tensors
    prefix = "model.visual."
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def tower(config: HybridConfig = CONFIG) -> Tower:
    assert config.vision is not None
    return Tower(config.vision, visual(config), config.torch_dtype)


@pytest.mark.parametrize("grid", [(6, 6), (4, 10), (2, 18), (14, 8)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_is_the_reference(grid: tuple[int, int], dtype: str) -> None:
    config = HybridConfig.tiny(vision=VisionConfig.small(), dtype=dtype)
    picture = drawn(*grid)
    assert config.vision is not None and picture.patches is not None
    wanted = oracle_tower(config.vision, visual(config), picture.patches, picture.grid)
    got = tower(config)(picture)
    assert got.shape == (picture.rows, config.hidden) and got.dtype is config.torch_dtype
    torch.testing.assert_close(got.double(), wanted, atol=BOUND[dtype], rtol=0.0)
    assert wanted.std() > 0.3


@pytest.mark.parametrize(
    "changes", [{"heads": 3}, {"depth": 1, "positions": 4}, {"hidden": 32, "heads": 1}]
)
def test_other_shapes_are_the_reference(changes: dict[str, int]) -> None:
    config = HybridConfig.tiny(vision=VisionConfig.small(**changes))
    picture = drawn(6, 8)
    assert config.vision is not None and picture.patches is not None
    wanted = oracle_tower(config.vision, visual(config), picture.patches, picture.grid)
    torch.testing.assert_close(tower(config)(picture).double(), wanted, atol=2e-5, rtol=0.0)


def test_of_several_frames_each_sees_itself_alone() -> None:
    one, other = drawn(6, 6, 1), drawn(6, 6, 2)
    assert one.patches is not None and other.patches is not None
    both = named(torch.cat([one.patches, other.patches]), (2, 6, 6))
    got = tower()(both)
    torch.testing.assert_close(got, torch.cat([tower()(one), tower()(other)]), atol=1e-5, rtol=0)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


# Enough patches and channels that threads would share sums and elements.
WIDE = HybridConfig.tiny(hidden=64, vision=VisionConfig.small(hidden=320, intermediate=1_250))


def by_threads(of: Tower, picture: Picture) -> set[bytes]:
    """What it gives under one to four threads."""
    threads, found = torch.get_num_threads(), set()
    try:
        for count in (1, 2, 3, 4):
            torch.set_num_threads(count)
            found.add(bits(of(picture)))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    return found


def test_hangs_on_the_picture_alone() -> None:
    of, picture = tower(WIDE), drawn(26, 34)
    before = bits(of(picture))
    of(drawn(10, 10, 5))
    assert bits(of(picture)) == before
    assert picture.patches is not None
    moved = Picture(picture.digest, picture.grid, picture.patches.clone())
    assert bits(tower(WIDE)(moved)) == before
    assert by_threads(of, picture) == {before}


def test_canary_as_many_threads_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "one_thread", nullcontext)
    assert len(by_threads(tower(WIDE), drawn(26, 34))) > 1


def test_one_thread_gives_the_threads_back_after_an_error() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), one_thread():
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_blocks_have_the_order_of_patches() -> None:
    grid = torch.arange(24).view(4, 6, 1)
    assert in_blocks(grid, 2).flatten().tolist()[:8] == [0, 1, 6, 7, 2, 3, 8, 9]


@pytest.mark.parametrize("spoil", ["no patches", "another merge", "floats", "another size"])
def test_what_it_cannot_read_is_an_error(spoil: str) -> None:
    good = drawn(6, 8)
    assert good.patches is not None
    pictures = {
        "no patches": Picture(good.digest, good.grid),
        "another merge": Picture(good.digest, good.grid, good.patches, merge=1),
        "floats": Picture(good.digest, good.grid, good.patches.float()),
        "another size": Picture(good.digest, good.grid, good.patches[:, :300]),
    }
    with pytest.raises(AssertionError):
        tower()(pictures[spoil])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("grid", [(6, 6), (8, 14)])
def test_is_another_implementation(dtype: str, grid: tuple[int, int]) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="the other implementation")
    module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    config = HybridConfig.tiny(vision=VisionConfig.small(), dtype=dtype)
    assert config.vision is not None
    shape = transformers.models.qwen3_5.configuration_qwen3_5.Qwen3_5VisionConfig(
        **published(config.vision, config.hidden)
    )
    theirs = module.Qwen3_5VisionModel(shape).to(config.torch_dtype).eval()
    theirs.load_state_dict(visual(config))
    picture = drawn(*grid)
    assert picture.patches is not None
    still = picture.patches.view(-1, 3, 1, 256).expand(-1, 3, 2, 256).flatten(1)
    with torch.no_grad():
        out = theirs((still.float() / 255 - 0.5) / 0.5, grid_thw=torch.tensor([picture.grid]))
    got = tower(config)(picture)
    torch.testing.assert_close(got.float(), out.pooler_output.float(), atol=BOUND[dtype], rtol=0.0)


def published(of: VisionConfig, out: int) -> dict[str, Any]:
    """The tower's shape in the published words."""
    return {
        "depth": of.depth,
        "hidden_size": of.hidden,
        "intermediate_size": of.intermediate,
        "num_heads": of.heads,
        "patch_size": of.patch,
        "temporal_patch_size": of.temporal,
        "spatial_merge_size": of.merge,
        "num_position_embeddings": of.positions,
        "out_hidden_size": out,
    }
