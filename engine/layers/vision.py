"""Vision tower: patches through blocks of full attention, merged to rows of the model

Tensors by their published names inside `model.visual.`. One picture at a time and on one thread, so
that what it gives hangs on nothing but the picture: not on pictures beside it, nor on how many
threads would share its sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F

from engine.layers.norm import rounded
from engine.layers.rope import Angles
from engine.pictures.picture import Picture
from engine.vision_config import VisionConfig

EPS = 1e-6
_PIECE = 1 << 12
"""Patches that are floats at once before they are embedded: 25 MB of them."""
Tensors = Mapping[str, torch.Tensor]


class Tower:
    """All layers of the tower. Holds no state that a call changes."""

    def __init__(self, config: VisionConfig, tensors: Tensors, dtype: torch.dtype) -> None:
        self.config = config
        self._dtype = dtype
        self._w = {name: tensor for name, tensor in tensors.items() if name.startswith("merger.")}
        self._embed = tensors["patch_embed.proj.weight"].flatten(1)
        self._embed_bias = tensors["patch_embed.proj.bias"]
        self._learned = tensors["pos_embed.weight"].view(config.side, config.side, config.hidden)
        self._blocks = [
            Block(
                config,
                {
                    n.split(".", 2)[2]: t
                    for n, t in tensors.items()
                    if n.startswith(f"blocks.{at}.")
                },
            )
            for at in range(config.depth)
        ]

    @torch.inference_mode()
    def __call__(self, picture: Picture) -> torch.Tensor:
        """The picture's rows [rows, hidden of the model], in the model's dtype."""
        config, (frames, h, w) = self.config, picture.grid
        assert picture.patches is not None, "the tower needs a picture's patches"
        assert picture.merge == config.merge, (picture.merge, config.merge)
        with one_thread():
            x = self._embedded(picture.patches)
            x = (x.view(frames, h * w, -1) + self._positions(h, w)).flatten(0, 1)
            turn = self._angles(frames, h, w)
            for block in self._blocks:
                x = block(x, turn, frames)
            return self._merged(x)

    def _embedded(self, patches: torch.Tensor) -> torch.Tensor:
        """[n, hidden] of uint8 patches [n, 3 * patch * patch], scaled to [-1, 1]."""
        side = self.config.patch**2
        assert patches.dtype is torch.uint8 and patches.shape[1] == 3 * side, patches.shape
        made = []
        for piece in patches.split(_PIECE):
            piece = piece.to(self._embed.device)
            still = (piece.float() / 127.5 - 1).to(self._dtype).view(-1, 3, 1, side)
            both = still.expand(-1, 3, self.config.temporal, side).flatten(1)
            made.append(F.linear(both, self._embed, self._embed_bias))
        return torch.cat(made)

    def _positions(self, h: int, w: int) -> torch.Tensor:
        """The learned grid stretched over h x w patches, corner on corner, between its points
        linearly; [h * w, hidden] in the order of the patches.
        """
        learned, side = self._learned.float(), self.config.side
        (top, down), (left, right) = (
            [part.to(learned.device) for part in _between(count, side)] for count in (h, w)
        )
        rows = torch.lerp(learned[top], learned[top + 1], down[:, None, None])
        grid = torch.lerp(rows[:, left], rows[:, left + 1], right[:, None])
        return rounded(in_blocks(grid, self.config.merge), self._learned)

    def _angles(self, frames: int, h: int, w: int) -> Angles:
        """Half of a head's angles turn with the patch's height, half with its width."""
        count = self.config.head_dim // 4
        inverse = self.config.rope_theta ** -(torch.arange(count, dtype=torch.float32) / count)
        places = torch.cartesian_prod(torch.arange(h), torch.arange(w)).view(h, w, 2)
        angles = in_blocks(places, self.config.merge).float()[:, :, None] * inverse
        both = angles.flatten(1).repeat(frames, 1).unsqueeze(1)
        device = self._learned.device
        return Angles(both.cos().to(device), both.sin().to(device))

    def _merged(self, x: torch.Tensor) -> torch.Tensor:
        """merge x merge patches side by side, through an MLP of that width."""
        w = self._w
        normed = F.layer_norm(x, x.shape[-1:], w["merger.norm.weight"], w["merger.norm.bias"], EPS)
        wide = normed.view(-1, self.config.merge**2 * x.shape[-1])
        inner = F.gelu(F.linear(wide, w["merger.linear_fc1.weight"], w["merger.linear_fc1.bias"]))
        return F.linear(inner, w["merger.linear_fc2.weight"], w["merger.linear_fc2.bias"])


class Block:
    """Attention within each frame, and an MLP, each behind its norm."""

    def __init__(self, config: VisionConfig, tensors: Tensors) -> None:
        self._w = dict(tensors)
        self._heads = config.heads

    def __call__(self, x: torch.Tensor, turn: Angles, frames: int) -> torch.Tensor:
        """Forward x [frames * patches, hidden]."""
        x = x + self._linear("attn.proj", self._attention(self._normed("norm1", x), turn, frames))
        inner = self._linear("mlp.linear_fc1", self._normed("norm2", x))
        return x + self._linear("mlp.linear_fc2", F.gelu(inner, approximate="tanh"))

    def _attention(self, x: torch.Tensor, turn: Angles, frames: int) -> torch.Tensor:
        q, k, v = self._linear("attn.qkv", x).view(len(x), 3, self._heads, -1).unbind(1)
        q, k = (rounded(turn(side.float()), x) for side in (q, k))
        # Frames are the kernel's batch axis: [frames, heads, patches, channels of a head].
        q, k, v = (side.unflatten(0, (frames, -1)).transpose(1, 2) for side in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).reshape(len(x), -1)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._w[f"{name}.weight"], self._w[f"{name}.bias"])

    def _normed(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self._w[f"{name}.weight"], self._w[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def in_blocks(grid: torch.Tensor, merge: int) -> torch.Tensor:
    """[h, w, channels] as [h * w, channels] in the order of the patches: the merge x merge patches
    of one row of the prompt behind each other.
    """
    h, w, channels = grid.shape
    blocks = grid.view(h // merge, merge, w // merge, merge, channels).transpose(1, 2)
    return blocks.reshape(h * w, channels)


def _between(count: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For `count` places spread over `side` points, ends on ends: the point before, how far on."""
    at = torch.arange(count, dtype=torch.float32) * (side - 1) / max(count - 1, 1)
    before = at.floor().clamp(max=side - 2)
    return before.long(), at - before


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, this thread's products are summed on it alone."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
