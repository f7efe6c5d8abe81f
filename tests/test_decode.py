"""Decode by verify blocks: the tokens that come out, and where the engine stands after them.

Method: a rule that is told what to propose and accept, on the witness and the hybrid; greedy text
with drafts against greedy text without.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import GRID, engine, forced, tokens

from cache.types import Ids
from engine.adapter import Engine
from engine.decode import decode
from engine.sampling import Greedy


def prefilled(model: str, ids: Ids, window: int = 1_024) -> tuple[Engine, torch.Tensor]:
    of, logits = engine(model, window=window), torch.empty(0)
    for start in range(0, len(ids), GRID):
        logits = of.prefill(ids[start : start + GRID])
    return of, logits


@settings(max_examples=60)
@given(
    st.integers(1, 60),
    st.lists(st.integers(0, 3), max_size=30),
    st.integers(1, 60),
)
def test_the_recorded_tokens_come_out_whatever_is_accepted(
    size: int, accepts: list[int], limit: int
) -> None:
    of, logits = prefilled("witness", tokens(70))
    answer = tokens(size, 1)
    limit = min(limit, size)
    rule = forced(answer, accepts=tuple(accepts))
    rounds = list(decode(of, logits, rule, limit, frozenset()))
    out = [token for new in rounds for token in new]
    assert out == answer[:limit].tolist()
    # All but the last token are forwarded at least; ahead by what the last block had left.
    assert 70 + limit - 1 <= of.length <= 70 + limit - 1 + 4


def test_a_stop_token_ends_it_and_comes_out() -> None:
    of, logits = prefilled("witness", tokens(70))
    answer = np.array([5, 6, 7, 8, 9], np.int32)
    rule = forced(answer, accepts=(3, 3))
    out = [t for new in decode(of, logits, rule, 5, frozenset([7])) for t in new]
    assert out == [5, 6, 7]
    assert of.length >= 72


def test_a_stop_as_the_first_token() -> None:
    of, logits = prefilled("witness", tokens(70))
    rule = forced(np.array([7], np.int32))
    assert list(decode(of, logits, rule, 5, frozenset([7]))) == [[7]]
    assert of.length == 70


def test_the_windows_end_is_an_end() -> None:
    of, logits = prefilled("witness", tokens(70), window=80)
    out = [t for new in decode(of, logits, forced(tokens(50, 1)), 50, frozenset()) for t in new]
    assert out == tokens(50, 1)[: len(out)].tolist()
    assert of.length == 80 and len(out) == 11


class Scripted(Greedy):
    """Greedy, with drafts that are right, wrong or missing as a script says."""

    def __init__(self, right: list[int], text: list[int]) -> None:
        super().__init__(drafts=0)
        self._right, self._text, self._out = list(right), text, 1

    def drafts(self, engine: Engine, token: int) -> list[int]:
        count = self._right.pop(0) if self._right else 0
        ahead = self._text[self._out : self._out + abs(count)]
        return ahead if count >= 0 else [(token + 1) % 499 for token in ahead]

    def judge(self, logits: torch.Tensor, drafts: list[int]) -> tuple[int, int]:  # type: ignore[override]
        accepted, following = super().judge(logits, drafts)
        self._out += accepted + 1
        return accepted, following


@pytest.mark.parametrize("ahead", [1, 2, 3, 4])
def test_drafts_never_change_greedy_text(ahead: int) -> None:
    """Accept some, then none proposed, then all refused, then some again, at every step."""
    ids = tokens(3 * GRID + 7)
    of, logits = prefilled("hybrid-float32", ids)
    plain = [t for new in decode(of, logits, Greedy(0), 60, frozenset()) for t in new]
    script = [ahead, 0, -ahead, ahead, ahead, 0, 0, -ahead, ahead] * 9
    of, logits = prefilled("hybrid-float32", ids)
    rule = Scripted(script, plain)
    drafted = [t for new in decode(of, logits, rule, 60, frozenset()) for t in new]
    assert drafted == plain


def test_the_draft_layer_never_changes_greedy_text_either() -> None:
    ids = tokens(2 * GRID + 30)
    texts = []
    for drafts in (0, 1, 3):
        of, logits = prefilled("hybrid-float32", ids)
        texts.append(
            [t for new in decode(of, logits, Greedy(drafts), 50, frozenset()) for t in new]
        )
    assert texts[0] == texts[1] == texts[2]
