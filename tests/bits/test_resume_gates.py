"""Every resume of the resident prefix against a cold prefill, bit for bit, on every kind of model.

Method: conversations run through the real turn with forced answers; at the end of each prefill the
verifier compares logits, sections and all rows with a cold prefill of the same prompt (for the
witness: with the formula of one). The canaries plant a fault in a copy or in the rows, and the same
verifier must then say no, on every model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from support import CANARIES, GRID, MODELS, box, engine, joined, serve, tokens, verifier

from cache.anchors import Anchor
from cache.types import Gate, Ids
from engine.turn import Box
from replay.verify import Verdict, Verifier


@dataclass(frozen=True)
class Scene:
    """A box with its verifier after one turn of a 5-and-a-bit chunk prompt."""

    on: Box
    check: Verifier
    prompt: Ids
    answer: Ids


def scene(model: str, window: int = 2_048) -> Scene:
    of = engine(model, window=window)
    on, check = box(of), verifier(of)
    prompt, answer = tokens(5 * GRID + 21, 1), tokens(40, 2)
    _, verdict = serve(on, prompt, answer, check=check)
    assert verdict is not None and verdict.ok and verdict.gate is Gate.BITS
    return Scene(on, check, prompt, answer)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("at", [1, GRID, 2 * GRID + 3, 4 * GRID, 5 * GRID, 5 * GRID + 10])
def test_parting_anywhere_in_the_prompt_resumes_at_the_line_below(model: str, at: int) -> None:
    s = scene(model)
    row, verdict = serve(s.on, joined(s.prompt[:at], tokens(150, 3)), tokens(5, 4), check=s.check)
    assert row.cached == at // GRID * GRID
    assert verdict is not None and verdict.gate is Gate.BITS, verdict
    assert verdict.ok, verdict.why


@pytest.mark.parametrize("model", MODELS)
def test_parting_inside_the_answer_resumes_at_the_prompts_last_line(model: str) -> None:
    s = scene(model)
    ids = joined(s.prompt, s.answer[:11], tokens(200, 3))
    row, verdict = serve(s.on, ids, tokens(5, 4), check=s.check)
    assert (row.cached, row.source, row.gate) == (5 * GRID, "grid", "bits")
    assert verdict is not None and verdict.ok and verdict.gate is Gate.BITS, verdict


@pytest.mark.parametrize("model", MODELS)
def test_rows_overwritten_and_computed_again(model: str) -> None:
    """A resumed prompt's rows are right although another conversation wrote over them twice."""
    s = scene(model)
    other = tokens(7 * GRID + 9, 8)
    for _ in range(2):
        for ids in (joined(s.prompt[: 2 * GRID], other), s.prompt):
            _, verdict = serve(s.on, ids, tokens(9, 9), check=s.check)
            assert verdict is not None and verdict.ok, verdict


@pytest.mark.parametrize("model", MODELS)
def test_another_window_and_other_addresses(model: str) -> None:
    """An anchor taken from buffers of one window resumes in an engine with another one."""
    s = scene(model)
    other = s.on.engine.twin(1_024)
    # Junk wherever the resume must not look.
    for view in other.cache_state().views:
        view.tensor.fill_(float("nan") if view.tensor.is_floating_point() else 77)
    for live, copied in zip(
        s.on.engine.cache_state().views, other.cache_state().views, strict=True
    ):
        copied.rows(0, 3 * GRID).copy_(live.rows(0, 3 * GRID))
    moved = box(other)
    moved.stack.resident.exchange(s.on.stack.resident.account.aside(3 * GRID, [3 * GRID]))
    ids = joined(s.prompt[: 3 * GRID + 5], tokens(99, 3))
    row, verdict = serve(moved, ids, tokens(4, 4), check=verifier(other))
    assert row.cached == 3 * GRID
    assert verdict is not None and verdict.ok, verdict


@pytest.mark.parametrize("model", MODELS)
def test_end_resume_is_greedy_and_a_later_parting_is_clean_again(model: str) -> None:
    s = scene(model)
    follow = joined(s.prompt, s.answer, tokens(3 * GRID, 3))
    end = s.on.stack.end
    row, verdict = serve(s.on, follow, tokens(30, 4), check=s.check)
    assert (row.source, row.gate, row.cached) == ("end", "greedy", end)
    # The last token of an answer is forwarded only when a block had it as an accepted draft.
    assert row.cached in (len(s.prompt) + len(s.answer) - 1, len(s.prompt) + len(s.answer))
    assert verdict is not None and verdict.gate is Gate.GREEDY, verdict
    assert verdict.ok, verdict
    # A parting above the taint line resumes at a tainted anchor, one below it at a clean one.
    above = joined(follow[: len(follow) - 5], tokens(20, 5))
    row, verdict = serve(s.on, above, tokens(3, 6), check=s.check)
    assert row.gate == "greedy" and row.source == "grid"
    below = joined(s.prompt[: 4 * GRID + 1], tokens(222, 7))
    row, verdict = serve(s.on, below, tokens(3, 6), check=s.check)
    assert (row.cached, row.gate) == (4 * GRID, "bits")
    assert verdict is not None and verdict.ok and verdict.gate is Gate.BITS, verdict


# canaries: each plants one fault, and the verifier must see it


