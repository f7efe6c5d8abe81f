"""The rows in place: offers, the end anchor, the taint line, and what goes when rows go.

Method: the witness through real turns, on a grid of 64. The state machine over all tiers is in
test_stack_machine.
"""

import pytest
from support import GRID, box, engine, forced, joined, prefill_only, serve, tokens, verifier

from cache.account import Answer
from cache.types import Ask, Gate, Ids
from engine.turn import Box, Chunk, Prompt, turn

PROMPT = 5 * GRID + 21


def after_one_turn(**kwargs: int | bool) -> tuple[Box, Ids, Ids]:
    on, prompt, answer = box(engine("witness"), **kwargs), tokens(PROMPT, 1), tokens(40, 2)
    serve(on, prompt, answer)
    return on, prompt, answer


def test_an_offer_changes_nothing_however_often_it_is_made() -> None:
    on, prompt, answer = after_one_turn()
    resident = on.stack.resident
    account = resident.account
    before = (account.valid, account.taint, on.stack.end, account.anchors.lines)
    ask = Ask(joined(prompt, answer, tokens(9, 3)))
    lines = [on.stack.plan(ask).line for _ in range(3)]
    assert lines[0] == lines[1] == lines[2]
    assert before == (account.valid, account.taint, on.stack.end, account.anchors.lines)


@pytest.mark.parametrize("missing", [0, 1, 7])
def test_the_end_is_offered_only_to_a_prompt_that_goes_past_it(missing: int) -> None:
    """A prompt that ends at the end anchor, or before it, leaves no token to forward there."""
    on, prompt, answer = after_one_turn()
    end = on.stack.end
    assert end is not None
    whole = joined(prompt, answer)[:end]
    row, _ = serve(on, whole[: end - missing], tokens(3, 4))
    assert (row.source, row.cached) == ("grid", 5 * GRID)


def test_one_wrong_token_in_the_answer_loses_the_end() -> None:
    on, prompt, answer = after_one_turn()
    changed = joined(prompt, answer, tokens(9, 3))
    changed[PROMPT + 20] += 1
    row, _ = serve(on, changed, tokens(3, 4))
    assert (row.source, row.cached, row.parted_at) == ("grid", 5 * GRID, PROMPT + 20)


@pytest.mark.parametrize("size", [1, GRID - 1, GRID, GRID + 1, 3 * GRID])
def test_the_same_prompt_again(size: int) -> None:
    """One token at least is forwarded: at an exact multiple the line below the last one serves."""
    of = engine("witness")
    on, prompt = box(of, keeps_end=False), tokens(size)
    for _ in range(3):
        row, verdict = serve(on, prompt, tokens(4, 4), check=verifier(of))
        assert verdict is not None and verdict.ok, verdict
    assert row.cached == (size - 1) // GRID * GRID


def test_a_grid_anchor_beats_an_end_anchor_at_the_same_height() -> None:
    on, prompt = box(engine("witness")), tokens(3 * GRID, 1)
    # One token out, so that the generation ends where the prompt does.
    serve(on, prompt, tokens(1, 2))
    assert on.stack.end == 3 * GRID
    row, _ = serve(on, joined(prompt, tokens(5, 3)), tokens(2, 4))
    assert (row.source, row.gate) == ("grid", "bits")


def test_the_end_anchor_needs_no_new_memory_turn_after_turn() -> None:
    """Its buffers are the last one's, or that one became an anchor within the budget."""
    on, prompt, answer = after_one_turn(anchors=4)
    text, seen = joined(prompt, answer), set()
    for turn_number in range(12):
        account = on.stack.resident.account
        assert account.end is not None
        held = [*account.end.tensors, *(t for anchor in account.anchors for t in anchor.tensors)]
        assert len({tensor.data_ptr() for tensor in held}) == len(held) <= 2 * 5
        seen |= {tensor.data_ptr() for tensor in account.end.tensors}
        text = joined(text, tokens(30, turn_number))
        written = tokens(11, 99 + turn_number)
        serve(on, text, written)
        text = joined(text, written)


