"""Goal: an answer's tokens don't hang on what served its prompt: nothing, the rows in place, the
pool, a head on the drive, a conversation on the drive, or what a restart brought back.

Method: sessions of several turns over HTTP, and between two turns whatever leads to the tier that
is asked about, which the journal must name. One is written by the small random model, greedily, and
in words that a client's copy tokenises as they were written: its cold answers come from a house
that has seen nothing. One is written by it as it likes, thoughts, hidden phrase and all: its cold
answers are those to the very tokens that were served. One is said by a script, with calls and their
results: its tokens are given, so what the model thought of each is compared. With drafts and
without. Canaries are at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdk_client import TOOLS, Heard, of_choice, script_of, sdk, user
from served import DIALECT, MODEL, Served, house, serving, usual

from cache.journal import TurnRow
from cache.types import Ids
from engine.hybrid import Hybrid
from engine.prompt import Prompt
from serve.house import House
from serve.order import Order
from serve.script import Script
from serve.service import Service
from serve.usage import tier_of

TURNS = 3
WORDS = ("the", "of", "and", "to", "in", "is", "was", "for", "on", "with", "as", "by", "at", "from")
BIAS = {str(DIALECT.tokenizer.encode(f" {word}", specials=False)[0]): 60 for word in WORDS}
ABOUT = "".join(f"Line {n} of what they talk about, and a number {n * n}.\n" for n in range(28))
OTHER = "".join(f"{n}: somebody else talks of another matter.\n" for n in range(60))
RULES: list[dict[str, Any]] = [
    {
        "when": {"turn": 1},
        "say": [
            ["reasoning", "I look at the files before I say anything."],
            ["tool", "list_files", {"path": "src"}],
        ],
    },
    {
        "when": {"turn": 2},
        "say": [
            ["content", "I write it down."],
            ["tool", "write_file", {"path": "a.txt", "text": "one\ntwo", "lines": 2}],
        ],
    },
    {"say": [["reasoning", "That went well."], ["content", "It is written, and all is well."]]},
]
CLOSE = 2e-3
"""How far log probabilities of the same tokens may be apart: bits differ where verify blocks wrote
rows."""


@dataclass(slots=True)
class Turn:
    """What is known of one turn on the server's side."""

    row: TurnRow
    served: tuple[int, ...]
    tokens: tuple[int, ...]
    scores: tuple[float, ...] = ()
    heard: Heard = field(default_factory=Heard)


@dataclass(slots=True)
class Watch:
    """A server, and what its turns wrote."""

    served: Served
    turns: list[Turn] = field(default_factory=list)

    def ask(self, asked: dict[str, Any], session: str = "ours") -> Turn:
        with sdk(self.served) as client:
            answer = client.chat.completions.create(
                model=MODEL, extra_headers={"x-session-id": session}, **asked
            )
        turn = self.turns[-1]
        turn.heard = of_choice(answer.choices[0], answer.usage)
        found = answer.choices[0].logprobs
        turn.scores = tuple(s.logprob for s in found.content or ()) if found else ()
        return turn

    def post(self, path: str) -> None:
        with self.served.client() as client:
            client.post(path).raise_for_status()

    def settle(self) -> None:
        """What is being written to the drive is there."""
        house = self.served.house
        self.served.service.desk.alone(house.jobs.drain, 20.0).result()


@contextmanager
def watched(of: House, script: Script | None = None) -> Iterator[Watch]:
    """Serve a house, and note every turn's tokens."""
    ended = Service._ended
    with serving(of, script) as one:
        watch = Watch(one)

        def noted(row: TurnRow, order: Order) -> None:
            assert order.box is not None
            rows = order.box.stack.rows[: row.prompt].tolist()
            watch.turns.append(Turn(row, tuple(rows), tuple(order.answer)))
            ended(one.service, row, order)

        one.service.desk._ended = noted
        yield watch


