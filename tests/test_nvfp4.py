"""NVFP4: four bits a value against a slow reader, and what a quantiser may round

Goal: packed weights come back as the format says, and no other format is taken for it. Method: a
dequantiser written here value by value from the format's bits; every byte, every scale, and random
weights that were packed. compressed-tensors itself is not installed here, so its own packing is not
compared; the format's facts are in engine.checkpoint.nvfp4. The canaries swap the two halves of a
byte, leave its signs unread, multiply by the global scale, and take the scale of the group before.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.bad import BadCheckpoint
from engine.checkpoint import nvfp4
from engine.checkpoint.nvfp4 import E2M1, GROUP, Packed, dequantise, quantisation_of, quantise


def fp4(code: int) -> float:
    """A sign, two bits of exponent with bias 1, one bit of mantissa."""
    exponent, mantissa = code >> 1 & 3, code & 1
    value = mantissa * 0.5 if exponent == 0 else (1 + mantissa * 0.5) * 2.0 ** (exponent - 1)
    return -value if code & 8 else value


def fp8(code: int) -> float:
    """A sign, four bits of exponent with bias 7, three bits of mantissa; no infinities."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    value = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if code & 128 else value


def slow(weight: Packed) -> torch.Tensor:
    """[out, in] in float64, value by value."""
    whole = float(weight.global_scale)
    scales = weight.scale.view(torch.uint8)
    rows = []
    for row, bytes_of in enumerate(weight.packed.tolist()):
        codes = [code for byte in bytes_of for code in (byte & 15, byte >> 4)]
        rows.append(
            [
                fp4(code) * (fp8(int(scales[row, at // GROUP])) / whole)
                for at, code in enumerate(codes)
            ]
        )
    return torch.tensor(rows, dtype=torch.float64)


def packed_of(*, seed: int = 0, out: int = 48, width: int = 64) -> Packed:
    """Random bytes and scales: most of them no quantiser would write."""
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (out, width // 2), generator=generator, dtype=torch.uint8)
    scale = torch.randint(0, 127, (out, width // GROUP), generator=generator, dtype=torch.uint8)
    return Packed(packed, scale.view(torch.float8_e4m3fn), torch.tensor([37.5]))


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    """Both the same but for the rounding of one product and one quotient in float32."""
    torch.testing.assert_close(got.double(), want, rtol=3e-7, atol=0.0)


def test_the_values_of_four_bits() -> None:
    assert tuple(fp4(code) for code in range(8)) == E2M1
    assert fp8(0x7E) == nvfp4.E4M3_MAX == torch.finfo(torch.float8_e4m3fn).max


@pytest.mark.parametrize("seed", range(3))
def test_is_the_slow_reader(seed: int) -> None:
    weight = packed_of(seed=seed)
    near(dequantise(weight, torch.float32), slow(weight))


def test_every_byte_and_every_scale() -> None:
    packed = torch.arange(256, dtype=torch.uint8).repeat(127, 1)
    scale = torch.arange(127, dtype=torch.uint8)[:, None].repeat(1, 32).view(torch.float8_e4m3fn)
    weight = Packed(packed, scale, torch.tensor([2.0]))
    near(dequantise(weight, torch.float32), slow(weight))


def test_a_large_weight_is_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = packed_of(out=13)
    whole = dequantise(weight, torch.bfloat16)
    taken, pairs = [], nvfp4._pairs()

    class Spied:
        def __getitem__(self, codes: torch.Tensor) -> torch.Tensor:
            taken.append(2 * codes.numel())
            return pairs[codes]

    monkeypatch.setattr(nvfp4, "_CHUNK", 200)
    monkeypatch.setattr(nvfp4, "_pairs", Spied)
    assert torch.equal(dequantise(weight, torch.bfloat16), whole)
    assert sum(taken) == whole.numel() and max(taken) <= 200
    assert torch.equal(whole, dequantise(weight, torch.float32).bfloat16()), "rounded once"


def test_a_quantiser_takes_the_nearest() -> None:
    weight = torch.randn(32, 128, generator=torch.Generator().manual_seed(4))
    made = quantise(weight)
    assert (made.packed.shape, made.scale.shape) == ((32, 64), (32, 8))
    got, want = dequantise(made, torch.float32), weight
    step = (made.scale.float() / made.global_scale).repeat_interleave(GROUP, 1)
    values = torch.tensor([*E2M1, *(-v for v in E2M1)])
    nearest = (step[..., None] * values - want[..., None]).abs().amin(-1)
    torch.testing.assert_close((got - want).abs(), nearest, atol=1e-6, rtol=0.0)
    # Half of the widest gap, 4 to 6, and what a scale loses by its own three bits.
    largest = want.view(32, -1, GROUP).abs().amax(-1).repeat_interleave(GROUP, 1)
    assert ((got - want).abs() <= largest / 6 * (1 + 1 / 16) + largest / 16).all()


def test_halves_go_to_the_even_code() -> None:
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2)
    signs = torch.tensor([1.0] * 8 + [-1.0] * 8)
    made = quantise((halves * signs)[None])
    got = dequantise(made, torch.float32)[0]
    want = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0] * 2) * signs
    torch.testing.assert_close(got, want, atol=1e-6, rtol=0.0)


def test_what_was_packed_once_is_packed_the_same_again() -> None:
    weight = torch.randn(32, 128, generator=torch.Generator().manual_seed(4))
    once = dequantise(quantise(weight), torch.float32)
    assert torch.equal(dequantise(quantise(once), torch.float32), once)
    zeros = quantise(torch.zeros(2, GROUP))
    assert not dequantise(zeros, torch.float32).any()


def multiplied(weight: Packed) -> Packed:
    """By the global scale instead of divided by it."""
    return replace(weight, global_scale=1 / weight.global_scale)


def late(weight: Packed) -> Packed:
    """The scale of the group before."""
    scale = weight.scale.view(torch.uint8).roll(1, 1)
    return replace(weight, scale=scale.view(torch.float8_e4m3fn))


def halves(pairs: torch.Tensor) -> torch.Tensor:
    """The high four bits first."""
    return pairs.flip(1)


def unsigned(pairs: torch.Tensor) -> torch.Tensor:
    """The sign bit unread."""
    return pairs.abs()


@pytest.mark.parametrize("plant", [halves, unsigned])
def test_canary_bits_read_wrong(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvfp4, "_pairs", lambda right=nvfp4._pairs: plant(right()))
    with pytest.raises(AssertionError):
        near(dequantise(packed_of(), torch.float32), slow(packed_of()))


@pytest.mark.parametrize("wrong", [multiplied, late])
def test_canary_scales_read_wrong(wrong: Any) -> None:
    with pytest.raises(AssertionError):
        near(dequantise(wrong(packed_of()), torch.float32), slow(packed_of()))


# config.json

GOOD: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "float", "group_size": 16, "symmetric": True},
            "input_activations": {"num_bits": 4, "dynamic": "local"},
        }
    },
    "ignore": ["lm_head", "re:.*linear_attn.in_proj_(a|b)$", "re:mtp.*"],
}


