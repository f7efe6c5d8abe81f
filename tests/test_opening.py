"""Openings: an answer's first tokens, after its thinking, whatever is drafted or cut.

Method: a twin that decides one token at a time on the small hybrid is the oracle, for greedy and
seeded rules, under a monitor and without. Hypothesis draws scripts, openings, drafts and limits for
forced answers on the witness. A rule that guesses past the end of the thinking must be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from decided import PROMPT, Guesses, OneByOne, Pick, best, decoded
from hypothesis import given, settings
from hypothesis import strategies as st
from support import box, engine, tokens

from engine.adapter import Engine
from engine.decode import Rule
from engine.forced import Forced
from engine.monitor import Budget, Monitor
from engine.opening import Opening
from engine.penalties import Penalised, Penalties
from engine.prompt import Prompt
from engine.sampling import Greedy, Sampled, Sampling
from engine.turn import Tokens, turn

END = 7
SIZE = 24
ONE = ((301, 302, 303),)
SEVERAL = ((301, 302, 310, 311), (301, 302, 320, 311, 312), (301, 302, 320, 330))
SAMPLING = Sampling(temperature=0.8, top_p=0.95, seed=4)

Runs = tuple[tuple[int, ...], ...]


def twin(pick: Pick, after_id: int | None, runs: Runs, size: int = SIZE) -> list[int]:
    """One token at a time; `pick` is asked where a run leaves a choice, and nowhere else."""
    model, answer = OneByOne(), list[int]()
    while len(answer) < size:
        start = 0 if after_id is None else len(answer)
        if after_id is not None and after_id in answer:
            start = answer.index(after_id) + 1
        after = answer[start:]
        begun = after_id is None or after_id in answer
        left = [run for run in runs if list(run[: len(after)]) == after and len(run) > len(after)]
        if not begun or not left:
            answer.append(pick(model(answer)))
            continue
        choices = {run[len(after)] for run in left}
        row = model(answer)
        only = torch.tensor([token not in choices for token in range(len(row))])
        masked = row.masked_fill(only, -math.inf)
        answer.append(choices.pop() if len(choices) == 1 else pick(masked))
    return answer


KINDS: dict[str, tuple[Callable[[], Pick], Callable[[int], Rule]]] = {
    "greedy": (lambda: best, Greedy),
    "sampled": (lambda: Sampled(SAMPLING).first, lambda drafts: Sampled(SAMPLING, drafts)),
}
"""A twin's choice, and the rule of so many drafts that must come to the same."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runs", [ONE, SEVERAL, ((301,),), ((301,), (302,), (303,))])
def test_without_a_thinking_the_answer_opens_with_it(runs: Runs, kind: str) -> None:
    pick, rule = KINDS[kind]
    answer = twin(pick(), None, runs)
    assert any(answer[: len(run)] == list(run) for run in runs)
    for drafts in (0, 1, 3):
        assert decoded(Opening(rule(drafts), None, runs), SIZE) == answer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runs", [ONE, SEVERAL])
def test_it_follows_the_end_of_the_thinking(runs: Runs, kind: str) -> None:
    pick, rule = KINDS[kind]
    plain = decoded(rule(0), SIZE)
    # Some token that comes for the first time there ends the thinking.
    at = next(at for at in range(4, SIZE) if plain[at] not in plain[:at])
    answer = twin(pick(), plain[at], runs)
    assert answer[: at + 1] == plain[: at + 1] and answer != plain
    for drafts in (0, 3):
        assert decoded(Opening(rule(drafts), plain[at], runs), SIZE) == answer
    guesses = Guesses(rule(0), plain[: at + 1] + [1] * SIZE, 4, 0)
    assert decoded(Opening(guesses, plain[at], runs), SIZE) == answer
    assert guesses.accepted


@pytest.mark.parametrize("thinking", [0, 1, 5])
@pytest.mark.parametrize("phrase", [(), (11, 12)])
def test_under_a_budget_the_thought_closes_first(thinking: int, phrase: tuple[int, ...]) -> None:
    budget = Budget(thinking, END, phrase)
    for drafts in (0, 3):
        monitor = Monitor(Greedy(drafts), budget)
        answer = decoded(Opening(monitor, END, ONE), SIZE)
        head = [*phrase, END, *ONE[0]]
        assert answer[thinking : thinking + len(head)] == head
        model, expected = OneByOne(), answer[: thinking + len(head)]
        while len(expected) < SIZE:
            expected.append(best(model(expected)))
        assert answer == expected
        assert monitor.read(answer).thinking == thinking + len(phrase) + 1


