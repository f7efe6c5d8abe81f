"""Pixels to patches: the size a tower reads, cut into patches, and the digest of those

The size rule and the order of the patches are those of the Qwen VL family: sides are multiples of
patch * merge with the picture's aspect kept as well as that allows, and the merge x merge patches
of one row stand behind each other. Patches stay bytes, [3, patch, patch] each: what the tower makes
of them (scaling, the second frame of a still) hangs on nothing but those, and a float32 copy of
both frames would take eight times the memory.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from cache.keys import KEY_ROWS
from engine.pictures.decode import Limits, Refused, decode
from engine.pictures.picture import Picture

CHANNELS = 3


@dataclass(frozen=True, slots=True)
class PatchConfig:
    """How pictures are sized and cut. ValueError names the setting that can't be."""

    patch: int = 16
    """Pixels of a patch's side."""
    merge: int = 2
    """Patches a side that become one row."""
    min_pixels: int = 65_536
    """A smaller picture is scaled up: 64 rows, the family's own bound."""
    max_pixels: int = 1_310_720
    """A larger one is scaled down: 1,280 rows, the default of the family's preprocessing."""

    def __post_init__(self) -> None:
        if self.patch < 1 or self.merge < 1:
            raise ValueError("patch and merge must be positive")
        if self.min_pixels < KEY_ROWS * self.factor**2:
            raise ValueError(f"min_pixels must be {KEY_ROWS * self.factor**2:,} at least")
        if self.max_pixels < 2 * self.min_pixels:
            raise ValueError("max_pixels must be twice min_pixels at least")

    @property
    def factor(self) -> int:
        """Pixels of a side that one row stands for."""
        return self.patch * self.merge


def fitted(width: int, height: int, config: PatchConfig) -> tuple[int, int]:
    """(width, height) that a picture is scaled to: multiples of `factor`, within the bounds.

    A very long picture may stay somewhat above `max_pixels`: no side is under one row, and never
    under KEY_ROWS of them in all.
    """
    factor, area = config.factor, width * height
    sides = [round(side / factor) * factor for side in (width, height)]
    if math.prod(sides) > config.max_pixels:
        scale = math.sqrt(config.max_pixels / area)
        sides = [max(1, int(side * scale / factor)) * factor for side in (width, height)]
    elif math.prod(sides) < config.min_pixels:
        scale = math.sqrt(config.min_pixels / area)
        sides = [math.ceil(side * scale / factor) * factor for side in (width, height)]
    return sides[0], sides[1]


def picture_of(image: Image.Image, config: PatchConfig) -> Picture:
    """An RGB image's patches, uint8 [h * w, 3 * patch * patch], under their digest."""
    size = fitted(*image.size, config)
    scaled = image if size == image.size else image.resize(size, Image.Resampling.BICUBIC)
    patch, merge = config.patch, config.merge
    h, w = size[1] // patch, size[0] // patch
    cut = np.asarray(scaled).reshape(h // merge, merge, patch, w // merge, merge, patch, CHANNELS)
    flat = cut.transpose(0, 3, 1, 4, 6, 2, 5).reshape(h * w, CHANNELS * patch * patch)
    return named(torch.from_numpy(np.ascontiguousarray(flat)), (1, h, w), merge)


def named(patches: torch.Tensor, grid: tuple[int, int, int], merge: int = 2) -> Picture:
    """Patches under the SHA-256 of their dtype, shape, grid, merge, and bytes."""
    total = hashlib.sha256(f"{patches.dtype} {list(patches.shape)} {grid} {merge}\n".encode())
    total.update(patches.contiguous().view(torch.uint8).numpy().data)
    return Picture(total.digest(), grid, patches, merge)


def stand_in(picture: Picture, patch: int = 16) -> Picture:
    """The same rows under the same digest, with patches drawn from the digest.

    For a scrubbed trace, which has no pixels: equal pictures get equal patches, all others their
    own, so that towers, caches and gates run as they would.
    """
    t, h, w = picture.grid
    seed = list(picture.digest)
    drawn = np.random.default_rng(seed).integers(0, 256, (t * h * w, CHANNELS * patch**2), np.uint8)
    return Picture(picture.digest, picture.grid, torch.from_numpy(drawn), picture.merge)


def read(data: bytes, limits: Limits, config: PatchConfig) -> Picture | Refused:
    """What a client sent as an image, ready for a prompt."""
    image = decode(data, limits)
    return image if isinstance(image, Refused) else picture_of(image, config)
