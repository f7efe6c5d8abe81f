"""What an anchor is worth: the formula against sums over every position, and who goes first.

Method: a naive twin adds up, position by position, what each parting would read again with and
without a line, from the densities as the module's docstring writes them; choices must agree on
small random sequences. Canaries: a rule blind to the layout, and one that forgets a density.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from cache import anchors
from cache.anchors import AnchorConfig, victim
from cache.worth import RULES, Layout, Partings, costs, spans

STEPS = 64
"""Points at which a density is looked at within a row."""


@cache
def masses(layout: Layout, partings: Partings) -> npt.NDArray[np.float64]:
    """Probability of a parting in each row [x, x + 1), summed from the densities; shape (stop,)."""
    p, h, s = layout.prompt, layout.system, layout.stop
    x = (np.arange(s * STEPS) + 0.5) / STEPS
    parts = [
        (partings.answer, np.where(x >= p, 1 / (np.abs(x - p) + partings.answer_knee), 0)),
        (partings.before, np.where(x < p, 1 / (np.abs(p - x) + partings.before_knee), 0)),
        (partings.head, np.where(x < (h or s), 1.0, 0.0)),
        (partings.whole, np.ones_like(x)),
    ]
    total = sum(weight * density / density.sum() for weight, density in parts)
    rows = np.asarray(total).reshape(s, STEPS).sum(1)
    rows[h] += partings.border
    return rows


def reread(lines: Sequence[int], layout: Layout, partings: Partings) -> float:
    """Expected tokens read again with these lines: every position in turn."""
    mass = masses(layout, partings)
    total = 0.0
    for x in range(layout.stop):
        best = max((line for line in lines if line <= x), default=0)
        total += mass[x] * (x - best)
    return total


def naive_costs(lines: Sequence[int], layout: Layout, partings: Partings) -> list[float]:
    """What each line's loss costs, from the sums with and without it."""
    whole = reread(lines, layout, partings)
    return [
        reread([line for line in lines if line != gone], layout, partings) - whole for gone in lines
    ]


def cases(count: int) -> list[tuple[list[int], Layout, Partings]]:
    """Small sequences with a head, a prompt, an answer and some lines."""
    rng = np.random.default_rng(7)
    made = []
    for _ in range(count):
        stop = int(rng.integers(60, 240))
        prompt = int(rng.integers(30, stop))
        layout = Layout(int(rng.integers(0, prompt)), prompt, stop)
        weights = rng.dirichlet([2, 1, 1, 1, 1])[1:].tolist()
        partings = Partings(*weights[:3], *rng.uniform(1, 40, 2).tolist(), border=weights[3])
        lines = sorted(int(a) for a in rng.choice(np.arange(1, stop + 1), 9, replace=False))
        made.append((lines, layout, partings))
    return made


def agrees(lines: list[int], layout: Layout, partings: Partings) -> None:
    """The choice is the naive twin's, up to its sums' error."""
    config = AnchorConfig(newest_kept=2, partings=partings)
    naive = naive_costs(lines, layout, partings)
    gone = victim(lines, layout, config)
    assert gone is not None
    least = min(naive[:-2])
    assert naive[lines.index(gone)] <= least * 1.001 + 1e-6, (gone, naive)


@pytest.mark.parametrize("case", cases(40))
def test_the_formula_is_the_sum_over_positions(
    case: tuple[list[int], Layout, Partings],
) -> None:
    lines, layout, partings = case
    assert costs(lines, layout, partings) == pytest.approx(
        naive_costs(lines, layout, partings), rel=2e-3, abs=1e-6
    )
    agrees(lines, layout, partings)


def test_a_chance_grows_from_nothing_to_one() -> None:
    for _, layout, partings in cases(30):
        below = [partings.below(x, layout) for x in range(layout.stop + 2)]
        assert below[0] == pytest.approx(0, abs=1e-12) and below[-1] == 1.0
        assert all(a <= b + 1e-12 for a, b in pairwise(below))


def test_a_prompt_still_being_read_has_its_partings_ahead() -> None:
    """The rows end below the prompt's end: what lies before it counts as far from the end."""
    partings = Partings()
    layout = Layout(system=4_000, prompt=60_000, stop=20_000)
    assert partings.below(20_000, layout) < 0.3
    assert partings.below(60_000, layout) == 1.0
    assert Partings().below(1, Layout()) == 1.0


def test_the_prompts_end_outlives_lines_far_before_it() -> None:
    """An anchor at the prompt's end serves every parting inside the answer."""
    layout = Layout(system=12_000, prompt=60_100, stop=64_000)
    newest = [61_000, 62_000, 63_000, 64_000]
    lines = [12_288, 30_720, 40_960, 50_176, 60_100, *newest]
    gone = []
    for _ in range(3):
        worst = victim(lines, layout, AnchorConfig())
        assert worst is not None
        lines.remove(worst)
        gone.append(worst)
    assert 60_100 in lines and set(gone) < {12_288, 30_720, 40_960, 50_176}


def test_even_spacing_leaves_the_shortest_gap() -> None:
    assert spans([10, 12, 20, 40])[:3] == [12, 10, 28]
    config = AnchorConfig(rule="even", newest_kept=1)
    assert victim([10, 12, 20, 40], Layout(), config) == 12


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_gives_up_the_newest(rule: anchors.Rule) -> None:
    for lines, layout, partings in cases(20):
        config = AnchorConfig(newest_kept=4, rule=rule, partings=partings, head_step=8)
        left = list(lines)
        while (gone := victim(left, layout, config)) is not None:
            assert gone in left[:-4]
            left.remove(gone)
        assert left == (lines if rule == "every" else lines[-4:])


# canaries


def test_canary_a_rule_blind_to_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        anchors, "costs", lambda lines, layout, p: costs(lines, Layout(stop=layout.stop), p)
    )
    with pytest.raises(AssertionError):
        for case in cases(40):
            agrees(*case)


@pytest.mark.parametrize("part", ["before", "head", "whole"])
def test_canary_a_density_forgotten(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        anchors, "costs", lambda lines, layout, p: costs(lines, layout, replace(p, **{part: 0.0}))
    )
    with pytest.raises(AssertionError):
        for case in cases(40):
            agrees(*case)
