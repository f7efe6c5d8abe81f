"""NVFP4 weights as compressed-tensors packs them: four bits a value, a scale for every sixteen

Sources: the E2M1 values of the OCP Microscaling Formats (MX) specification 1.0, section 5.3.3; the
tensors `weight_packed`, `weight_scale` and `weight_global_scale` and the `quantization_config` of
compressed-tensors' format nvfp4-pack-quantized. Scales of activations play no part: rows are
computed in the model's dtype.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.bad import BadCheckpoint

GROUP = 16
"""Values along a row that share a scale."""
FORMAT = "nvfp4-pack-quantized"
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the low three bits of a value mean; the fourth is the sign."""
E4M3_MAX = 448.0
_CHUNK = 1 << 22
"""Values that are float32 at once while a weight is made: 16 MiB of them."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight [out, in]."""

    packed: torch.Tensor
    """[out, in / 2] uint8, two values a byte, the earlier one in the low four bits."""
    scale: torch.Tensor
    """[out, in / 16] float8_e4m3fn."""
    global_scale: torch.Tensor
    """One float32, by which the scales were multiplied: a value is fp4 * (scale / global scale)."""


def dequantise(weight: Packed, dtype: torch.dtype) -> torch.Tensor:
    """[out, in] in `dtype`: products in float32, rounded once."""
    out, half = weight.packed.shape
    made = torch.empty(out, 2 * half, dtype=dtype)
    pairs, whole = _pairs(), weight.global_scale.float().reshape(())
    rows = max(1, _CHUNK // max(1, 2 * half))
    for start in range(0, out, rows):
        stop = min(start + rows, out)
        values = pairs[weight.packed[start:stop].int()].view(stop - start, -1, GROUP)
        scale = weight.scale[start:stop].float() / whole
        made[start:stop] = (values * scale[:, :, None]).flatten(1)
    return made


def quantise(weight: torch.Tensor) -> Packed:
    """The nearest that the format holds, of [out, in] with `in` a multiple of GROUP.

    The global scale puts the largest value at the largest scale, a group's scale its largest value
    at 6; a value halfway between two goes to the one whose last bit is 0.
    """
    out, width = weight.shape
    assert width % GROUP == 0, f"{width} values are no groups of {GROUP}"
    groups = weight.float().view(out, -1, GROUP)
    largest = groups.abs().amax()
    # A weight that is all zeros has no largest value to scale by.
    whole = E4M3_MAX * E2M1[-1] / largest if largest > 0 else torch.ones(())
    scale = (whole * groups.abs().amax(-1) / E2M1[-1]).to(torch.float8_e4m3fn)
    step = (scale.float() / whole)[:, :, None]
    scaled = torch.where(step > 0, groups / step, 0.0)
    codes = _nearest(scaled.abs()) | (scaled < 0).to(torch.uint8) << 3
    low, high = codes.flatten(1).unflatten(1, (-1, 2)).unbind(2)
    return Packed(low | high << 4, scale, whole.float().view(1))


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What config.json says of packed weights."""

    ignored: tuple[str, ...]
    """Modules that are stored plain: names, or patterns behind "re:"."""

    def ignores(self, module: str) -> bool:
        """Whether a module is stored plain."""
        for name in self.ignored:
            if name.startswith("re:"):
                if re.match(name.removeprefix("re:"), module):
                    return True
            elif name == module:
                return True
        return False


def quantisation_of(config: Mapping[str, Any]) -> Quantisation | None:
    """Of a whole config.json; None for plain weights. Raises BadCheckpoint for other formats."""
    text = config.get("text_config")
    parts = (config, text if isinstance(text, Mapping) else {})
    found = next((part["quantization_config"] for part in parts if _has(part)), None)
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise BadCheckpoint("config: quantization_config is no object")
    method, form = found.get("quant_method"), found.get("format")
    if method != "compressed-tensors" or form != FORMAT:
        raise BadCheckpoint(f"config: quantisation {method} {form} is not supported, only {FORMAT}")
    if found.get("transform_config"):
        # Weights that were turned before they were packed, and activations that are to be.
        raise BadCheckpoint("config: transform_config of quantization_config is not supported")
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise BadCheckpoint("config: quantization_config has no config_groups")
    for name, group in groups.items():
        _check_group(name, group)
    return Quantisation(_ignored(found.get("ignore") or []))


def _has(part: Mapping[str, Any]) -> bool:
    return part.get("quantization_config") is not None


def _check_group(name: str, group: Any) -> None:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise BadCheckpoint(f"config: {name} of quantization_config has no weights")
    if group.get("format", FORMAT) not in (FORMAT, None):
        raise BadCheckpoint(f"config: quantisation {group['format']} is not supported")
    wanted = {"num_bits": 4, "type": "float", "group_size": GROUP, "symmetric": True}
    for key, value in wanted.items():
        if weights.get(key, value) != value:
            raise BadCheckpoint(f"config: {name} has {key} {weights[key]}, not {value}")


def _ignored(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadCheckpoint("config: ignore of quantization_config is no list of names")
    for name in names:
        if name.startswith("re:"):
            try:
                re.compile(name.removeprefix("re:"))
            except re.error as error:
                raise BadCheckpoint(f"config: ignore has {name}, no pattern: {error}") from error
    return tuple(names)


def _pairs() -> torch.Tensor:
    """The two values of every byte, [256, 2] float32."""
    values = torch.tensor([*E2M1, *(-value for value in E2M1)])
    codes = torch.arange(256)
    return torch.stack((values[codes & 15], values[codes >> 4]), dim=1)


def _nearest(scaled: torch.Tensor) -> torch.Tensor:
    """Codes 0 to 7, uint8, of values that are not negative."""
    values = torch.tensor(E2M1)
    middles = (values[1:] + values[:-1]) / 2
    low = torch.bucketize(scaled, middles)
    high = torch.bucketize(scaled, middles, right=True)
    return torch.where(low % 2 == 0, low, high).to(torch.uint8)
