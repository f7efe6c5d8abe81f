"""Rows copied aside and written back: any view, any axis, and no room for a copy.

Method: the third architecture's odd views; an allocation that fails.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tokens

from cache.rows import block_spans, try_copy, write_rows
from engine.third import Third


def test_rows_come_back_as_they_were_and_nothing_else_moves() -> None:
    of = Third(64, 256)
    for start in range(0, 256, 64):
        of.prefill(tokens(256, 1)[start : start + 64])
    state = of.cache_state()
    before = [view.tensor.clone() for view in state.views]
    block = try_copy(state, 70, 130)
    assert block is not None and block.rows == 60
    for view in state.views:
        view.rows(60, 140).zero_()
    write_rows(state, block)
    for view, was in zip(state.views, before, strict=True):
        assert torch.equal(view.rows(70, 130), was.narrow(view.axis, 70, 60))
        assert not view.rows(60, 70).any() and not view.rows(130, 140).any()


def test_a_block_is_a_copy() -> None:
    of = Third(64, 128)
    of.prefill(tokens(64))
    block = try_copy(of.cache_state(), 0, 64)
    assert block is not None
    was = [tensor.clone() for tensor in block.tensors]
    of.resume_at(0)
    of.prefill(tokens(64, 9))
    assert all(torch.equal(a, b) for a, b in zip(block.tensors, was, strict=True))


def test_no_room_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Third(64, 128)

    def full(self: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch.Tensor, "clone", full)
    assert try_copy(of.cache_state(), 0, 10) is None


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 70))
def test_spans_cover_without_a_gap_and_end_at_multiples(start: int, stop: int, rows: int) -> None:
    spans, at = list(block_spans(start, stop, rows)), start
    for begin, end in spans:
        assert begin == at < end
        assert end % rows == 0 or end == stop
        assert end - begin <= rows
        at = end
    assert at == max(start, stop) or not spans
