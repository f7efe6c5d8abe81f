"""The workspace estimate: the model's own figures, raised by what a prefill took beyond them.

Method: a model's line and cap against made true curves, looked at chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from cache.types import Cost
from cache.workspace import Workspace

COST = Cost(1, 1, workspace_floor_bytes=1_000, workspace_row_bytes=2, workspace_cap_bytes=5_000)


def test_the_models_own_figures_come_first() -> None:
    workspace = Workspace(lambda: COST)
    assert [workspace.bytes(n) for n in (0, 1, 1_000, 9_999)] == [0, 1_002, 3_000, 5_000]


def test_less_than_expected_teaches_nothing() -> None:
    workspace = Workspace(lambda: COST)
    assert not workspace.learn(1_000, 2_999)
    assert not workspace.learn(1_000, 3_000)
    assert workspace.learned_bytes == 0


def test_more_than_expected_raises_every_length_and_the_cap() -> None:
    workspace = Workspace(lambda: COST)
    assert workspace.learn(9_999, 5_700)
    assert workspace.bytes(9_999) == 5_700
    assert workspace.bytes(1_000) == 3_700
    workspace.learn(1_000, 3_500)
    assert workspace.learned_bytes == 700


def rising(steps: list[int]) -> Callable[[int], int]:
    """A curve that never falls: the sum of the steps up to a chunk."""
    return lambda chunk: sum(steps[: chunk + 1])


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=20), st.data())
def test_after_one_prefill_none_as_long_exceeds_the_estimate(
    steps: list[int], data: st.DataObject
) -> None:
    """Whatever the true curve is, when every chunk of the one prefill was looked at."""
    true, workspace, grid = rising(steps), Workspace(lambda: COST), 64
    for chunk in range(len(steps)):
        workspace.learn((chunk + 1) * grid, true(chunk))
    chunk = data.draw(st.integers(0, len(steps) - 1))
    assert workspace.bytes((chunk + 1) * grid) >= true(chunk)
    learned = workspace.learned_bytes
    workspace.learn((chunk + 1) * grid, true(chunk))
    assert workspace.learned_bytes == learned


def test_canary_an_estimate_that_is_not_learned_is_exceeded_again() -> None:
    class Deaf(Workspace):
        def learn(self, tokens: int, took_bytes: int) -> bool:
            return False

    for kind, exceeded in ((Workspace, False), (Deaf, True)):
        workspace = kind(lambda: COST)
        workspace.learn(640, 4_000)
        assert (workspace.bytes(640) < 4_000) is exceeded
