"""Goal: requests that name no session get one that is theirs alone, and no text is kept of them.

Method: `serve.conversations` is told what Open WebUI sends without its headers, in the forms in
which it was recorded; a property drives several users whose first questions, and even answers, are
the same through turns in any order. Canaries: a rule that joins whatever shares a question welds
two users, and the property sees it; so does one that takes every edit for the same conversation.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from photos import data_url, photo
from rawlines import assistant, result, system, user

from engine.chat.gallery import Gallery
from engine.chat.messages import messages_of
from serve.conversations import CONVERSATIONS_MAX, Conversations, _Turn

KEY = b"k" * 16
CONTEXT = (
    "### Task:\nRespond to the user query using the provided context, incorporating inline "
    "citations.\n<context>\n<source id='1'>the garden</source>\n</context>\n\n"
)
FILES = '<attached_files>\n<file type="file" id="x"/>\n</attached_files>\n\n'


def session(known: Conversations, *messages: Any, kind: str = "turn", **how: Any) -> str | None:
    return known.session_of(kind, messages_of(list(messages)), **how)


def history(*lines: str) -> dict[str, Any]:
    """A side request that quotes questions and answers, in turn."""
    names = ("USER", "ASSISTANT")
    told = "\n".join(f"{names[n % 2]}: {line}" for n, line in enumerate(lines))
    return user(f"### Task:\nDo.\n### Chat History:\n<chat_history>\n{told}\n</chat_history>")


def test_a_conversation_goes_on_however_its_client_sends_it_back() -> None:
    known = Conversations(KEY)
    first = session(known, system("It is 10:00."), user("hello"))
    answer = assistant(" Hi. ", "I think.", ["c1", "f", '{"n": 10.0}'])
    assert first and first.startswith("auto-")
    # Another clock in the system text, a lost thought, stripped ends, a rewritten call.
    back = assistant("Hi.", "", ["c9", "f", '{"n":10}'])
    told = [user("hello"), answer, result("three files " * 9)]
    assert session(known, system("It is 10:01."), *told) == first
    parts = [{"type": "text", "text": text} for text in ("hel", "lo")]
    question = {"role": "user", "content": parts}
    told = [question, back, result("[cut]"), assistant("So."), user("on")]
    assert session(known, *told) == first
    assert session(known, *told) == first, "asked again"


def test_an_answer_that_goes_on_and_comes_back_longer() -> None:
    known = Conversations(KEY)
    first = session(known, user("write"), assistant("Once upon"))
    assert session(known, user("write"), assistant("Once upon\na time."), user("more")) == first


def test_a_question_with_a_file_is_wrapped_only_while_it_is_the_newest() -> None:
    known = Conversations(KEY)
    first = session(known, user(CONTEXT + FILES + "What does it say?"))
    told = [user(FILES + "What does it say?"), assistant("Much.")]
    assert session(known, *told, user(CONTEXT + "Anything else?")) == first
    told = [*told, user("Anything else?"), assistant("No.")]
    assert session(known, *told, user(CONTEXT + "Really?")) == first


def test_an_edit_of_the_newest_question_is_the_same_conversation() -> None:
    known = Conversations(KEY)
    told = [user("a"), assistant("A"), user("b"), assistant("B")]
    first = session(known, *told[:1])
    assert [session(known, *told[:3]), session(known, *told, user("c"))] == [first] * 2
    assert session(known, *told, user("c, edited")) == first
    assert session(known, *told, user("c, edited"), assistant("C"), user("d")) == first
    # Further back it may be another user's as well.
    other = session(known, *told[:3], assistant("other"), user("e"))
    assert other not in (None, first)
    assert session(known, *told[:2], user("b, edited")) not in (None, first, other)


def test_one_question_in_common_says_nothing() -> None:
    known = Conversations(KEY)
    told = [user("hi"), assistant("Hello!")]
    one = session(known, *told[:1])
    assert session(known, *told, user("of one")) == one
    # He begins where the other was: a conversation that went on is not the one that begins.
    other = session(known, *told[:1])
    assert other not in (None, one)
    assert session(known, *told, user("of the other")) == other
    assert session(known, *told, user("of one"), assistant("1"), user("again")) == one
    assert session(known, *told, user("of the other"), assistant("2"), user("again")) == other


def test_images_tell_questions_apart() -> None:
    known, gallery = Conversations(KEY), Gallery()

    def asked(number: int) -> str | None:
        image = {"type": "image_url", "image_url": {"url": data_url(photo(number))}}
        content = [image, {"type": "text", "text": "What is it?"}]
        messages = messages_of([{"role": "user", "content": content}], gallery.see)
        return known.session_of("turn", messages)

    assert asked(1) == asked(1) != asked(2)


@pytest.mark.parametrize("kind", ["tags", "followups", "title", "queries", "side"])
def test_a_side_request_belongs_to_whom_it_quotes(kind: str) -> None:
    known = Conversations(KEY)
    one = session(known, user(FILES + "first question"))
    other = session(known, user("second\nquestion"))
    assert session(known, history("first question", "an answer"), kind=kind) == one
    assert session(known, history("x", "y", "second\nquestion", ""), kind=kind) == other
    assert session(known, history("nobody's question"), kind=kind) is None
    assert session(known, history(" "), kind=kind) is None
    assert session(known, user("no history at all"), kind=kind) is None
    assert one is not None and other is not None
    # Two have asked it: it can't be told.
    assert session(known, user("other"), assistant("o"), user("first question")) is not None
    assert session(known, history("first question"), kind=kind) is None


def test_what_has_no_conversation() -> None:
    known = Conversations(KEY)
    assert session(known, user("Here is the conversation so far:"), kind="compaction") is None
    assert session(known, system("be kind")) is None
    assert session(known, assistant("I begin")) is None
    assert session(known, user("\ud83d")) is not None


def test_a_peek_changes_nothing() -> None:
    known = Conversations(KEY)
    before = pickle.dumps(known)
    peeked = session(known, user("a"), peeks=True)
    assert pickle.dumps(known) == before
    assert session(known, user("a")) == peeked
    assert session(known, user("a"), assistant("A"), user("b"), peeks=True) == peeked
    assert session(known, history("b"), kind="tags") is None


def test_names_are_the_same_after_a_restart_with_the_same_key() -> None:
    told = [user("a"), assistant("A"), user("b")]
    first = session(Conversations(KEY), *told[:1])
    assert session(Conversations(KEY), *told) == first
    assert session(Conversations(), *told) != session(Conversations(), *told)


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    known = Conversations(KEY, limit=3)
    names = [session(known, user(f"question {n}")) for n in range(3)]
    assert len(set(names)) == 3
    session(known, user("question 0"))
    session(known, user("question 3"))
    assert session(known, user("question 0"), assistant("A"), user("on")) == names[0]
    assert len(known._known) == len(known._ends) == 3
    assert names[1] not in known._known


def test_no_text_is_kept_and_what_is_kept_is_bounded() -> None:
    known = Conversations(KEY)
    for number in range(CONVERSATIONS_MAX + 100):
        told = [user(f"secret {number}"), assistant("secret" * 50), user("x")]
        session(known, system("secret"), *told)
    kept = pickle.dumps((known._known, known._ends))
    assert b"secret" not in kept and len(kept) < 250 * CONVERSATIONS_MAX
    assert len(known._known) == CONVERSATIONS_MAX


Users = tuple[int, bool, list[int]]


@st.composite
def users(draw: Any) -> Users:
    """How many questions all have in common, whether equal prompts get equal answers, and who
    speaks when.
    """
    count, common = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    order = [number for number in range(count) for _ in range(common + 3)]
    return common, draw(st.booleans()), draw(st.permutations(order))


def welded(known: Conversations, case: Users) -> list[str]:
    """What is wrong once every user has said something of his own, and one thing more."""
    common, greedy, order = case
    said: dict[int, list[Any]] = {}
    own: dict[int, list[str | None]] = {}
    for speaker in order:
        told = said.setdefault(speaker, [])
        turn = len(told) // 2
        told.append(user(f"common {turn}" if turn < common else f"{speaker} asks {turn}"))
        got = session(known, system(f"clock {len(order)}"), *told)
        own.setdefault(speaker, []).append(got)
        alone = turn >= common or not greedy
        told.append(assistant(f"answer {turn}" + (f" to {speaker}" if alone else "")))
    parted = common if greedy else 1
    after = {speaker: set(names[parted + 1 :]) for speaker, names in own.items()}
    wrong = [f"{speaker} is torn: {names}" for speaker, names in after.items() if len(names) > 1]
    every = [name for names in after.values() for name in names]
    return wrong + (["two are welded"] if len(set(every)) < len(every) else [])


@given(users())
def test_users_who_begin_alike_go_on_as_their_own(case: Users) -> None:
    assert welded(Conversations(KEY), case) == []


class Joins(Conversations):
    """Joins whatever shares a question: the plant."""

    def session_of(self, kind: str, messages: Any, *, peeks: bool = False) -> str | None:
        turn = self._turn(messages)
        assert turn is not None
        return f"auto-{turn.beginnings[0].hex()}"


class Edits(Conversations):
    """Takes every turn that parts from another for an edit of it: the plant."""

    def _edited(self, turn: _Turn) -> str | None:
        return next(iter(self._known), None)


@pytest.mark.parametrize("plant", [Joins, Edits])
def test_canary_welding_is_seen(plant: Callable[..., Conversations]) -> None:
    @settings(phases=[Phase.generate], database=None)
    @given(users())
    def planted(case: Users) -> None:
        assert welded(plant(KEY), case) == []

    with pytest.raises(AssertionError):
        planted()
