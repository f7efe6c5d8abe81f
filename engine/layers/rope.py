"""Rotary positions on the leading channels of a head, from a table over the window."""

from __future__ import annotations

import torch


class Angles:
    """Cosines and sines of n rows, each [n, 1, half], in the model's dtype."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self._cos, self._sin = cos, sin
        self._half = cos.shape[-1]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate x, shape [n, heads, head_dim]: channel i of the first half with i of the second.

        Channels past the two halves stay.
        """
        half, cos, sin = self._half, self._cos, self._sin
        first, second, rest = torch.split_with_sizes(x, (half, half, x.shape[-1] - 2 * half), -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)

    def last(self) -> Angles:
        """Those of the last row."""
        return Angles(self._cos[-1:], self._sin[-1:])


class Rope:
    """Positions [0, window), for rotary / 2 angles.

    A row of text stands at one position. A row of a picture stands at three, in time, height and
    width, and each angle turns with one of them, interleaved as in the Qwen VL family: `section`
    says how many turn with each, so that near angles see all three.
    """

    def __init__(
        self,
        rotary: int,
        theta: float,
        window: int,
        dtype: torch.dtype,
        section: tuple[int, int, int] = (11, 11, 10),
        device: torch.device | str = "cpu",
    ) -> None:
        # Made on the CPU wherever they go: so every device turns by the same angles.
        steps = torch.arange(0, rotary, 2, dtype=torch.float32, device="cpu")
        inverse = theta ** -(steps / rotary)
        # The angle is a float32 product, as in the published implementation: past 2^16 tokens a
        # better one would be another model.
        rows = torch.arange(window, dtype=torch.float32, device="cpu")[:, None, None]
        angles = rows * inverse
        self._cos = angles.cos().to(dtype).to(device)
        self._sin = angles.sin().to(dtype).to(device)
        self._angle = torch.arange(rotary // 2, device=device)
        self._axis = torch.zeros(rotary // 2, dtype=torch.int64, device=device)
        for axis in (1, 2):
            self._axis[axis : 3 * section[axis] : 3] = axis
        self.device = self._cos.device

    def rows(self, start: int, stop: int) -> Angles:
        """Text at positions [start, stop): parts of the tables, nothing is computed."""
        return Angles(self._cos[start:stop], self._sin[start:stop])

    def at(self, positions: torch.Tensor) -> Angles:
        """Rows at positions int64 [n, 3] in time, height and width, on the tables' device.

        Where all three are equal these are the values of `rows`.
        """
        places = positions[:, self._axis], 0, self._angle
        return Angles(self._cos[places].unsqueeze(1), self._sin[places].unsqueeze(1))
