"""The reasoning budget: the tokens of a naive twin, whatever is drafted, cut short or closed early.

Method: a twin that decides one token at a time is the oracle. Hypothesis draws scripts, budgets,
phrases, drafts, limits and stops for forced answers on the witness; greedy and sampled ones run on
the small hybrid. A monitor that overruns its budget by what was drafted must be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import box, engine, joined, judge, tokens, verifier

from cache.account import Answer
from cache.types import Ids
from engine.adapter import Engine
from engine.decode import Rule, decode
from engine.forced import Forced
from engine.monitor import Budget, Monitor
from engine.sampling import Greedy, Sampled, Sampling
from engine.turn import Prompt, Ready, Tokens, turn

END = 7
PROMPT = tokens(100, seed=3)


def twin(
    own: Callable[[Sequence[int]], int], budget: Budget, limit: int, stops: frozenset[int]
) -> tuple[list[int], list[bool]]:
    """(tokens, whether each is hidden): what one token at a time would give."""
    answer: list[int] = []
    hidden: list[bool] = []
    forced: list[tuple[int, bool]] = []
    thought, thinking = 0, True
    while len(answer) < limit and not (answer and answer[-1] in stops):
        if thinking and not forced and thought == budget.thinking_max:
            forced = [(token, True) for token in budget.phrase] + [(budget.end_id, False)]
            thinking = False
        token, hides = forced.pop(0) if forced else (own(answer), False)
        if token == budget.end_id:
            thinking = False
        thought += thinking
        answer.append(token)
        hidden.append(hides)
    return answer, hidden


def written(script: Sequence[int]) -> Callable[[Sequence[int]], int]:
    """A model that writes a script, whatever was put in between."""
    rest = iter(script)
    return lambda answer: next(rest)


def spans(hidden: list[bool]) -> tuple[tuple[int, int], ...]:
    """Hidden tokens as (start, length)."""
    at = [index for index, hides in enumerate(hidden) if hides]
    assert not at or at == list(range(at[0], at[-1] + 1))
    return ((at[0], len(at)),) if at else ()


def decoded(rule: Rule, limit: int, stops: frozenset[int], model: str = "witness") -> list[int]:
    """An answer to PROMPT."""
    on = engine(model, window=256)
    return [token for new in decode(on, prefilled(on), rule, limit, stops) for token in new]


def prefilled(on: Engine, prompt: Ids = PROMPT) -> torch.Tensor:
    """The logits after a prompt."""
    logits = torch.empty(0)
    for start in range(0, len(prompt), on.grid):
        logits = on.prefill(prompt[start : start + on.grid])
    return logits


TOKEN = st.integers(0, 29)
"""So few that the end of the thinking comes by itself now and then."""


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], Budget, int, int, float, frozenset[int], int]:
    script = draw(st.lists(TOKEN, min_size=20, max_size=40))
    phrase = draw(st.lists(TOKEN.filter(lambda token: token != END), max_size=6))
    budget = Budget(draw(st.integers(0, 20)), END, tuple(phrase))
    limit = draw(st.integers(1, len(script)))
    drafts, accepted = draw(st.integers(0, 5)), draw(st.sampled_from((0.0, 0.6, 1.0)))
    stops = draw(st.one_of(st.just(frozenset()), st.frozensets(TOKEN, max_size=2)))
    return script, budget, limit, drafts, accepted, stops, draw(st.integers(0, 99))


def forced(script: list[int], drafts: int, accepted: float, seed: int) -> Forced:
    output = np.array(script, np.int32)
    return Forced(output, seed=str(seed), vocab=499, drafts=drafts, accepted=accepted)


@given(cases())
@settings(max_examples=3 * settings().max_examples)
def test_a_forced_answer_is_the_twins(
    case: tuple[list[int], Budget, int, int, float, frozenset[int], int],
) -> None:
    script, budget, limit, drafts, accepted, stops, seed = case
    monitor = Monitor(forced(script, drafts, accepted, seed), budget)
    answer = decoded(monitor, limit, stops)
    wanted, hidden = twin(written(script), budget, limit, stops)
    assert answer == wanted
    thinking = wanted.index(END) + 1 if END in wanted else len(wanted)
    assert monitor.read(answer) == Answer(thinking, spans(hidden))


class Overrunning(Monitor):
    """Lets the rule give a whole block's tokens when one would use the budget up."""

    def _most(self) -> int:
        return 1_000


def test_canary_a_block_that_overruns_the_budget_is_seen() -> None:
    script, budget = list(range(10, 40)), Budget(6, END, (1, 2))
    wanted, _ = twin(written(script), budget, 30, frozenset())
    for kind, same in ((Monitor, True), (Overrunning, False)):
        answer = decoded(kind(forced(script, 3, 1.0, 0), budget), 30, frozenset())
        assert (answer == wanted) is same


# greedy and sampled


