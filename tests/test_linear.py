"""Products of rows with a weight, engine.layers.linear: what is widened, and what comes out.

Goal: on a processor without bfloat16 products many rows are multiplied in float32 and rounded once,
few rows and float32 are not touched, and a weight's parts give what the whole gives. Method: the
question about the processor is answered by the tests, and products are compared with float64: a
float32 sum of 80 terms is good to 1e-5 of them, a rounding to bfloat16 to 2^-8 of its value.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine.layers import linear
from engine.layers.linear import WIDENED_ROWS


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal noise in bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(shape).normal_(generator=generator).bfloat16()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without bfloat16 products, and weights that are cut into several parts."""
    monkeypatch.setattr(linear, "multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(linear, "PART_NUMBERS", 80 * 7)


def rounded_once(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether each value is the nearest to the exact one, but for what float32 sums are off by."""
    want = x.double() @ weight.double().t()
    return bool(((got.double() - want).abs() <= want.abs() * 2**-8 + 1e-5).all())


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("out", [1, 6, 7, 8, 50])
def test_many_rows_are_rounded_once_however_the_weight_is_cut(out: int) -> None:
    x, weight = draw(WIDENED_ROWS, 80), draw(out, 80, seed=1)
    got = linear.linear(x, weight)
    assert got.shape == (WIDENED_ROWS, out) and got.dtype is torch.bfloat16
    assert rounded_once(got, x, weight)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("rows, parts", [(WIDENED_ROWS - 1, [50]), (WIDENED_ROWS, [7] * 7 + [1])])
def test_a_weight_is_widened_for_many_rows_in_parts_of_so_many_numbers(
    rows: int, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, product = [], F.linear

    def spied(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        assert (weight.dtype is torch.float32) == (rows >= WIDENED_ROWS)
        read.append(len(weight))
        return product(x, weight)

    monkeypatch.setattr(F, "linear", spied)
    linear.linear(draw(rows, 80), draw(50, 80, seed=1))
    assert read == parts


@pytest.mark.usefixtures("plain")
def test_canary_a_product_that_is_off_by_two_units_is_seen() -> None:
    x, weight = draw(WIDENED_ROWS, 80), draw(50, 80, seed=1)
    assert not rounded_once(linear.linear(x, weight) * (1 + 2**-6), x, weight)


@pytest.mark.usefixtures("plain")
def test_few_rows_and_float32_are_multiplied_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_widened", None)
    few, weight = draw(WIDENED_ROWS - 1, 80), draw(50, 80, seed=1)
    assert torch.equal(linear.linear(few, weight), F.linear(few, weight))
    wide = draw(64, 80).float(), weight.float()
    assert torch.equal(linear.linear(*wide), F.linear(*wide))


def test_a_processor_with_such_products_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(linear, "_widened", None)
    x, weight = draw(64, 80), draw(50, 80, seed=1)
    assert torch.equal(linear.linear(x, weight), F.linear(x, weight))


@pytest.mark.usefixtures("plain")
def test_what_a_row_gives_hangs_on_no_other_rows_values() -> None:
    x, weight = draw(64, 80), draw(50, 80, seed=1)
    other = x.clone()
    other[:, :] = draw(64, 80, seed=2)
    other[17] = x[17]
    assert torch.equal(linear.linear(x, weight)[17], linear.linear(other, weight)[17])
