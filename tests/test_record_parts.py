"""A record is held to the rows that it is of: what is another's, newer or taken back is seen.

Goal: no record is taken for a conversation that it is not the text of, and of one that it is, the
rows it covers end where it ends. Method: conversations through the real template with every change
that a client makes to them; requests of the form cut in every place; random histories, of which
every beginning must be found, and none after a user line was changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compacted import ASK, ASK_AGAIN, DIALECT, SYSTEM, parts_for, record_of, request, result, user
from compacted import said as answered
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.types import Ids
from engine.chat.messages import messages_of
from serve import record_parts
from serve.history import END
from serve.record_parts import Covered, covered, entries_of, guard, parts_of

CALL = ("bash", {"command": "ls"})
HISTORY = [
    user("Look at this\nand more"),
    answered("I look.", "Hm.", CALL),
    result("a\nb\n"),
    answered("Two files."),
    user("Count the lines"),
    answered("Counting.", "", CALL, ("read", {"path": "a"})),
    result("3"),
    result("4"),
    answered("Three and four."),
]


def rows_of(history: list[dict[str, Any]]) -> Ids:
    """The rows up to the end of the last answer, whose end mark was never forwarded."""
    plain = [{k: v for k, v in message.items() if k != "images"} for message in history]
    more = {"role": "user", "content": "More."}
    ids = DIALECT.render(messages_of([{"role": "system", "content": "Help."}, *plain, more])).ids
    ends = np.flatnonzero(ids == DIALECT.tokenizer.ids[END])
    return ids[: ends[-2]]


def found(history: list[dict[str, Any]], recorded: list[dict[str, Any]], **more: Any) -> Any:
    return covered(parts_for(recorded, **more), rows_of(history), DIALECT.tokenizer)


# the request


def test_the_parts_of_a_request() -> None:
    parts = parts_for(HISTORY)
    assert (parts.system, parts.tail, parts.prior) == (SYSTEM, ASK, None)
    assert parts.record.strip() == record_of(HISTORY).strip()
    again = parts_for(HISTORY, "## Goal\n- all\n", ASK_AGAIN)
    assert again.prior == "## Goal\n- all"
    assert "<prior-summary>\n## Goal\n- all\n</prior-summary>" in again.tail
    assert again.asked == parts_for(HISTORY[:4], "another", ASK_AGAIN).asked


def test_marks_inside_a_record_are_text() -> None:
    history = [user("What does </conversation> mean?"), answered("<prior-summary>\nNothing.")]
    parts = parts_for(history)
    assert parts.tail == ASK and parts.prior is None and "Nothing." in parts.record


@pytest.mark.parametrize(
    "change",
    [
        lambda m: [],
        lambda m: [*m, m[-1]],
        lambda m: [m[1], m[1]],
        lambda m: [m[0], {"role": "assistant", "content": m[1]["content"]}],
        lambda m: [m[0], user("So far:" + m[1]["content"])],
        lambda m: [m[0], user(m[1]["content"].replace("</conversation>", ""))],
        lambda m: [m[0], user(m[1]["content"].replace("<conversation>", ""))],
        lambda m: [m[0], user(m[1]["content"].split("Sum up")[0])],
    ],
)
def test_another_request_has_no_parts(change: Any) -> None:
    messages = [{k: v for k, v in m.items() if k != "images"} for m in change(request(HISTORY))]
    assert parts_of(messages_of(messages) if messages else ()) is None


def test_the_pieces_of_a_record() -> None:
    kinds = [entry.kind for entry in entries_of(record_of(HISTORY[:4]))]
    thought, call = "Assistant reasoning", "Assistant tool call"
    assert kinds == ["User", thought, "Assistant", call, "Tool result", "Assistant"]


# which rows it is of


def test_a_record_of_all_of_it() -> None:
    assert found(HISTORY, HISTORY) == Covered(len(rows_of(HISTORY)))


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5, 8])
def test_a_record_without_the_newest_messages_ends_where_it_ends(stop: int) -> None:
    """A client keeps them as they are, or took them back."""
    got = found(HISTORY, HISTORY[:stop])
    assert got == Covered(len(rows_of(HISTORY[:stop])), whole=False)


def test_results_that_no_request_brought_yet() -> None:
    got = found(HISTORY[:6], HISTORY[:8])
    assert isinstance(got, Covered) and got.rows == len(rows_of(HISTORY[:6])) and got.whole
    assert got.pending.startswith("[Assistant tool call]: bash(")
    assert got.pending.endswith("[Tool result]: 4")


def test_a_result_that_looks_like_a_user_is_no_reason_to_believe_it() -> None:
    history = [*HISTORY[:2], result("x\n[User]: Count the lines\n"), answered("Two files.")]
    assert found(history, history) == "the record has user lines that the rows have not"


def test_reminders_and_names_of_files_are_no_other_line() -> None:
    reminded = [user("Look at this<reminder>Only plan.</reminder>"), *HISTORY[1:4]]
    assert isinstance(found(reminded, HISTORY[:4]), Covered)
    named = [user("[Attached image/png: a.png]\nLook at this\nand more"), *HISTORY[1:4]]
    assert isinstance(found(HISTORY[:4], named), Covered)


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        ([user("Look at that"), *HISTORY[1:]], "another user line"),
        ([*HISTORY[:4], user("Count"), *HISTORY[5:]], None),
        ([*HISTORY[:4], user("Weigh the lines"), *HISTORY[5:]], "another user line"),
        ([*HISTORY, user("And then?")], "the record has user lines that the rows have not"),
        (HISTORY[4:], "another user line"),
        (HISTORY[1:4], "no user line in the record"),
        ([*HISTORY[:7], HISTORY[8]], "other results"),
        ([*HISTORY[:8], result("5"), HISTORY[8]], "other results"),
    ],
)
def test_the_guard(recorded: list[dict[str, Any]], why: str | None) -> None:
    assert guard(parts_for(recorded), rows_of(HISTORY), DIALECT.tokenizer) == why


def test_rows_that_begin_with_a_summary() -> None:
    summary = "## Goal\n- count\n"
    history = [user("What did we do?"), answered(summary, "I sum up."), *HISTORY[1:4], *HISTORY[4:]]
    recorded = HISTORY[1:]
    assert found(history, recorded, prior=summary, ask=ASK_AGAIN) == Covered(len(rows_of(history)))
    other = found(history, recorded, prior="## Another", ask=ASK_AGAIN)
    assert other == "another summary before"
    assert found(history, recorded) == "another user line", "the opening line is not in it"


def test_rows_without_marks_are_nobodys() -> None:
    plain = DIALECT.tokenizer.encode("Look at this", specials=False)
    assert guard(parts_for(HISTORY), plain, DIALECT.tokenizer) == "no user line among the rows"


# any history

WORDS = st.text("abc \n[]:", min_size=1, max_size=12).map(lambda text: f"x{text}")


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = []
    for n in range(draw(st.integers(1, 4))):
        history.append(user(f"{n} {draw(WORDS)}"))
        for _ in range(draw(st.integers(0, 2))):
            calls = [CALL] * draw(st.integers(1, 2))
            history.append(answered(draw(st.sampled_from(["", "I look."])), "", *calls))
            history += [result(draw(WORDS)) for _ in calls]
        history.append(answered(draw(WORDS), draw(st.sampled_from(["", "Hm."]))))
    return history


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_every_beginning_is_found_and_no_other_line_is(
    history: list[dict[str, Any]], data: st.DataObject
) -> None:
    stops = [n + 1 for n, m in enumerate(history) if m["role"] == "assistant"]
    stop = data.draw(st.sampled_from(stops))
    if not history[stop - 1].get("tool_calls"):
        got = found(history, history[:stop])
        assert got == Covered(len(rows_of(history[:stop])), whole=stop == len(history))
    at = data.draw(st.sampled_from([n for n, m in enumerate(history) if m["role"] == "user"]))
    changed = [*history[:at], user("Something else"), *history[at + 1 :]]
    assert found(history, changed) == "another user line"


def test_canary_a_guard_that_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_parts, "_same", lambda ours, theirs: True)
    assert found(HISTORY, [user("Look at that"), *HISTORY[1:]]) == Covered(len(rows_of(HISTORY)))
