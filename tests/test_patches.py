"""Pixels to patches.

Goal: engine.pictures.patches sizes and cuts a picture as the family's own preprocessing does, never
into fewer rows than hold a digest, and names it by what the tower reads. Method: that preprocessing
(transformers, on Pillow) as an oracle for sizes, order and values; hypothesis over sizes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from test_pictures_decode import encoded

from cache.keys import KEY_ROWS
from engine.pictures.decode import Limits, Refused
from engine.pictures.patches import PatchConfig, fitted, named, picture_of, read, stand_in
from engine.pictures.picture import Picture

CONFIG = PatchConfig()
SMALL = PatchConfig(min_pixels=9_216, max_pixels=40_000)
SIDES = st.integers(1, 9_000)


def picture(width: int = 200, height: int = 100, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


@given(SIDES, SIDES, st.sampled_from([CONFIG, SMALL]))
def test_sizes(width: int, height: int, config: PatchConfig) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    w, h = fitted(width, height, config)
    assert w % config.factor == h % config.factor == 0 and w > 0 and h > 0
    assert w * h >= KEY_ROWS * config.factor**2
    assert w * h <= config.max_pixels or min(w, h) == config.factor
    assert fitted(height, width, config) == (h, w)
    assert fitted(w, h, config) == (w, h) or w * h > config.max_pixels
    # The aspect is kept to a row's width on either side.
    if min(w, h) > config.factor:
        row = config.factor
        assert (w - row) / (h + row) <= width / height <= (w + row) / (h - row)


@given(SIDES, SIDES)
def test_sizes_are_the_familys_own(width: int, height: int) -> None:
    theirs = pytest.importorskip(
        "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl", reason="the oracle"
    )
    if max(width, height) <= 200 * min(width, height):
        h, w = theirs.smart_resize(height, width, 32, CONFIG.min_pixels, CONFIG.max_pixels)
        assert fitted(width, height, CONFIG) == (w, h)


@pytest.mark.parametrize("size", [(200, 100), (640, 480), (31, 33), (3_000, 40), (2_000, 1_500)])
def test_patches_are_the_familys_own(size: tuple[int, int]) -> None:
    theirs = pytest.importorskip(
        "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl", reason="the oracle"
    )
    processor = theirs.Qwen2VLImageProcessorPil(
        patch_size=16,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"shortest_edge": CONFIG.min_pixels, "longest_edge": CONFIG.max_pixels},
    )
    image = picture(*size)
    wanted = processor(image, return_tensors="pt")
    got = picture_of(image, CONFIG)
    assert list(got.grid) == wanted["image_grid_thw"][0].tolist()
    assert got.patches is not None and got.patches.dtype is torch.uint8
    # Theirs: [n, (channel, frame, y, x)] with a still's frame twice, scaled to [-1, 1].
    both = wanted["pixel_values"].view(len(got.patches), 3, 2, 256)
    for frame in range(2):
        scaled = (got.patches.view(-1, 3, 256).float() / 255 - 0.5) / 0.5
        assert torch.allclose(both[:, :, frame], scaled, atol=1e-5)


def test_equal_pixels_have_one_digest_and_others_another() -> None:
    image = picture(320, 256)
    one = read(encoded(image), Limits(), CONFIG)
    other = read(encoded(image, "WEBP", lossless=True), Limits(), CONFIG)
    assert isinstance(one, Picture) and isinstance(other, Picture)
    assert one.digest == other.digest and one.ids.tolist() == other.ids.tolist()
    touched = np.asarray(image).copy()
    touched[100, 100, 1] ^= 1
    assert picture_of(Image.fromarray(touched), CONFIG).digest != one.digest


def test_the_digest_covers_grid_merge_and_dtype() -> None:
    patches = torch.zeros(144, 48, dtype=torch.uint8)
    digests = {
        named(patches, (1, 12, 12)).digest,
        named(patches, (1, 6, 24)).digest,
        named(patches, (1, 12, 12), merge=1).digest,
        named(patches.view(torch.int8), (1, 12, 12)).digest,
        named(patches.view(144, 24, 2), (1, 12, 12)).digest,
    }
    assert len(digests) == 5


def test_what_is_refused_stays_refused() -> None:
    assert isinstance(read(b"nothing", Limits(), CONFIG), Refused)


@given(st.binary(max_size=64), st.integers(1, 60), st.integers(1, 60))
def test_any_size_gives_a_picture(noise: bytes, width: int, height: int) -> None:
    if max(width, height) <= 200 * min(width, height):
        pixels = np.resize(np.frombuffer(noise + b"x", np.uint8), (height, width, 3))
        got = read(encoded(Image.fromarray(pixels)), Limits(), SMALL)
        assert isinstance(got, Picture) and got.rows >= KEY_ROWS


def test_stand_ins_hang_on_the_digest_alone() -> None:
    bare = Picture(b"a" * 32, (1, 6, 8))
    one, again = stand_in(bare), stand_in(Picture(b"a" * 32, (1, 6, 8)))
    other = stand_in(Picture(b"b" * 32, (1, 6, 8)))
    assert one.patches is not None and again.patches is not None and other.patches is not None
    assert one.patches.shape == (48, 768) and one.digest == bare.digest
    assert torch.equal(one.patches, again.patches) and not torch.equal(one.patches, other.patches)


@pytest.mark.parametrize(
    "changes", [{"min_pixels": 9_215}, {"max_pixels": 100_000}, {"patch": 0}, {"merge": 0}]
)
def test_a_setting_that_cannot_be_is_named(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        PatchConfig(**changes)


PEAK = """
import re, sys
from engine.pictures.decode import Limits
from engine.pictures.patches import PatchConfig, read

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) // 1024

data, before = open(sys.argv[1], "rb").read(), peak()
print(read(data, Limits(), PatchConfig()).rows, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads a process's peak from /proc")
def test_a_large_allowed_picture_takes_bounded_memory(tmp_path: Path) -> None:
    """12 Mi pixels of the dearest mode, grey with transparency: 14 bytes each at the worst moment,
    and patches.
    """
    file = tmp_path / "large.png"
    Image.new("LA", (4_096, 3_072), (9, 99)).save(file, compress_level=1)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(file)], capture_output=True, text=True, check=True
    )
    rows, mib = map(int, done.stdout.split())
    assert rows <= 1_280
    assert 12 * 4 <= mib <= 12 * 14 + 16
