"""The values the tiers speak: prefixes are compared element by element.

Method: hypothesis against the naive loop; fixed cases for the edges.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cache.types import Cost, Generation, Met, View, common_prefix

ids = st.lists(st.integers(0, 3), max_size=40).map(lambda x: np.array(x, np.int32))


@given(ids, ids)
def test_common_prefix_is_the_naive_one(a: np.ndarray, b: np.ndarray) -> None:
    naive = 0
    while naive < min(len(a), len(b)) and a[naive] == b[naive]:
        naive += 1
    assert common_prefix(a, b) == naive


@pytest.mark.parametrize("at", [0, 1, 4_095, 4_096, 4_097, 20_480, 20_481, 99_999])
def test_common_prefix_finds_a_parting_in_any_window(at: int) -> None:
    a = np.arange(100_000, dtype=np.int32)
    b = a.copy()
    b[at] = -1
    assert common_prefix(a, b) == at


def test_one_token_is_always_left_to_forward() -> None:
    served = np.arange(7, dtype=np.int32)
    assert Met(7, 7, served).limit == 6
    assert Met(4, 4, served).limit == 4


def test_a_generation_holds_its_parts() -> None:
    Generation(10, 12, 20, ((12, 3), (19, 1)))
    for bad in ((10, 9, 20, ()), (10, 12, 11, ()), (10, 12, 20, ((19, 2),)), (0, 1, 2, ())):
        with pytest.raises(AssertionError):
            Generation(*bad)  # type: ignore[arg-type]


def test_a_views_rows_are_the_buffer_itself() -> None:
    view = View("x", torch.zeros(2, 5, 3), 1)
    view.rows(1, 3).fill_(1)
    assert view.rows(1, 3).shape == (2, 2, 3)
    assert view.tensor.sum() == 12


def test_workspace_grows_to_its_cap() -> None:
    cost = Cost(1, 1, workspace_floor_bytes=100, workspace_row_bytes=2, workspace_cap_bytes=150)
    assert [cost.workspace_bytes(n) for n in (0, 10, 1_000)] == [100, 120, 150]
    assert Cost(1, 1, workspace_row_bytes=2).workspace_bytes(1_000) == 2_000