def test_what_is_ignored() -> None:
    for config in (
        {"quantization_config": GOOD},
        {"text_config": {"quantization_config": GOOD}},
    ):
        found = quantisation_of(config)
        assert found is not None
        assert found.ignores("lm_head") and found.ignores("mtp.fc")
        assert found.ignores("model.layers.0.linear_attn.in_proj_a")
        assert not found.ignores("model.layers.0.linear_attn.in_proj_qkv")
        assert not found.ignores("model.lm_head")
        assert not found.ignores("model.mtp.fc"), "a pattern begins where the name does"
    assert quantisation_of({"quantization_config": GOOD | {"transform_config": {}}}) is not None
    assert quantisation_of({}) is None and quantisation_of({"quantization_config": None}) is None


def group(**changes: Any) -> dict[str, Any]:
    weights = GOOD["config_groups"]["group_0"]["weights"] | changes
    return {"config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    "change, says",
    [
        ({"quant_method": "fp8", "format": None}, "quantisation fp8 None is not supported"),
        ({"quant_method": "gptq"}, "quantisation gptq"),
        ({"format": "float-quantized"}, "float-quantized is not supported"),
        ({"format": "mixed-precision"}, "mixed-precision"),
        ({"config_groups": {}}, "no config_groups"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
        ({"config_groups": {"group_0": {"weights": None}}}, "group_0 .* has no weights"),
        ({"config_groups": {"group_0": {"weights": {}, "format": "int"}}}, "quantisation int"),
        (group(num_bits=8), "num_bits 8, not 4"),
        (group(group_size=32), "group_size 32, not 16"),
        (group(type="int"), "type int, not float"),
        (group(symmetric=False), "symmetric False, not True"),
        ({"ignore": "lm_head"}, "no list of names"),
        ({"ignore": ["re:("]}, "re:.*no pattern"),
    ],
)
def test_other_formats_are_refused_in_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadCheckpoint, match=says) as caught:
        quantisation_of({"quantization_config": GOOD | change})
    assert "\n" not in str(caught.value)
    with pytest.raises(BadCheckpoint, match="no object"):
        quantisation_of({"quantization_config": "nvfp4"})