def _swap(on: Box, line: int, change: Callable[[Anchor, Anchor], tuple[torch.Tensor, ...]]) -> None:
    """Replace the copies at `line` by what `change` makes of them and the anchor before."""
    anchors = on.stack.resident.account.anchors._anchors
    at = next(i for i, anchor in enumerate(anchors) if anchor.tokens == line)
    anchor = anchors[at]
    anchors[at] = Anchor(line, anchor.gate, change(anchor, anchors[at - 1]))


def flip_one_bit(on: Box, line: int) -> None:
    """A bit of one element of the first section: in float32 the lowest that no sum can lose."""

    def change(anchor: Anchor, before: Anchor) -> tuple[torch.Tensor, ...]:
        first = anchor.tensors[0].clone().contiguous()
        first.view(-1).view(torch.uint8)[first.element_size() * (first.numel() // 2) + 1] ^= 1
        return (first, *anchor.tensors[1:])

    _swap(on, line, change)


def state_of_the_line_before(on: Box, line: int) -> None:
    """Every section but the second one is an older line's."""
    _swap(on, line, lambda anchor, before: (before.tensors[0], *anchor.tensors[1:]))


def tail_of_the_line_before(on: Box, line: int) -> None:
    """Only the second section, the tail, is an older line's."""
    _swap(
        on,
        line,
        lambda anchor, before: (anchor.tensors[0], before.tensors[1], *anchor.tensors[2:]),
    )


def rows_one_off(on: Box, line: int) -> None:
    """All rows below the line are their neighbour's."""
    for view in on.engine.cache_state().views:
        view.rows(1, line).copy_(view.rows(0, line - 1).clone())


def one_view_one_off(on: Box, line: int) -> None:
    """The same for the last view alone, which for the hybrid are the draft layer's values."""
    view = on.engine.cache_state().views[-1]
    view.rows(1, line).copy_(view.rows(0, line - 1).clone())


PLANTS = (
    flip_one_bit,
    state_of_the_line_before,
    tail_of_the_line_before,
    rows_one_off,
    one_view_one_off,
)


@pytest.mark.parametrize("model", CANARIES)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_canary_turns_the_bit_gate_red(model: str, plant: Callable[[Box, int], None]) -> None:
    s = scene(model)
    plant(s.on, 4 * GRID)
    # A few tokens: a state forgets, and after a chunk the lowest bit may be rounded away.
    ids = joined(s.prompt[: 4 * GRID + 3], tokens(4, 3))
    row, verdict = serve(s.on, ids, tokens(4, 4), check=s.check)
    assert row.cached == 4 * GRID and row.gate == "bits"
    assert verdict is not None and not verdict.ok


@pytest.mark.parametrize("model", CANARIES)
def test_canary_taint_ignored_turns_the_bit_gate_red(model: str) -> None:
    """An anchor above the taint line that claims the bit gate, and an account that agrees."""

    def resume_above_taint(forget: bool) -> Verdict | None:
        s = scene(model)
        follow = joined(s.prompt, s.answer, tokens(3 * GRID, 3))
        serve(s.on, follow, tokens(6, 4))
        anchors = s.on.stack.resident.account.anchors._anchors
        assert anchors[-1].gate is Gate.GREEDY
        if forget:
            anchors[-1] = Anchor(anchors[-1].tokens, Gate.BITS, anchors[-1].tensors)
            s.on.stack.resident.account.taint = None
        ids = joined(follow[: anchors[-1].tokens + 2], tokens(99, 5))
        # The accounts' own check would see the claim too; here the verifier must.
        return serve(s.on, ids, tokens(3, 6), check=s.check, check_accounts=False)[1]

    honest, forgetful = resume_above_taint(False), resume_above_taint(True)
    assert honest is not None and honest.gate is Gate.GREEDY
    assert forgetful is not None and forgetful.gate is Gate.BITS and not forgetful.ok


@pytest.mark.parametrize("model", CANARIES)
def test_canary_two_conversations_mixed(model: str) -> None:
    """One chunk of rows is another prompt's."""
    s = scene(model)
    twin = s.on.engine.twin(2_048)
    other = tokens(4 * GRID, 9)
    for start in range(0, len(other), GRID):
        twin.prefill(other[start : start + GRID])
    live, strange = s.on.engine.cache_state(), twin.cache_state()
    for view, from_view in zip(live.views, strange.views, strict=True):
        view.rows(GRID, 2 * GRID).copy_(from_view.rows(GRID, 2 * GRID))
    ids = joined(s.prompt[: 4 * GRID + 3], tokens(30, 3))
    _, verdict = serve(s.on, ids, tokens(4, 4), check=s.check)
    assert verdict is not None and not verdict.ok


@pytest.mark.parametrize("model", CANARIES)
def test_canary_resume_inside_a_chunk(model: str) -> None:
    """Why no line is finer than the grid: the state in the middle of a chunk gives other bits."""
    s = scene(model)
    of = s.on.engine
    middle = 4 * GRID + GRID // 2
    ids = joined(s.prompt[: 4 * GRID], tokens(2 * GRID, 3))
    of.resume_at(0)
    for start in range(0, 4 * GRID, GRID):
        of.prefill(ids[start : start + GRID])
    of.prefill(ids[4 * GRID : middle])
    of.prefill(ids[middle : 5 * GRID])
    logits = of.prefill(ids[5 * GRID :])
    assert not s.check.check(ids, logits, Gate.BITS, len(ids)).ok
