"""What a turn adds to the suffix store: prompt and answer as served, once, and nothing hidden.

Method: turns with forced answers on the witness, ended at every kind of event; the store's text
against what was served.
"""

import numpy as np
import pytest
from suffix_files import SHA, PowerFiles
from support import box, forced, joined, serve, tokens

from cache.account import Answer
from cache.suffix_store import SuffixConfig, SuffixStore
from engine.box import Box
from engine.events import Chunk, Ready, Tokens
from engine.prompt import Prompt
from engine.turn import turn
from engine.witness import Witness
from sim.clock import VirtualClock


def stored_box(**settings: object) -> Box:
    on = box(Witness(64, 2_048, vocab=499))
    config = SuffixConfig(**{"match_min": 2, **settings})  # type: ignore[arg-type]
    store = SuffixStore.open(PowerFiles(), SHA, config, VirtualClock(), on.jobs)  # type: ignore[arg-type]
    assert isinstance(store, SuffixStore)
    on.suffixes = store
    return on


def text(on: Box) -> list[list[int]]:
    """The store's documents."""
    assert on.suffixes is not None
    on.suffixes.settle()
    words = np.frombuffer(on.suffixes._index.array.text, ">i4").tolist()
    found: list[list[int]] = [[]]
    for word in words:
        if word == -1:
            found.append([])
        else:
            found[-1].append(word)
    return found[:-1]


def test_prompt_and_answer_are_added_and_then_what_is_new() -> None:
    on, prompt, answer = stored_box(), tokens(150), tokens(20, 1)
    serve(on, prompt, answer)
    assert text(on) == [joined(prompt, answer).tolist()]
    more = joined(prompt, answer, tokens(30, 2))
    serve(on, more, tokens(10, 3))
    assert text(on)[1] == joined(more[162:], tokens(10, 3)).tolist()


def test_nothing_is_added_before_the_job_runs() -> None:
    on = stored_box()
    serve(on, tokens(100), tokens(1, 1))
    assert on.suffixes is not None and on.suffixes.tokens == 0
    on.jobs.drain()
    assert on.suffixes.tokens == 101


@pytest.mark.parametrize(
    ("event", "kept"), [(Chunk, None), (Ready, 0), (Tokens, 1)], ids=["prefill", "ready", "answer"]
)
def test_a_caller_who_leaves(event: type, kept: int | None) -> None:
    """In the prefill: nothing. Later: the prompt, and what there was of the answer."""
    on, prompt, answer = stored_box(), tokens(150), tokens(20, 1)
    events = turn(on, Prompt(prompt), forced(answer), limit=20)
    for seen in events:
        if isinstance(seen, event):
            events.close()
    expected = [] if kept is None else [joined(prompt, answer[:kept]).tolist()]
    assert text(on) == expected


def test_a_forward_that_fails_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    on = stored_box()

    def fails(self: Witness, ids: np.ndarray, folded: int) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Witness, "_verify", fails)
    with pytest.raises(RuntimeError):
        serve(on, tokens(100), tokens(20, 1))
    assert text(on) == []


def test_hidden_tokens_are_left_out_of_the_answer_and_of_every_later_prompt() -> None:
    on, prompt, answer = stored_box(), tokens(150), np.arange(400, 420).astype(np.int32)
    serve(on, prompt, answer, read=lambda said: Answer(0, ((5, 3),)))
    rows = joined(prompt, answer)
    assert text(on) == [rows[:155].tolist(), rows[158:].tolist()]
    # Another conversation four times over, so that the whole prompt is new again.
    for other in range(4):
        serve(on, tokens(80, 10 + other), tokens(2, 20), session=f"o{other}", kind="title")
    assert on.suffixes is not None
    before = len(text(on))
    on.suffixes._recent._sequences.clear()
    serve(on, prompt, answer, read=lambda said: Answer(0, ((5, 3),)))
    serve(on, joined(rows, tokens(30, 2)), tokens(5, 3))
    added = text(on)[before:]
    assert added[0] == rows[:155].tolist() and added[1] == rows[158:].tolist()
    assert len(added) == 3 and not any(405 in p and 406 in p and 407 in p for p in added)


def test_a_picture_is_left_out() -> None:
    on = stored_box()
    prompt = tokens(100)
    on_store = on.suffixes
    assert on_store is not None
    prompt[40:60] = -12
    on_store.add(prompt, [7, 8])
    assert text(on) == [prompt[:40].tolist(), [*prompt[60:].tolist(), 7, 8]]


def test_the_rule_is_given_the_prompt_as_it_is_served() -> None:
    on, given = stored_box(), []
    rule = forced(tokens(5, 1))
    rule.begin = lambda ids: given.append(ids.tolist())  # type: ignore[method-assign]
    for _ in turn(on, Prompt(tokens(100)), rule, limit=5):
        pass
    assert given == [tokens(100).tolist()]