class OneByOne:
    """Greedy decoding a row a forward: the token after an answer, whoever wrote that."""

    def __init__(self) -> None:
        self._engine = engine("hybrid-float32", window=256)
        self._logits = prefilled(self._engine)
        self._forwarded = 0

    def __call__(self, answer: Sequence[int]) -> int:
        for token in answer[self._forwarded :]:
            self._logits = self._engine.verify(np.array([token], np.int32))[-1]
            self._engine.accept(1)
        self._forwarded = len(answer)
        return int(self._logits.argmax())


@pytest.fixture(scope="module")
def plain() -> list[int]:
    """What greedy decoding writes without a monitor."""
    return decoded(Greedy(0), 24, frozenset(), "hybrid-float32")


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_budget_that_is_never_reached_changes_nothing(plain: list[int], drafts: int) -> None:
    absent = next(token for token in range(499) if token not in plain)
    monitor = Monitor(Greedy(drafts), Budget(25, absent, (1, 2)))
    assert decoded(monitor, 24, frozenset(), "hybrid-float32") == plain
    assert monitor.read(plain) == Answer(24, ())


@pytest.mark.parametrize("drafts", [0, 1, 3])
@pytest.mark.parametrize(("limit", "phrase"), [(0, 0), (0, 3), (1, 3), (5, 3), (5, 0), (9, 3)])
def test_a_greedy_answer_goes_on_from_the_phrase(
    plain: list[int], drafts: int, limit: int, phrase: int
) -> None:
    absent = next(token for token in range(499) if token not in plain)
    budget = Budget(limit, absent, (11, 12, 13)[:phrase])
    monitor = Monitor(Greedy(drafts), budget)
    answer = decoded(monitor, 24, frozenset(), "hybrid-float32")
    assert answer == twin(OneByOne(), budget, 24, frozenset())[0]
    assert answer[:limit] == plain[:limit] and answer != plain
    assert monitor.read(answer) == Answer(limit + phrase + 1, ((limit, 3),) if phrase else ())


def test_a_thinking_that_closes_by_itself_is_left_alone(plain: list[int]) -> None:
    at = plain.index(plain[6])
    monitor = Monitor(Greedy(3), Budget(at + 1, plain[6], (1, 2)))
    assert decoded(monitor, 24, frozenset(), "hybrid-float32") == plain
    assert monitor.read(plain) == Answer(at + 1, ())


def test_sampling_with_one_choice_is_greedy(plain: list[int]) -> None:
    absent = next(token for token in range(499) if token not in plain)
    budget = Budget(4, absent, (11, 12))
    rule = Sampled(Sampling(temperature=1.0, top_k=1), drafts=3)
    answer = decoded(Monitor(rule, budget), 24, frozenset(), "hybrid-float32")
    assert answer == twin(OneByOne(), budget, 24, frozenset())[0]


# cut short, and in a turn


def test_a_stop_or_a_limit_inside_the_phrase_cuts_the_span() -> None:
    budget = Budget(3, END, (1, 2, 4, 5))
    script = list(range(10, 30))
    for limit, stops in ((5, frozenset[int]()), (20, frozenset({2}))):
        monitor = Monitor(forced(script, 3, 0.5, 0), budget)
        answer = decoded(monitor, limit, stops)
        assert answer == [10, 11, 12, 1, 2]
        assert monitor.read(answer) == Answer(5, ((3, 2),))
    assert monitor.read([10, 11]) == Answer(2, ())


def test_a_window_without_room_for_the_phrase_takes_what_fits() -> None:
    on = engine("witness", window=128)
    logits = prefilled(on, tokens(120))
    monitor = Monitor(forced(list(range(10, 40)), 3, 1.0, 0), Budget(4, END, tuple(range(50, 60))))
    rounds = list(decode(on, logits, monitor, 40, frozenset()))
    answer = [token for new in rounds for token in new]
    assert answer == [10, 11, 12, 13, 50, 51, 52, 53, 54] and on.length == 128
    assert monitor.read(answer) == Answer(9, ((4, 5),))


def test_the_next_turn_resumes_after_a_hidden_phrase() -> None:
    """The rows have the phrase; an account lists it; a copy with it resumes at the end."""
    on = box(engine("witness"))
    monitor = Monitor(forced(list(range(20, 80)), 3, 0.6, 0), Budget(10, END, (1, 2, 3)))
    events = list(turn(on, Prompt(PROMPT), monitor, limit=40, read=monitor.read))
    answer = [token for event in events if isinstance(event, Tokens) for token in event.ids]
    assert answer[10:14] == [1, 2, 3, END]
    (generation,) = on.stack.resident.account.generations
    assert generation.hidden == ((110, 3),) and generation.think_end == 114
    again = joined(PROMPT, np.array(answer, np.int32), tokens(20, seed=8))
    for event in turn(on, Prompt(again), forced([1, 2], 0, 0.0, 0), limit=2):
        if isinstance(event, Ready):
            assert judge(on, event.ids, event.logits, verifier(on.engine)).ok
    assert on.journal.rows[-1].source == "end"


def test_a_phrase_that_ends_the_thinking_itself_is_refused() -> None:
    with pytest.raises(AssertionError):
        Budget(5, END, (1, END))
    with pytest.raises(AssertionError):
        Budget(-1, END)
