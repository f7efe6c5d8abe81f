"""Drafts from lookups change how fast an answer comes, and nothing else.

Method: greedy decoding on the fp32 hybrid with a lookup over stores that hold the right text,
nearly the right text and junk, and with any mix of right, wrong and no drafts, against decoding
without drafts: the same tokens, and the same state within the greedy gate. Sampled decoding
over four tokens against exact probabilities. A judge that accepts one wrong draft must fail both.
"""

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from suffix_files import store_of
from support import GRID, VOCAB, engine, tokens

from cache.suffix_store import SuffixStore
from cache.types import Ids
from engine.adapter import Engine
from engine.decode import Rule, decode
from engine.lookup import Lookup, LookupConfig
from engine.sampling import Greedy, Sampled, Sampling

TOKENS = 32
SEEDS = range(8)


def lookup(store: SuffixStore | None, drafts: int = 3) -> Lookup:
    return Lookup(store, LookupConfig(match_min=2, drafts=drafts))


def decoded(seed: int, rule: Rule) -> tuple[list[int], Engine, int]:
    """(the answer, the engine after it, verify rounds)."""
    ids = tokens(GRID + 9 + seed, seed)
    of, logits = engine("hybrid-float32", seed=seed, window=256), torch.empty(0)
    for start in range(0, len(ids), GRID):
        logits = of.prefill(ids[start : start + GRID])
    rule.begin(ids)
    rounds = list(decode(of, logits, rule, TOKENS, frozenset()))
    out = [token for new in rounds for token in new]
    assert of.trim_pending(len(ids) + len(out) - 1)
    of.settle()
    return out, of, len(rounds)


@pytest.fixture(scope="module")
def plain() -> list[tuple[list[int], Engine]]:
    """Of every seed, the answer and the end state without drafts."""
    return [decoded(seed, Greedy(0))[:2] for seed in SEEDS]


def differs(of: Engine, other: Engine) -> str:
    """What of two end states is further apart than verify blocks of other sizes leave it."""
    if of.length != other.length:
        return f"length {of.length} and {other.length}"
    a, b = of.cache_state(), other.cache_state()
    pairs = [(s.name, s.tensor, t.tensor) for s, t in zip(a.sections, b.sections, strict=True)]
    pairs += [
        (v.name, v.rows(0, of.length), w.rows(0, of.length))
        for v, w in zip(a.views, b.views, strict=True)
    ]
    wrong = [name for name, x, y in pairs if not torch.allclose(x, y, atol=1e-4, rtol=1e-4)]
    return f"{wrong} differ" if wrong else ""


def nearly(text: Sequence[int], seed: int) -> list[int]:
    """The text with every seventh token or so another one."""
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) if draw.random() < 0.15 else token for token in text]


def junk(text: Sequence[int], seed: int) -> list[int]:
    """After every token of the text one that does not follow it."""
    draw = random.Random(seed)
    return [t for a, b in itertools.pairwise(text) for t in (a, b, draw.randrange(VOCAB))]


@pytest.mark.parametrize("told", ["right", "nearly", "junk", "nothing"])
def test_greedy_text_and_state_are_those_without_drafts(
    plain: list[tuple[list[int], Engine]], told: str
) -> None:
    rounds = 0
    for seed, (text, of) in zip(SEEDS, plain, strict=True):
        ids = tokens(GRID + 9 + seed, seed).tolist()
        texts = {
            "right": [[*ids, *text]],
            "nearly": [nearly([*ids[-9:], *text], seed)],
            "junk": [junk([*ids[-9:], *text], seed)],
            "nothing": [],
        }
        for drafts in (2, 6) if told in ("right", "nearly") else (6,):
            rule = Greedy(0, lookup(store_of(*texts[told]), drafts))
            out, after, count = decoded(seed, rule)
            assert out == text, f"seed {seed}, {drafts} drafts"
            assert differs(after, of) == ""
            rounds += count
    whole = (2 if told in ("right", "nearly") else 1) * len(SEEDS) * TOKENS
    # Right texts must really be drafted from, and junk really be refused.
    assert rounds < whole / 2 if told == "right" else rounds <= whole


class Mixed(Greedy):
    """Greedy with any number of drafts a round, from none to k, right up to any place."""

    def __init__(self, text: Sequence[int], seed: int, most: int) -> None:
        super().__init__(drafts=0)
        self._text, self._draw, self._most, self._at = list(text), random.Random(seed), most, 1
        self.accepted: list[int] = []

    def drafts(self, engine: Engine, token: int) -> list[int]:
        count = self._draw.randint(0, self._most)
        right = self._draw.randint(0, count)
        ahead = self._text[self._at : self._at + count]
        return [t if at < right else (t + 1) % VOCAB for at, t in enumerate(ahead)]

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        accepted, following = super().judge(logits, drafts)
        self._at += accepted + 1
        self.accepted.append(accepted)
        return accepted, following