def test_an_engine_ahead_of_the_answer_is_cut_back_first() -> None:
    """The last block accepts three drafts, the answer ends after the first of them."""
    on, prompt = box(engine("witness")), tokens(100, 1)
    answer = tokens(6, 2)
    row, _ = serve(on, prompt, answer, accepts=(3, 3))
    assert row.end == "kept"
    # first token; a block of 4 gives four more; the next block has one left to give.
    assert on.stack.end == on.stack.resident.account.valid == 106
    assert on.engine.length == 106
    follow = joined(prompt, answer, tokens(9, 3))
    row, verdict = serve(on, follow, tokens(3, 4), check=verifier(on.engine))
    assert (row.source, row.cached) == ("end", 106)
    assert verdict is not None and verdict.ok, verdict


def test_sections_past_the_answer_keep_no_end() -> None:
    on, prompt, answer = box(engine("witness")), tokens(100, 1), tokens(6, 2)
    resident, of = on.stack.resident, on.engine
    prefill_only(on, prompt)
    of.resume_at(0)
    for start in (0, 64):
        of.prefill(prompt[start : start + 64])
    of.verify(answer)
    of.accept(6)
    of.settle()
    outcome = resident.keep_end(joined(prompt, answer[:3]), Answer(), of)
    assert (outcome.ok, outcome.why) == (False, "absorbed")
    assert on.stack.end is None and resident.account.valid == 103
    resident.check(GRID)


def test_switched_off_no_end_is_kept_and_the_answers_rows_still_explain_themselves() -> None:
    on, prompt, answer = after_one_turn(keeps_end=False)
    row, _ = serve(on, joined(prompt, answer, tokens(9, 3)), tokens(3, 4))
    assert (row.source, row.cached, row.why) == ("grid", 5 * GRID, "grid")
    assert row.end == "off"


def test_a_cancelled_prefill_keeps_its_anchors() -> None:
    of = engine("witness")
    on, prompt = box(of), tokens(9 * GRID, 1)
    events = turn(on, Prompt(prompt), forced(tokens(3)), limit=3)
    for event in events:
        if isinstance(event, Chunk) and event.done == 4 * GRID:
            events.close()
    row = on.journal.rows[-1]
    assert (row.finish, row.forwarded, row.output) == ("cancelled", 4 * GRID, 0)
    assert on.stack.resident.account.anchors.lines == [GRID, 2 * GRID, 3 * GRID, 4 * GRID]
    row, verdict = serve(on, prompt, tokens(3, 2), check=verifier(of))
    assert (row.cached, row.gate) == (4 * GRID, "bits")
    assert verdict is not None and verdict.ok, verdict


def test_taint_is_the_lowest_row_a_block_wrote() -> None:
    on, prompt, answer = after_one_turn()
    assert on.stack.taint == PROMPT
    follow = joined(prompt, answer, tokens(4 * GRID, 3))
    serve(on, follow, tokens(9, 4))
    assert on.stack.taint == PROMPT
    assert on.stack.resident.account.gate(5 * GRID) is Gate.BITS
    assert on.stack.resident.account.gate(6 * GRID) is Gate.GREEDY
    serve(on, joined(prompt[: 3 * GRID + 5], tokens(9, 5)), tokens(9, 4))
    assert on.stack.taint == 3 * GRID + 14


def test_a_failed_forward_leaves_nothing_to_resume_from() -> None:
    on, prompt, _ = after_one_turn()
    of = on.engine

    def broken(ids: Ids) -> None:
        raise RuntimeError("device lost")

    chunk, of._chunk = of._chunk, broken  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="device lost"):
        serve(on, joined(prompt[: 2 * GRID], tokens(99, 3)), tokens(3))
    of._chunk = chunk  # type: ignore[method-assign]
    assert on.journal.rows[-1].finish == "failed"
    assert on.stack.resident.account.valid == 0
    row, verdict = serve(on, prompt, tokens(3), check=verifier(of))
    assert row.source == "cold" and verdict is not None and verdict.ok
