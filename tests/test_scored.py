"""Log probabilities: those of a naive twin, token by token, whatever is drafted.

Method: the twin forwards the answer a row at a time on the small hybrid and takes each row's log
softmax in float64. Greedy, sampled, penalised and monitored answers are scored, with drafts and
without; a rule that scores the row beside the token's must be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from decided import PROMPT, Guesses, OneByOne, decoded
from support import box, engine

from engine.decode import Rule
from engine.monitor import Budget, Monitor
from engine.penalties import Penalised, Penalties
from engine.prompt import Prompt
from engine.sampling import Greedy, Sampled, Sampling
from engine.scored import Score, Scored
from engine.turn import Tokens, turn

SIZE = 24
TOP = 5
NEAR = 1e-4
"""A block's logits differ from a single row's in their last bits."""


def close(scores: Sequence[Score], answer: Sequence[int], top: int = TOP) -> bool:
    """Whether the scores are the answer's, as the twin has them."""
    model = OneByOne()
    for at, (score, token) in enumerate(zip(scores, answer, strict=False)):
        wanted = torch.log_softmax(model(answer[:at]).double(), -1)
        best = wanted.topk(top)
        near = [abs(score.logprob - float(wanted[token]))]
        near += [abs(a - float(wanted[id])) for id, a in score.top]
        near += [abs(a - b) for (_, a), b in zip(score.top, best.values.tolist(), strict=True)]
        if score.token != token or len(score.top) != top or max(near) > NEAR:
            return False
    return True


def drafted(answer: list[int]) -> Rule:
    """A greedy rule most of whose guesses are right."""
    return Guesses(Greedy(0), answer, 3, 5)


RULES: dict[str, Callable[[], Rule]] = {
    "greedy": lambda: Greedy(0),
    "drafts": lambda: Greedy(3),
    "guesses": lambda: drafted(decoded(Greedy(0), SIZE)),
    "sampled": lambda: Sampled(Sampling(0.9, 0.9, 40, seed=2), 3),
    "penalised": lambda: Penalised(Greedy(3), Penalties(0.5, 0.5, 1.2, ((5, 6.0), (9, -100.0)))),
    "monitored": lambda: Monitor(Greedy(3), Budget(6, 7, (11, 12, 13))),
}


@pytest.mark.parametrize("name", RULES)
def test_scores_are_the_twins_and_the_answer_is_the_rules(name: str) -> None:
    scored = Scored(RULES[name](), TOP)
    answer = decoded(scored, SIZE)
    assert answer == decoded(RULES[name](), SIZE)
    assert len(scored.scores) >= SIZE and close(scored.scores, answer)


def test_a_greedy_token_is_the_first_of_the_top() -> None:
    scored = Scored(Greedy(3), TOP)
    for score, token in zip(scored.scores, decoded(scored, SIZE), strict=False):
        assert score.top[0] == (token, score.logprob)
        assert [value for _, value in score.top] == sorted((v for _, v in score.top), reverse=True)


def test_no_alternatives_when_none_are_wanted_and_no_more_than_there_are() -> None:
    scored = Scored(Greedy(0), 0)
    decoded(scored, 3)
    assert [score.top for score in scored.scores] == [(), (), ()]
    scored = Scored(Greedy(0), 20)
    scored.first(torch.tensor([0.0, 1.0, 2.0], dtype=torch.bfloat16))
    (score,) = scored.scores
    assert [token for token, _ in score.top] == [2, 1, 0] and score.logprob == score.top[0][1]
    assert sum(torch.tensor([value for _, value in score.top]).exp()) == pytest.approx(1.0)


def test_in_a_turn_there_is_a_score_for_each_token() -> None:
    on = box(engine("hybrid-float32"))
    scored = Scored(Greedy(3), TOP)
    events = turn(on, Prompt(PROMPT), scored, limit=SIZE)
    said = [token for event in events if isinstance(event, Tokens) for token in event.ids]
    assert close(scored.scores, said) and len(said) == SIZE


def test_an_answer_with_scores_is_never_a_remembered_one() -> None:
    assert Greedy(0).key is not None and Scored(Greedy(0), 0).key is None


class Beside(Scored):
    """Scores a block's first row again and again."""

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        accepted, following = self._rule.judge(logits, drafts)
        for token in (*drafts[:accepted], following):
            self._score(logits[0], token)
        return accepted, following


def test_canary_the_row_beside_is_seen() -> None:
    scored = Beside(drafted(decoded(Greedy(0), SIZE)), TOP)
    assert not close(scored.scores, decoded(scored, SIZE))


def test_canary_scores_of_penalised_logits_are_seen() -> None:
    """Inside of the penalties it would score what they made of the model's logits."""
    scored = Scored(Greedy(3), TOP)
    answer = decoded(Penalised(scored, Penalties(bias=((5, 6.0),))), SIZE)
    assert not close(scored.scores, answer)