@pytest.mark.parametrize("most", [1, 3, 6])
def test_any_mix_of_drafts_a_round(plain: list[tuple[list[int], Engine]], most: int) -> None:
    """A round without drafts after one that accepted them, one that refuses all, and so on."""
    seen: set[tuple[bool, bool]] = set()
    for seed, (text, of) in zip(SEEDS, plain, strict=True):
        rule = Mixed(text, seed, most)
        out, after, _ = decoded(seed, rule)
        assert out == text and differs(after, of) == ""
        pairs = itertools.pairwise(rule.accepted)
        seen |= {(a > 0, b > 0) for a, b in pairs}
    assert len(seen) == 4


class Gullible(Greedy):
    """Takes one wrong draft."""

    took = False

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        accepted, following = super().judge(logits, drafts)
        if accepted < len(drafts) and not self.took:
            self.took = True
            return accepted + 1, int(logits[accepted + 1].argmax())
        return accepted, following


def test_canary_a_judge_that_takes_one_wrong_draft(plain: list[tuple[list[int], Engine]]) -> None:
    for seed, (text, of) in zip(SEEDS, plain, strict=True):
        rule = Gullible(0, lookup(store_of(junk([*tokens(GRID, seed)[-9:].tolist(), *text], seed))))
        out, after, _ = decoded(seed, rule)
        if rule.took:
            assert out != text and differs(after, of) != ""
            return
    raise AssertionError("no draft was wrong")


def test_canary_a_state_that_lost_its_last_accepted_draft(
    plain: list[tuple[list[int], Engine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round without drafts that follows one with: the fold forgets a token."""
    text, of = plain[0]
    whole = type(of)._absorb  # type: ignore[attr-defined]
    monkeypatch.setattr(type(of), "_absorb", lambda self, n: whole(self, max(1, n - 1)))
    out, after, _ = decoded(0, Mixed(text, 0, 3))
    assert out != text or differs(after, of) != ""


# sampled


class Markov:
    """Four tokens; the logits hang on the last two. As much of an engine as decode asks for."""

    vocab, window = 4, 64

    def __init__(self, ids: Ids) -> None:
        self.ids = ids.tolist()
        self._block: list[int] = []
        self.table = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(5)) / 2

    @property
    def length(self) -> int:
        return len(self.ids)

    def logits(self) -> torch.Tensor:
        return self.table[self.ids[-2], self.ids[-1]]

    def verify(self, ids: Ids) -> torch.Tensor:
        self._block = ids.tolist()
        row = [self.ids[-1], *self._block]
        return torch.stack([self.table[a, b] for a, b in itertools.pairwise(row)])

    def accept(self, count: int) -> None:
        self.ids += self._block[:count]

    def draft(self, token: int, count: int) -> list[int]:
        return [(token + 1) % 4] * count


PROMPT = np.array([0, 1, 2, 3, 0, 1, 2, 3, 0, 1], np.int32)
DRAWN = 3


def probabilities() -> dict[tuple[int, ...], float]:
    """Of every answer of three tokens, exactly."""
    table, found = Markov(PROMPT).table, {}
    for answer in itertools.product(range(4), repeat=DRAWN):
        row = [*PROMPT[-2:].tolist(), *answer]
        p = 1.0
        for at in range(DRAWN):
            p *= float(torch.softmax(table[row[at], row[at + 1]], -1)[row[at + 2]])
        found[answer] = p
    return found


def chi_square(rule: Callable[[int], Sampled], draws: int = 1_500) -> float:
    """Of the answers drawn against what they should be; 64 outcomes."""
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(draws):
        of, of_rule = Markov(PROMPT), rule(seed)
        of_rule.begin(PROMPT)
        rounds = decode(of, of.logits(), of_rule, DRAWN, frozenset())  # type: ignore[arg-type]
        answer = tuple(token for new in rounds for token in new)
        counts[answer] = counts.get(answer, 0) + 1
    return sum(
        (counts.get(answer, 0) - draws * p) ** 2 / (draws * p)
        for answer, p in probabilities().items()
    )


LIKELY = 103.4
"""0.999 of chi-square's distribution with 63 degrees of freedom lies below."""


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_sampled_answers_have_the_distribution_without_drafts(drafts: int) -> None:
    store = store_of([0, 1, 2, 2, 0, 0, 1, 1, 3, 3], [2, 1, 1, 0, 3, 1, 3, 2])

    def drafted(seed: int) -> Sampled:
        own = 2 if drafts else 0
        return Sampled(Sampling(1.0, seed=seed), own, lookup(store, drafts))

    assert chi_square(drafted) < LIKELY


class GullibleSampled(Sampled):
    """Takes the first draft of an answer unseen."""

    took = False

    def judge(self, logits: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
        if drafts and not self.took:
            self.took = True
            return 1, self._draw(self.probabilities(logits[1]))
        return super().judge(logits, drafts)


def test_canary_a_sampled_judge_that_takes_one_draft_unseen() -> None:
    store = store_of([0, 1, 2, 2, 0, 0, 1, 1, 3, 3])
    chi = chi_square(
        lambda seed: GullibleSampled(Sampling(1.0, seed=seed), 2, lookup(store)), 1_000
    )
    assert chi > 2 * LIKELY
