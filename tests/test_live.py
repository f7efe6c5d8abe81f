"""A raw recording replays with its own tokens, and its scrubbed trace knows the same values.

Method: a made-up recording of a tool loop whose client writes every call's arguments anew and
leaves the reasoning out. Its tokens are held to the template's; the replay of the recording and
that of its scrubbed trace must know the same values. A second one, of a chat whose answers come
back stripped, has structure and blanks of its own around every answer: its scrubbed trace resumes
as the recording does only if it names them. Covers replay.source and replay.live.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rawlines import TOOLS, assistant, own, result, user, write

from cache.types import Valued
from engine.chat.messages import messages_of
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from replay import scrub
from replay.driver import Options, Replay
from replay.ledger import LedgerRow
from replay.readers.raw import read
from replay.tokens import Tokens
from replay.trace import Request, Run, Trace, values
from replay.tracefile import read_trace, write_trace
from sim.profile import load

BOARD = replace(load("spark-27b"), grid=64, window=8_192, drafts=2)
TEMPLATE = Template(Tokenizer())
TURNS = 5


def recording(path: Path) -> Path:
    """A tool loop: 10.0 comes back as 10, and no thought comes back."""
    lines, messages = [], [user("word " * 200)]
    for turn in range(TURNS):
        written = f'{{"n": {turn}.0, "list": [ 1,  2 ]}}'
        parts = [
            ["reasoning", "I think. " * 9],
            ["content", f"Text {turn}."],
            ["tool", "c1", "f", written],
        ]
        lines.append(own(10.0 * turn, messages, parts, session="a", finish="tool_calls"))
        back = assistant(f"Text {turn}.", "", ["c1", "f", f'{{"n":{turn},"list":[1,2]}}'])
        messages = [*messages, back, result("done " * 30)]
    return write(path, *lines)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read(recording(tmp_path_factory.mktemp("raw") / "loop.jsonl"))


def served(trace: Trace, alignment: str) -> list[LedgerRow]:
    rows = list(Replay([trace], Options(replace(BOARD, alignment=alignment))))
    assert all(row.checked is not None and not row.failure for row in rows)
    return rows


def test_the_tokens_are_the_templates(recorded: Trace) -> None:
    live = recorded.live
    assert live is not None
    for request in recorded.requests:
        assert len(live.prompt(request.number)) == request.prompt_tokens
        assert len(live.output(request.number)) == request.output_tokens
    first = TEMPLATE.render(messages_of([user("word " * 200)]), TOOLS)
    assert np.array_equal(live.prompt(0), first.ids)
    (span,) = live.output_values(0)
    assert TEMPLATE.tokenizer.decode(live.output(0)[span.start : span.stop]).startswith("<tool_ca")
    assert [s.value for s in live.prompt_values(TURNS - 1)] == [
        live.output_values(turn)[0].value for turn in range(TURNS - 1)
    ]


def test_aligned_it_resumes_at_every_end(recorded: Trace) -> None:
    rows = served(recorded, "full")
    assert [row.source for row in rows[1:]] == ["end"] * (TURNS - 1)
    assert all(row.end_resume for row in rows[1:])


@pytest.mark.parametrize("alignment", ["off", "spans"])
def test_canary_compared_by_tokens_it_parts(recorded: Trace, alignment: str) -> None:
    assert not any(row.source == "end" for row in served(recorded, alignment))


def test_a_scrubbed_trace_keeps_which_calls_say_the_same(recorded: Trace, tmp_path: Path) -> None:
    write_trace(recorded, tmp_path / "loop.jsonl")
    assert "done" not in (tmp_path / "loop.jsonl").read_text()
    scrubbed = read_trace(tmp_path / "loop.jsonl")
    assert scrubbed.live is None
    tokens, live = Tokens(scrubbed, vocab=BOARD.vocab), recorded.live
    assert live is not None
    for request in scrubbed.requests:
        ours = [(s.start, s.stop) for s in tokens.prompt_values(request.number)]
        assert ours == [(s.start, s.stop) for s in live.prompt_values(request.number)]
        ours = [(s.start, s.stop) for s in tokens.output_values(request.number)]
        assert ours == [(s.start, s.stop) for s in live.output_values(request.number)]


@pytest.mark.parametrize("alignment", ["off", "spans", "full"])
def test_a_scrubbed_trace_resumes_as_the_recording_does(
    recorded: Trace, tmp_path: Path, alignment: str
) -> None:
    write_trace(recorded, tmp_path / "loop.jsonl")
    ours = served(read_trace(tmp_path / "loop.jsonl"), alignment)
    theirs = served(recorded, alignment)
    assert [(r.source, r.cached, r.prompt) for r in ours] == [
        (r.source, r.cached, r.prompt) for r in theirs
    ]


def chat(path: Path) -> Path:
    """A chat: no thought comes back, and answers without the blanks they begin with."""
    lines, messages = [], [user("word " * 200)]
    for turn in range(TURNS):
        parts = [["reasoning", "I think. " * 9], ["content", f"\n\nYes, {turn} times."]]
        lines.append(own(10.0 * turn, messages, parts, session="a"))
        messages = [*messages, assistant(f"Yes, {turn} times."), user(f"Why {turn}? " * 30)]
    return write(path, *lines)


def scrubbed_as_the_recording(folder: Path) -> tuple[list[str], list[str]]:
    """Where the requests of the chat resume, scrubbed and recorded."""
    recorded = read(chat(folder / "chat.jsonl"))
    write_trace(recorded, folder / "trace.jsonl")
    both = (read_trace(folder / "trace.jsonl"), recorded)
    scrubbed, live = ([row.source for row in served(trace, "full")] for trace in both)
    return scrubbed, live


def test_a_scrubbed_trace_names_the_structure_around_answers(tmp_path: Path) -> None:
    scrubbed, live = scrubbed_as_the_recording(tmp_path)
    assert scrubbed == live == ["cold"] + ["end"] * (TURNS - 1)


def test_canary_structure_without_names_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "names", lambda tokenizer: np.full(tokenizer.vocab, -1, np.int64))
    scrubbed, live = scrubbed_as_the_recording(tmp_path)
    assert "end" not in scrubbed and live[1:] == ["end"] * (TURNS - 1)


def test_values_come_along_with_the_runs_that_copy_them_whole() -> None:
    first = Request(0, "a", 0.0, (Run(-1, 0, 30),), (Run(-1, 0, 10),), values=((5, 10, 7),))
    found = {0: values(first, {})}
    assert found[0] == [Valued(5, 15, 7)]
    moved = Request(1, "b", 0.0, (Run(-1, 0, 3), Run(0, 4, 20)), ())
    assert values(moved, found) == [Valued(4, 14, 7)]
    cut = Request(1, "b", 0.0, (Run(0, 0, 14),), ())
    assert values(cut, found) == []
    own = Request(1, "b", 0.0, (Run(0, 0, 30),), (), values=((5, 10, 8), (20, 2, 7)))
    assert values(own, found) == [Valued(5, 15, 8), Valued(20, 22, 7)]
