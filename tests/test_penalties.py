"""Penalties and biases: the tokens of a naive twin, greedy and sampled, whatever is drafted.

Method: the twin forwards a row at a time on the small hybrid and changes each row from scratch, by
the whole of prompt and answer. The rule is given drafts by the model's draft layer, by its prompt
and by somebody who knows most of the answer. A rule that forgets what stands in its own block, or
that counts guesses which were refused, must be seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from decided import PROMPT, Guesses, OneByOne, Pick, best, decoded
from support import box, engine, joined, tokens

from engine.lookup import Lookup
from engine.monitor import Budget, Monitor
from engine.penalties import Penalised, Penalties, _History
from engine.prompt import Prompt
from engine.sampling import Greedy, Sampled, Sampling
from engine.turn import Tokens, turn

SIZE = 24
OFTEN = ((5, 4.0), (9, 3.6))
"""Two tokens that come again and again until the penalties stop them."""
CASES = {
    "presence": Penalties(presence=1.5, bias=OFTEN),
    "frequency": Penalties(frequency=0.7, bias=OFTEN),
    "negative": Penalties(presence=-1.0, frequency=-0.5),
    "repetition": Penalties(repetition=1.8, bias=OFTEN),
    "encouraged": Penalties(repetition=0.6),
    "all": Penalties(0.8, 0.6, 1.3, ((5, 4.0), (9, 3.6), (11, -100.0))),
    "bias": Penalties(bias=((5, 100.0),)),
}
SAMPLING = Sampling(temperature=0.8, top_p=0.95, top_k=50, seed=4, min_p=0.02)


def naive(row: torch.Tensor, answer: Sequence[int], wanted: Penalties) -> torch.Tensor:
    """A row changed by everything before it, counted anew."""
    row = row.clone()
    for token in {*PROMPT.tolist(), *answer}:
        by = wanted.repetition
        row[token] = row[token] / by if row[token] > 0 else row[token] * by
    for token, count in Counter(answer).items():
        row[token] -= count * wanted.frequency + wanted.presence
    for token, by in wanted.bias:
        row[token] += by
    return row


def twin(pick: Pick, wanted: Penalties) -> list[int]:
    """One token at a time."""
    model, answer = OneByOne(), list[int]()
    while len(answer) < SIZE:
        answer.append(pick(naive(model(answer), answer, wanted)))
    return answer


@cache
def greedy_twin(case: str) -> list[int]:
    return twin(best, CASES[case])


@cache
def sampled_twin(case: str) -> list[int]:
    return twin(Sampled(SAMPLING).first, CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_a_greedy_answer_is_the_twins_whatever_is_drafted(case: str) -> None:
    wanted, answer = CASES[case], greedy_twin(case)
    assert answer != decoded(Greedy(0), SIZE), "these penalties change nothing"
    for rule in (Greedy(0), Greedy(3), Greedy(2, Lookup())):
        assert decoded(Penalised(rule, wanted), SIZE) == answer
    for wrong in (0, 5):
        guesses = Guesses(Greedy(0), answer, 3, wrong)
        assert decoded(Penalised(guesses, wanted), SIZE) == answer
        assert guesses.accepted >= 12 and bool(guesses.refused) is bool(wrong)


@pytest.mark.parametrize("case", CASES)
def test_a_seeded_answer_is_the_twins_whatever_is_drafted(case: str) -> None:
    wanted, answer = CASES[case], sampled_twin(case)
    for rule in (Sampled(SAMPLING, 0), Sampled(SAMPLING, 3), Sampled(SAMPLING, 2, Lookup())):
        assert decoded(Penalised(rule, wanted), SIZE) == answer
    for wrong in (0, 5):
        guesses = Guesses(Sampled(SAMPLING, 0), answer, 3, wrong)
        assert decoded(Penalised(guesses, wanted), SIZE) == answer
        assert guesses.accepted >= 12 and bool(guesses.refused) is bool(wrong)


def test_none_changes_nothing() -> None:
    assert Penalties().none and not CASES["bias"].none
    assert decoded(Penalised(Greedy(3), Penalties()), SIZE) == decoded(Greedy(0), SIZE)


def test_a_bias_of_a_hundred_forces_and_forbids() -> None:
    assert greedy_twin("bias") == [5] * SIZE
    plain = decoded(Greedy(0), SIZE)
    banned = Penalties(bias=tuple((token, -100.0) for token in sorted(set(plain))))
    assert not set(decoded(Penalised(Greedy(3), banned), SIZE)) & set(plain)


def test_tokens_that_a_monitor_writes_count() -> None:
    """The penalties stand outside of it; a phrase it wrote is said already."""
    phrase = (5, 9)
    wanted = Penalties(presence=1.5, bias=OFTEN)
    answer = decoded(Penalised(Monitor(Greedy(3), Budget(0, 7, phrase)), wanted), SIZE)
    model, expected = OneByOne(), [*phrase, 7]
    while len(expected) < SIZE:
        expected.append(best(naive(model(expected), expected, wanted)))
    assert answer == expected


def test_the_rows_of_a_picture_are_no_tokens() -> None:
    rule = Penalised(Greedy(0), Penalties(repetition=5.0))
    rule.begin(joined(-tokens(5) - 1, tokens(3, seed=2)))
    row = torch.ones(499)
    said = set(tokens(3, seed=2).tolist())
    assert rule.first(row) == min(set(range(499)) - said)


def test_a_turn_with_penalties_is_the_twins() -> None:
    on = box(engine("hybrid-float32"))
    rule = Penalised(Greedy(3), CASES["all"])
    events = turn(on, Prompt(PROMPT), rule, limit=SIZE)
    said = [token for event in events if isinstance(event, Tokens) for token in event.ids]
    assert said == greedy_twin("all")


def test_keys_are_the_rules_and_the_penalties() -> None:
    a, b = CASES["presence"], CASES["frequency"]
    assert Penalised(Greedy(0), a).key == Penalised(Greedy(3), a).key
    assert Penalised(Greedy(0), a).key != Penalised(Greedy(0), b).key != Greedy.key
    assert Penalised(Sampled(SAMPLING), a).key is None
    assert hash(Penalised(Greedy(0), a).key)


@pytest.mark.parametrize(
    "wrong", [{"repetition": 0.0}, {"bias": ((-1, 1.0),)}, {"bias": ((1, 101.0),)}]
)
def test_penalties_that_make_no_sense_are_refused(
    wrong: dict[str, float | tuple[tuple[int, float], ...]],
) -> None:
    with pytest.raises(AssertionError):
        Penalties(**wrong)  # type: ignore[arg-type]


# canaries


def blind(self: _History, tokens: Sequence[int]) -> None:
    """Drops nothing: refused guesses are counted."""


class Forgetful(Penalised):
    """Changes all of a block's rows by what stood before the block."""

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        history = self._history
        assert history is not None
        accepted, following = self._rule.judge(
            torch.stack([history.changed(row) for row in logits]), drafts
        )
        for token in (*drafts[:accepted], following):
            history.add(token)
        return accepted, following


@pytest.mark.parametrize("pick", [Greedy, lambda drafts: Sampled(SAMPLING, drafts)])
def test_canary_a_block_that_forgets_its_own_drafts_is_seen(
    pick: Callable[[int], Greedy | Sampled],
) -> None:
    wanted = Penalties(frequency=2.0, bias=((5, 9.0),))
    rule = pick(0)
    answer = twin(rule.first, wanted)
    for kind, same in ((Penalised, True), (Forgetful, False)):
        # Somebody guesses what is said when nothing is counted: the same token again.
        again = Guesses(pick(0), [5] * SIZE, 3, 0)
        assert (decoded(kind(again, wanted), SIZE) == answer) is same


def test_canary_guesses_that_are_counted_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_History, "drop", blind)
    guesses = Guesses(Greedy(0), greedy_twin("all"), 3, 2)
    assert decoded(Penalised(guesses, CASES["all"]), SIZE) != greedy_twin("all")
