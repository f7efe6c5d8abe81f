"""The verifiers: what they compare under which gate. Their canaries are in bits/test_resume_gates.

Method: a cold prefill must pass both gates; a difference must be named by what differs. The tests'
own verifier, which prefills a prompt cold once, is held to the same when it has it again.
"""

import math

import flashed
import pytest
import torch
from support import GRID, MODELS, engine, tokens, verifier

from cache.types import Gate, Ids
from engine.adapter import Engine
from replay.verify import ColdVerifier


def prefilled(model: str, ids: Ids) -> tuple[Engine, torch.Tensor]:
    of, logits = engine(model), torch.empty(0)
    for start in range(0, len(ids), GRID):
        logits = of.prefill(ids[start : start + GRID])
    return of, logits


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gate", list(Gate))
def test_a_cold_prefill_passes(model: str, gate: Gate) -> None:
    ids = tokens(3 * GRID + 5)
    of, logits = prefilled(model, ids)
    verdict = verifier(of).check(ids, logits, gate, 2 * GRID)
    assert verdict.ok and verdict.gate is gate, verdict


@pytest.mark.parametrize("model", ["hybrid-float32", "third"])
def test_what_differs_is_named(model: str) -> None:
    ids = tokens(3 * GRID + 5)
    of, logits = prefilled(model, ids)
    check = ColdVerifier(of)
    assert check.check(ids, logits + 1, Gate.BITS, 0).why == "logits differ"
    state = of.cache_state()
    section, view = state.sections[1], state.views[1]
    section.tensor.view(-1)[0] += 1
    assert check.check(ids, logits, Gate.BITS, 0).why == f"section {section.name} differs"
    section.tensor.view(-1)[0] -= 1
    row = view.rows(2 * GRID, 2 * GRID + 1)
    row += 1
    assert check.check(ids, logits, Gate.BITS, 0).why == f"rows of {view.name} differ"
    # Above the taint line's chunk a row may differ.
    assert check.check(ids, logits, Gate.GREEDY, 3 * GRID - 1).ok
    assert not check.check(ids, logits, Gate.GREEDY, 3 * GRID).ok


def test_the_greedy_gate_still_sees_wrong_logits() -> None:
    ids = tokens(GRID)
    of, logits = prefilled("hybrid-float32", ids)
    logits = logits.clone()
    logits[7] += 0.5
    assert "logits off by 0.5" in ColdVerifier(of).check(ids, logits, Gate.GREEDY, 0).why


@pytest.mark.parametrize(
    "shape, count, off, told",
    [
        ("bfloat16", GRID, 0.5, True),
        ("bfloat16", 40, 0.5, False),
        ("bfloat16", GRID, math.nan, False),
        ("tiny", GRID, 0.5, False),
    ],
)
def test_what_a_near_tie_can_do_is_told_where_it_can(
    shape: str, count: int, off: float, told: bool
) -> None:
    """A query of the tiny shape attends 40 rows; past them bfloat16 may choose others."""
    of, ids = flashed.engine(shape, grid=GRID), tokens(count)
    logits = of.prefill(ids).clone()
    assert ColdVerifier(of).check(ids, logits, Gate.GREEDY, 0).ok
    logits[7] += off
    why = ColdVerifier(of).check(ids, logits, Gate.GREEDY, 0).why
    assert why.startswith("logits off by") and ("--dtype float32" in why) == told, why
    # Bits are bits in any dtype.
    assert ColdVerifier(of).check(ids, logits, Gate.BITS, 0).why == "logits differ"


def test_one_twin_serves_prompts_of_all_lengths() -> None:
    of, _ = prefilled("hybrid-float32", tokens(GRID))
    check = ColdVerifier(of)
    for size in (30, 300, 7, 1_500):
        ids = tokens(size, size)
        of.resume_at(0)
        logits = torch.empty(0)
        for start in range(0, size, GRID):
            logits = of.prefill(ids[start : start + GRID])
        assert check.check(ids, logits, Gate.BITS, size).ok


@pytest.mark.parametrize("model", MODELS[1:])
def test_a_prompt_that_was_prefilled_cold_before_is_held_to_all_of_it(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tokens(2 * GRID + 9, 21)
    of, logits = prefilled(model, ids)
    assert verifier(of).check(ids, logits, Gate.BITS, 0).ok
    of, logits = prefilled(model, ids)
    check = verifier(of)
    with monkeypatch.context() as patch:
        patch.setattr(ColdVerifier, "_prefilled", None)
        assert check.check(ids, logits, Gate.BITS, 0).ok, "by digests alone"
        assert check.check(ids, logits + 1e-4, Gate.GREEDY, 2 * GRID).ok
    assert check.check(ids, logits + 1, Gate.BITS, 0).why == "logits differ"
    assert "off by 1" in check.check(ids, logits + 1, Gate.GREEDY, 0).why
    state = of.cache_state()
    spoilt = {f"section {s.name}": s.tensor for s in state.sections}
    spoilt |= {f"rows of {v.name}": v.rows(GRID + 7, GRID + 8) for v in state.views}
    for what, tensor in spoilt.items():
        was = tensor.clone()
        tensor += 1
        assert check.check(ids, logits, Gate.BITS, 0).why.startswith(f"{what} differ")
        if what.startswith("rows"):
            assert not check.check(ids, logits, Gate.GREEDY, 2 * GRID).ok
            assert check.check(ids, logits, Gate.GREEDY, 2 * GRID - 1).ok
        tensor.copy_(was)
    assert check.check(ids, logits, Gate.BITS, 0).ok
