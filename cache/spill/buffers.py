"""The spill's staging buffers: planes on their way to and from the workers, and files' images."""

from __future__ import annotations

from cache.budget import Grow, freely
from cache.disk.staging import Staging
from cache.ports import Files
from cache.spill.config import SpillConfig
from cache.spill.shapes import Shapes


class Buffers:
    """Two of each, made before their first use; saves and restores never happen at once."""

    def __init__(self, files: Files, shapes: Shapes, config: SpillConfig) -> None:
        self.grow: Grow = freely
        """Asked before memory is taken."""
        planes = shapes.planes_bytes(shapes.block_rows)
        image = shapes.image_bytes(config.codec.frame_bytes)
        self.raw = Staging(files, 2, planes, shapes.buffer_weight(planes))
        self.images = Staging(files, 2, image, shapes.image_weight(image))

    def ready(self) -> bool:
        """Whether they are there; they are made now if they never were."""
        return self.raw.make(self.grow) and self.images.make(self.grow)

    def most_bytes(self) -> int:
        """Memory when all are there."""
        return self.raw.most_bytes() + self.images.most_bytes()

    def held_bytes(self) -> int:
        """Memory of those that were made."""
        return self.raw.held_bytes() + self.images.held_bytes()