def test_in_a_turn_with_penalties_outside() -> None:
    """As the server puts them: the opening's tokens count, and can't be banned."""
    banned = Penalties(presence=1.0, bias=((301, -100.0), (320, 50.0)))
    on = box(engine("hybrid-float32"))
    rule = Penalised(Opening(Monitor(Greedy(3), Budget(4, END)), END, SEVERAL), banned)
    events = turn(on, Prompt(PROMPT), rule, limit=SIZE)
    said = [token for event in events if isinstance(event, Tokens) for token in event.ids]
    assert said[4:8] == [END, 301, 302, 320] and said[8] in (311, 330) and len(said) == SIZE


TOKEN = st.integers(0, 9)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], Runs, int | None, int, float, int, int]:
    script = draw(st.lists(TOKEN, min_size=30, max_size=40))
    run = tuple(draw(st.lists(TOKEN, min_size=1, max_size=6)))
    after = draw(st.one_of(st.none(), TOKEN))
    window = draw(st.integers(len(PROMPT) + 2, len(PROMPT) + 40))
    drafts, accepted = draw(st.integers(0, 5)), draw(st.sampled_from((0.0, 0.6, 1.0)))
    return script, (run,), after, drafts, accepted, draw(st.integers(1, 30)), window


def scripted(script: Sequence[int], runs: Runs, after: int | None, limit: int) -> list[int]:
    """A script with the opening put in; the tokens it has of its own go on behind it."""
    (run,) = runs
    at = 0 if after is None else script.index(after) + 1 if after in script else len(script)
    return [*script[:at], *run, *script[at:]][:limit]


def forced(script: Sequence[int], drafts: int, accepted: float) -> Forced:
    output = np.array(script, np.int32)
    return Forced(output, seed="0", vocab=499, drafts=drafts, accepted=accepted)


@given(cases())
@settings(max_examples=2 * settings().max_examples)
def test_a_script_goes_on_behind_it(
    case: tuple[list[int], Runs, int | None, int, float, int, int],
) -> None:
    script, runs, after, drafts, accepted, limit, window = case
    rule = Opening(forced(script, drafts, accepted), after, runs)
    answer = decoded(rule, limit, model="witness", window=window)
    wanted = scripted(script, runs, after, limit)
    # A full window ends the answer early: the last token has no row yet.
    assert answer == wanted[: window - len(PROMPT) + 1]


def test_what_makes_no_opening_is_refused() -> None:
    wrong: list[Runs] = [(), ((),), ((1, 2), (1, 2, 3)), ((1, 2, 3), (1, 3), (1,))]
    for runs in wrong:
        with pytest.raises(AssertionError):
            Opening(Greedy(0), None, runs)
    same = Opening(Greedy(3), END, SEVERAL[::-1])
    assert same.key == Opening(Greedy(0), END, SEVERAL).key != Opening(Greedy(0), END, ONE).key
    assert Opening(Sampled(SAMPLING), END, ONE).key is None


class Unheeding(Opening):
    """Lets guesses run on behind the end of the thinking."""

    def drafts(self, engine: Engine, token: int) -> list[int]:
        if self._waits:
            return self._rule.drafts(engine, token)
        return super().drafts(engine, token)


def test_canary_guesses_past_the_end_of_the_thinking_are_seen() -> None:
    script = [1, 2, 3, END, 4, 5, 6, 8, 9, *tokens(30).tolist()]
    wanted = scripted(script, ONE, END, 20)
    for kind, same in ((Opening, True), (Unheeding, False)):
        answer = decoded(kind(forced(script, 4, 1.0), END, ONE), 20, model="witness")
        assert (answer == wanted) is same


def test_canary_a_rule_that_is_asked_in_vain_is_out_of_step() -> None:
    """A seeded rule that drew a token which was thrown away writes another answer."""
    pick = Sampled(SAMPLING).first
    answer = twin(pick, None, ONE)
    vain = Sampled(SAMPLING)
    vain.first(torch.zeros(499))
    assert decoded(Opening(vain, None, ONE), SIZE) != answer
