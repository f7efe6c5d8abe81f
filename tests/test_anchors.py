"""Anchors under a budget: which stay, which go, and that a copy is a copy.

Method: the pure rules on the seed's figures, then properties of any sequence of takes and cuts
under every rule. Canary: a rule that gives up one of the newest.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cache import anchors as module
from cache.anchors import AnchorConfig, Anchors, Room, copy_sections, victim, write_sections
from cache.types import CacheState, Gate, Section
from cache.worth import RULES, Layout, Rule

BOARD_ANCHOR = 48 * 48 * 128 * 128 * 4 + 48 * 10_240 * 3 * 2
"""Bytes of the 27B's states and conv tails."""


def layout(stop: int) -> Layout:
    """A prompt of nine tenths of the rows, with a small head."""
    return Layout(stop // 20, stop * 9 // 10, stop)


def state(value: int = 0) -> CacheState:
    return CacheState((Section("s", torch.full((2,), value)),), ())


def test_the_seeds_budget_holds_17_anchors_of_the_27b() -> None:
    assert BOARD_ANCHOR == 153_944_064
    anchors = Anchors(AnchorConfig())
    for line in range(1_024, 100 * 1_024, 1_024):
        anchors.take(line, Gate.BITS, state(), Room(BOARD_ANCHOR, layout(line)))
    assert len(anchors) == 17


def test_newest_four_and_the_head_lines_outlive_the_others() -> None:
    anchors = Anchors(AnchorConfig(rule="heads"))
    for line in range(1_024, 101 * 1_024, 1_024):
        anchors.take(line, Gate.BITS, state(), Room(BOARD_ANCHOR, layout(line)))
    head = list(range(4_096, 32_769, 4_096))
    assert anchors.lines[:8] == head
    assert anchors.lines[-4:] == [97 * 1_024, 98 * 1_024, 99 * 1_024, 100 * 1_024]


def test_the_newest_never_go_even_over_the_budget() -> None:
    anchors = Anchors(AnchorConfig(budget_bytes=0))
    for line in range(1, 10):
        anchors.take(line, Gate.BITS, state(), Room(1, layout(line)))
    assert anchors.lines == [6, 7, 8, 9]


def test_head_lines_go_last_and_the_lowest_of_them_at_the_very_end() -> None:
    config = AnchorConfig(newest_kept=1, head_step=4, head_limit=8, rule="heads")
    lines, gone = [4, 5, 8, 12, 13], []
    while (at := victim(lines, Layout(), config)) is not None:
        gone.append(at)
        lines.remove(at)
    assert gone == [5, 12, 8, 4]
    assert lines == [13]


def test_a_copy_survives_the_engine_and_comes_back() -> None:
    live = state(3)
    copied = copy_sections(live)
    live.sections[0].tensor.fill_(9)
    assert copied[0].tolist() == [3, 3]
    write_sections(live, copied)
    assert live.sections[0].tensor.tolist() == [3, 3]
    # A second engine write must not reach the copy.
    live.sections[0].tensor.fill_(4)
    assert copied[0].tolist() == [3, 3]


def test_another_models_copy_is_refused() -> None:
    with pytest.raises(AssertionError, match="another model"):
        write_sections(state(), ())
    with pytest.raises(AssertionError, match="s"):
        write_sections(state(), (torch.zeros(3),))


@given(
    st.lists(st.one_of(st.integers(1, 6), st.floats(0, 1)), max_size=60),
    st.integers(0, 12),
    st.integers(1, 4),
    st.sampled_from(RULES),
)
def test_any_takes_and_cuts_keep_the_account_right(
    steps: list[float], room: int, newest: int, rule: Rule
) -> None:
    takes_and_cuts(steps, room, newest, rule)


def takes_and_cuts(steps: list[float], room: int, newest: int, rule: Rule) -> None:
    """Checked after every step."""
    config = AnchorConfig(room, newest, head_step=4, head_limit=16, rule=rule)
    anchors, at, taken, since = Anchors(config), 0, list[int](), list[int]()
    for step in steps:
        if isinstance(step, int):
            at += step
            anchors.take(at, Gate.BITS, state(), Room(1, layout(at)))
            taken.append(at)
            since.append(at)
        else:
            at = int(at * step)
            anchors.cut(at)
            taken = [line for line in taken if line <= at]
            # What eviction took before a cut does not come back by it.
            at, since = taken[-1] if taken else 0, []
        lines = anchors.lines
        assert rule == "every" or len(lines) <= max(room, newest)
        assert rule != "every" or lines == taken
        assert set(since[-newest:]) <= set(lines)
        assert set(lines) <= set(taken)
        assert lines == sorted(lines)
        if isinstance(step, int):
            assert at in lines
        best = anchors.best(at)
        assert (best.tokens if best else None) == (max(lines) if lines else None)


def test_every_keeps_all_whatever_the_budget() -> None:
    anchors = Anchors(AnchorConfig(budget_bytes=0, rule="every"))
    for line in range(1, 40):
        anchors.take(line, Gate.BITS, state(), Room(1, layout(line)))
    assert len(anchors) == 39


def test_canary_a_rule_that_gives_up_one_of_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "victim", lambda lines, layout, config: lines[-2])
    with pytest.raises(AssertionError):
        takes_and_cuts([1, 1, 1, 1, 1, 1], room=4, newest=3, rule="worth")