Next = Callable[[Turn], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Session:
    """What a client sends, turn by turn."""

    name: str
    how: dict[str, Any]
    says: bool = False
    """A script gives the answers."""
    wild: bool = False
    """A client's copy of an answer need not be met to its end."""

    def first(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": ABOUT}, user("What is on the first line?")]

    def next(self, turn: Turn) -> list[dict[str, Any]]:
        """The messages that come after a turn."""
        heard = turn.heard
        results = [
            {"role": "tool", "tool_call_id": id, "content": f"{name}: done"}
            for id, name, _ in heard.calls
        ]
        return [heard.message, *(results or [user(f"And after {len(heard.content)}?")])]


WORDY = Session(
    "wordy",
    {"temperature": 0, "reasoning_effort": "none", "logit_bias": BIAS, "max_tokens": 20},
)
WILD = Session(
    "wild",
    {"temperature": 0, "max_tokens": 36, "extra_body": {"reasoning_budget": 12}},
    wild=True,
)
SAID = Session("said", {"tools": TOOLS, "logprobs": True}, says=True)


def nothing(watch: Watch) -> None:
    """The conversation stays in place."""


def another(watch: Watch) -> None:
    """Somebody else's conversation takes the rows."""
    watch.ask({"messages": [user(OTHER)], "max_tokens": 2}, f"other-{len(watch.turns)}")


def forget(watch: Watch) -> None:
    """Memory is cleared; heads are on the drive."""
    watch.settle()
    watch.post("/v1/cache/clear?tier=ram")


@dataclass(frozen=True, slots=True)
class Way:
    """What happens between two turns, and what serves the later ones."""

    source: str
    between: Callable[[Watch], None] = nothing
    memory: dict[str, Any] = field(default_factory=dict)
    restarts: bool = False


NO_POOL = {"park_gib": 0.0, "pin_gib": 0.0}
WAYS = {
    "memory": Way("end"),
    "pool": Way("park.end", another),
    "head on the drive": Way("disk.grid", forget),
    "drive": Way("spill.end", another, NO_POOL),
    "restart": Way("end", restarts=True),
    "restart, after another": Way("spill.end", another, restarts=True),
}


def run(session: Session, way: Way, folder: Path, script: Script) -> list[Turn]:
    """A session's turns, with what lies between them."""
    memory = {"guest_tokens": 0, "store_gib": 0.0, **way.memory}
    settings = usual().changed({"memory": memory})
    messages, found = session.first(), list[Turn]()
    while len(found) < TURNS:
        of = house(folder / "kept", parallel=0, settings=settings)
        with watched(of, script if session.says else None) as watch:
            while len(found) < TURNS:
                turn = watch.ask({"messages": messages, **session.how})
                source, wanted = turn.row.source, way.source if found else "cold"
                # Where a copy parts early a head on the drive is as good as the conversation.
                wild = session.wild and tier_of(source) in (tier_of(wanted), "disk_tier")
                assert source == wanted or wild, turn.row
                found.append(turn)
                messages += session.next(turn)
                way.between(watch)
                if way.restarts:
                    break
    return found


def cold(session: Session, script: Script) -> list[Turn]:
    """The same turns, each asked of a house that knows nothing."""
    messages, found = session.first(), list[Turn]()
    with watched(house(parallel=0), script if session.says else None) as watch:
        for _ in range(TURNS):
            watch.post("/v1/cache/clear?tier=all")
            turn = watch.ask({"messages": messages, **session.how})
            assert turn.row.source == "cold"
            found.append(turn)
            messages += session.next(turn)
    return found


def cold_of(turns: list[Turn], session: Session, fresh: Watch) -> list[Turn]:
    """The answers to the very tokens that were served, by an engine that has read none of them."""
    asking, messages, found = fresh.served.service.asking, session.first(), list[Turn]()
    real = asking.prompt
    for turn in turns:
        served: Ids = np.array(turn.served, np.int32)

        def prompt(*args: Any, served: Ids = served) -> Prompt:
            return replace(real(*args), ids=served, valued=())

        asking.prompt = prompt  # type: ignore[method-assign]
        fresh.post("/v1/cache/clear?tier=all")
        found.append(fresh.ask({"messages": messages, **session.how}))
        assert found[-1].row.source == "cold" and found[-1].served == turn.served
        messages += session.next(turn)
    asking.prompt = real  # type: ignore[method-assign]
    return found


def same(turns: list[Turn], reference: list[Turn]) -> None:
    """Every turn wrote the reference's tokens."""
    assert len(turns) == len(reference) == TURNS
    for turn, cold in zip(turns, reference, strict=True):
        assert turn.tokens == cold.tokens and turn.heard.said == cold.heard.said
        assert len(turn.scores) == len(cold.scores)
        np.testing.assert_allclose(turn.scores, cold.scores, atol=CLOSE)
    assert len({turn.tokens for turn in turns}) == TURNS, "all answers are alike: no test"


def without_drafts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("serve.choice.DRAFTS", 0)
    patch.setattr("serve.choice.Lookup", lambda store: None)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    return script_of(tmp_path_factory.mktemp("said"), RULES)


@pytest.fixture(scope="module")
def references(script: Script) -> dict[str, list[Turn]]:
    return {session.name: cold(session, script) for session in (WORDY, SAID)}


@pytest.mark.parametrize("session", [WORDY, SAID], ids=lambda session: session.name)
@pytest.mark.parametrize("way", WAYS)
def test_a_session_has_the_same_tokens(
    session: Session,
    way: str,
    script: Script,
    references: dict[str, list[Turn]],
    tmp_path: Path,
) -> None:
    turns = run(session, WAYS[way], tmp_path, script)
    same(turns, references[session.name])
    if session is SAID:
        assert sum(turn.row.rounds + 1 < turn.row.output for turn in turns) == TURNS
        assert sum(len(turn.scores) for turn in turns) > 10


@pytest.mark.parametrize("session", [WORDY, SAID], ids=lambda session: session.name)
@pytest.mark.parametrize("way", ["memory", "drive"])
def test_it_has_them_without_drafts(
    session: Session,
    way: str,
    script: Script,
    references: dict[str, list[Turn]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_drafts(monkeypatch)
    turns = run(session, WAYS[way], tmp_path, script)
    same(turns, references[session.name])
    assert all(turn.row.rounds + 1 == turn.row.output for turn in turns)


@pytest.mark.parametrize("way", ["memory", "drive", "restart"])
def test_a_wild_session_has_the_tokens_of_what_was_served(
    way: str, script: Script, tmp_path: Path
) -> None:
    turns = run(WILD, WAYS[way], tmp_path, script)
    with watched(house(parallel=0)) as fresh:
        same(turns, cold_of(turns, WILD, fresh))
    assert all(turn.row.cached for turn in turns[1:])


def wrong_rows(patch: pytest.MonkeyPatch) -> None:
    """What comes back from the pool or the drive is another row."""

    def shifted(self: Any, tokens: int) -> None:
        for view in self.cache_state().views:
            view.rows(0, tokens).neg_()
        resume(self, tokens)

    resume = Hybrid.resume_at
    patch.setattr(Hybrid, "resume_at", shifted)


def wrong_sections(patch: pytest.MonkeyPatch) -> None:
    """The sections that come back are nobody's."""

    def emptied(self: Any, tokens: int) -> None:
        for section in self.cache_state().sections:
            section.tensor.zero_()
        resume(self, tokens)

    resume = Hybrid.resume_at
    patch.setattr(Hybrid, "resume_at", emptied)


@pytest.mark.parametrize("plant", [wrong_rows, wrong_sections])
@pytest.mark.parametrize("session", [WORDY, SAID], ids=lambda session: session.name)
def test_canary_what_comes_back_is_wrong(
    session: Session,
    plant: Callable[[pytest.MonkeyPatch], None],
    script: Script,
    references: dict[str, list[Turn]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    turns = run(session, WAYS["drive"], tmp_path, script)
    with pytest.raises(AssertionError):
        same(turns, references[session.name])


def test_canary_the_wrong_tier(script: Script, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run(WORDY, replace(WAYS["memory"], source="spill.end"), tmp_path, script)
