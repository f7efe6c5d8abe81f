"""Forced decoding: the recorded tokens, the recorded or seeded acceptance, junk where it is wrong.

Method: the rule alone, without an engine.
"""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tokens

from engine.forced import Forced

NONE = torch.empty(0)


def rule(size: int, *, drafts: int = 3, accepts: tuple[int, ...] = (), seed: str = "0") -> Forced:
    return Forced(
        tokens(size, 1), seed=seed, vocab=499, drafts=drafts, accepted=0.6, accepts=accepts
    )


def rounds(forced: Forced, size: int, cut: int = 99) -> list[tuple[list[int], int, int]]:
    token, out = forced.first(NONE), []
    count = 1
    while count < size:
        drafts = forced.drafts(None, token)[:cut]  # type: ignore[arg-type]
        accepted, token = forced.judge(NONE, drafts)
        out.append((drafts, accepted, token))
        count += accepted + 1
    return out


@given(st.integers(1, 50), st.integers(0, 4), st.integers(0, 4))
def test_accepted_drafts_and_what_follows_are_the_recording(
    size: int, drafts: int, cut: int
) -> None:
    text = tokens(size, 1).tolist()
    out = text[:1]
    for proposed, accepted, following in rounds(rule(size, drafts=drafts), size, cut):
        assert len(proposed) <= min(drafts, cut)
        assert accepted <= len(proposed)
        out += [*proposed[:accepted], following]
    assert out[:size] == text
    assert len(out) <= size + drafts + 1


def test_a_refused_draft_is_never_the_recorded_token() -> None:
    text = tokens(200, 1).tolist()
    at = 0
    for proposed, accepted, _ in rounds(rule(200), 200):
        for offset, guess in enumerate(proposed[accepted:], start=at + 1 + accepted):
            if offset < len(text):
                assert guess != text[offset]
        at += accepted + 1


def test_recorded_acceptance_comes_first() -> None:
    accepted = [a for _, a, _ in rounds(rule(30, accepts=(2, 0, 3, 9)), 30)]
    assert accepted[:4] == [2, 0, 3, 3]


def test_the_seed_decides_the_rest() -> None:
    def pattern(seed: str) -> list[int]:
        return [a for _, a, _ in rounds(rule(300, seed=seed), 300)]

    assert pattern("1") == pattern("1") != pattern("2")
    # Three drafts at 0.6 each: 0.6 + 0.36 + 0.216 accepted a round.
    assert abs(np.mean(pattern("1")) - 1.176) < 0.3


def test_an_empty_output_still_has_a_first_token() -> None:
    assert 0 <= rule(0).first(NONE) < 499
