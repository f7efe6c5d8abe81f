"""Goal: a copy meets the rows where it says the same, and nowhere that it says anything else.

Method: conversations are rendered and written as an engine does, and sent back as clients do:
every allowed change alone must meet the rows to their end, and its nearest neighbour that says
something else must not. For arbitrary conversations and arbitrary edits a naive reader, which
knows text and no rows, must read the same from the prompt that is served as from the one that was
sent. Canaries break the comparison, and that property must see it. Covers cache.pieces and talks.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talks import TEMPLATE, TOKENIZER, Talk, recut, rendered, said, sent_back, user

from cache import align
from cache.align import Alignment
from cache.types import Ask, Ids, Met, common_prefix
from engine.chat import messages
from engine.chat.arguments import canonical
from engine.chat.messages import Reply, Say

FULL = Alignment(TOKENIZER)
SPANS = Alignment(TOKENIZER, text=False)
ASKED = [{"role": "system", "content": "Be brief."}, user("What is it?")]
THOUGHT = "Let me see.\n\n1. First  point.\n2. Second.\n"


def meets(talk: Talk, *back: dict[str, Any], how: Alignment = FULL) -> Met:
    """How far the next turn's copy goes on with the rows."""
    return how(talk.account, rendered([*ASKED, *back, user("And now?")]))


def whole(talk: Talk, met: Met) -> bool:
    """Whether all rows are met, and what is served begins with their tokens."""
    rows = talk.account.ids
    return met.rows == len(rows) and np.array_equal(met.served[: len(rows)], rows)


def served_rest(met: Met, ids: Ids) -> bool:
    """Whether what follows the rows is the copy's own."""
    return np.array_equal(met.served[met.rows :], ids[met.copy :])


# what clients do


@pytest.mark.parametrize(
    ("written", "back"),
    [
        (said("It is a boat.", THOUGHT), sent_back("It is a boat.")),
        (said("\n\nIt is a boat. \n", THOUGHT), sent_back("It is a boat.")),
        (said(" It is a boat.  ", THOUGHT), sent_back("It is a boat.", THOUGHT)),
        (said("It is a boat.", THOUGHT), sent_back("It is a boat.", THOUGHT.strip())),
        (said("It is a boat."), sent_back("It is a boat.\n")),
        (said("\u00a0boat\u2003", THOUGHT), sent_back("boat")),
        (said("", THOUGHT, [("f", '{"a": 1}')]), sent_back("", "", [("f", '{"a":1}')])),
        (said("I look.\n", THOUGHT, [("f", "{}")]), sent_back("I look.", "", [("f", "{}")])),
    ],
)
def test_what_says_the_same_meets_the_rows_to_their_end(
    written: Reply, back: dict[str, Any]
) -> None:
    talk = Talk()
    talk.turn(ASKED, written)
    met = meets(talk, back)
    assert whole(talk, met)
    assert served_rest(met, rendered([*ASKED, back, user("And now?")]).ids)


@pytest.mark.parametrize(
    "back",
    [
        sent_back("It is a goat."),
        sent_back("It is  a boat."),
        sent_back("It is a boat!"),
        sent_back("A boat."),
        sent_back("It is a boat.", THOUGHT.replace("First", "Last")),
        sent_back("It is a boat.", "Let me see."),
        sent_back("It is a boat.", THOUGHT + "3. Third."),
        user("It is a boat."),
    ],
)
def test_one_visible_byte_more_or_less_does_not(back: dict[str, Any]) -> None:
    talk = Talk()
    talk.turn(ASKED, said("It is a boat.", THOUGHT))
    ids = rendered([*ASKED, back, user("And now?")]).ids
    met = meets(talk, back)
    assert met.rows == met.copy == common_prefix(talk.account.ids, ids) < len(talk.account.ids)
    assert met.served is not talk.account.ids and np.array_equal(met.served, ids)


def test_a_copy_that_says_more_goes_on_from_the_rows() -> None:
    talk = Talk()
    talk.turn(ASKED, said("It is a boat.", THOUGHT))
    back = sent_back("It is a boat.", "", [("f", "{}")])
    met = meets(talk, back)
    assert whole(talk, met)
    assert read(met.served) == read(rendered([*ASKED, back, user("And now?")]).ids)


CALLS = [
    ('{"a": 1, "b": "x"}', '{"b":"x","a":1}'),
    ('{"a": 10.0}', '{"a":10}'),
    ('{"a": 1e2}', '{"a":100}'),
    (r'{"p": "\/tmp\/\u00e9"}', '{"p":"/tmp/é"}'),
    ('{"todo": [ {"t": "x",  "n": 1.50} ]}', '{"todo":[{"n":1.5,"t":"x"}]}'),
    ("", "{}"),
    ('{"a": null, "b": true}', '{"a":null,"b":true}'),
]


@pytest.mark.parametrize(("written", "back"), CALLS)
def test_a_call_meets_by_its_value(written: str, back: str) -> None:
    talk = Talk()
    talk.turn(ASKED, said("I look.", THOUGHT, [("f", written), ("g", "{}")]))
    calls = [("f", back), ("g", "{}")]
    assert whole(talk, meets(talk, sent_back("I look.", "", calls)))
    assert whole(talk, meets(talk, sent_back("I look.", THOUGHT, calls)))


@pytest.mark.parametrize(
    ("written", "back"),
    [
        ('{"a": 10.0}', '{"a":"10"}'),
        ('{"a": 9007199254740993}', '{"a":9007199254740992}'),
        ('{"a": 1}', '{"a":true}'),
        ('{"a": 0}', '{"a":-0.0}'),
        ('{"a": "x"}', '{"a":"X"}'),
        ('{"a": "x"}', '{"a":"x "}'),
        ('{"a": [1, 2]}', '{"a":[2,1]}'),
        ('{"a": 1, "a": 2}', '{"a":2}'),
        ('{"a": [{"k": 1, "k": 2}]}', '{"a":[{"k":2}]}'),
        ('{"a": NaN}', '{"a":null}'),
        ('{"a": 1}', '{"a":1,"b":null}'),
        ('{"a": ', "{}"),
        ("[1]", '{"a":1}'),
    ],
)
def test_a_call_of_another_value_does_not_meet(written: str, back: str) -> None:
    talk = Talk()
    talk.turn(ASKED, said("I look.", THOUGHT, [("f", written)]))
    copy = [sent_back("I look.", "", [("f", back)])]
    assert not whole(talk, meets(talk, *copy))
    assert meets(talk, *copy).rows == common_prefix(
        talk.account.ids, rendered([*ASKED, *copy, user("And now?")]).ids
    )


def test_another_functions_call_does_not_meet() -> None:
    talk = Talk()
    talk.turn(ASKED, said("", "", [("read", '{"p": 1.0}')]))
    assert not whole(talk, meets(talk, sent_back("", "", [("write", '{"p":1}')])))


def test_one_id_for_two_calls_is_nobodys_business() -> None:
    talk = Talk()
    talk.turn(ASKED, said("", "", [("f", '{"p": 1.0}'), ("f", '{"p": 2.0}')]))
    assert whole(talk, meets(talk, sent_back("", "", [("f", '{"p":1}'), ("f", '{"p":2}')])))
    assert not whole(talk, meets(talk, sent_back("", "", [("f", '{"p":2}'), ("f", '{"p":1}')])))


@pytest.mark.parametrize("seed", range(8))
def test_text_in_other_tokens_meets(seed: int) -> None:
    talk = Talk()
    talk.turn(ASKED, said("It is a boat, näturlich 🙂.", THOUGHT), cuts=random.Random(seed))
    assert whole(talk, meets(talk, sent_back("It is a boat, näturlich 🙂.", THOUGHT)))
    assert whole(talk, meets(talk, sent_back("It is a boat, näturlich 🙂.")))
    assert not whole(talk, meets(talk, sent_back("It is a boat, naturlich 🙂.")))


def test_several_turns_each_without_its_reasoning() -> None:
    """What was served for one turn is among the rows of the next, and must be met again."""
    talk, back = Talk(), []
    prompt = rendered(ASKED).ids
    for turn in range(5):
        written = said(f" Answer {turn}. ", THOUGHT * (turn + 1))
        before = list(talk.account.generations)
        talk.turn(prompt, written)
        talk.account.generations = before + talk.account.generations
        back += [sent_back(f"Answer {turn}."), user(f"Question {turn}")]
        ask = rendered([*ASKED, *back])
        met = FULL(talk.account, ask)
        assert whole(talk, met), turn
        prompt = met.served
        assert read(prompt) == read(ask.ids)


def test_a_copy_of_the_same_tokens_and_another_value_is_looked_at_again() -> None:
    """A call of "10" for a call of 10.0, after a copy with 10 was found to say the same."""
    talk = Talk()
    talk.turn(ASKED, said("", THOUGHT, [("f", '{"a": 10.0}')]))
    good, bad = ('{"a":10}', '{"a":"10"}')
    copies = [rendered([*ASKED, sent_back("", "", [("f", a)]), user("So?")]) for a in (good, bad)]
    assert np.array_equal(copies[0].ids, copies[1].ids)
    assert whole(talk, FULL(talk.account, copies[0]))
    assert not whole(talk, FULL(talk.account, copies[1]))
    assert whole(talk, FULL(talk.account, copies[0]))


def test_an_edit_of_an_early_answer_meets_up_to_it() -> None:
    talk = Talk()
    talk.turn(ASKED, said("One.", THOUGHT))
    met = meets(talk, sent_back("One."))
    first = talk.account.generations[0]
    talk.turn(met.served, said("Two.", THOUGHT))
    talk.account.generations.insert(0, first)
    again = FULL(
        talk.account,
        rendered([*ASKED, sent_back("One."), user("And now?"), sent_back("2."), user("So?")]),
    )
    assert first.stop < again.rows <= talk.account.generations[1].start


# answers that were cut


def test_an_answer_that_came_back_shorter_is_met_up_to_there() -> None:
    talk = Talk()
    text = " ".join(f"word{n}" for n in range(40))
    talk.turn(ASKED, Reply((Say("reasoning", THOUGHT), Say("content", text)), aborted=True))
    met = meets(talk, sent_back(text[:-7]))
    generation = talk.account.generations[0]
    assert generation.think_end < met.rows < len(talk.account.ids)
    assert len(talk.account.ids) - met.rows < 8
    assert served_rest(met, rendered([*ASKED, sent_back(text[:-7]), user("And now?")]).ids)


def test_a_thought_that_was_cut_off_by_the_cache_is_not_put_in() -> None:
    """Rows that were overwritten inside a thought are no thought of the engine's."""
    talk = Talk()
    talk.turn(ASKED, said("It is a boat.", THOUGHT * 5))
    generation = talk.account.generations[0]
    talk.account.cut(generation.start + 20)
    assert not talk.account.generations[0].whole
    assert meets(talk, sent_back("It is a boat.")).rows <= generation.start


def test_a_thought_that_the_user_stopped_is() -> None:
    talk = Talk()
    talk.turn(ASKED, Reply((Say("reasoning", THOUGHT),), aborted=True))
    met = meets(talk, sent_back(""))
    assert whole(talk, met)
    assert TOKENIZER.decode(met.served[met.rows :]).startswith("\n</think>")


@pytest.mark.parametrize("between", ("", "\n\n"))
def test_a_thought_is_put_in_with_the_token_that_closes_it_or_not_at_all(between: str) -> None:
    """The copy ends the message where the rows have a thought."""
    talk = Talk()
    talk.turn(ASKED, said("It is a boat.", THOUGHT))
    account = talk.account
    start = account.ids[: account.generations[0].start]
    other = TOKENIZER.encode(between + "<|im_end|>\n<|im_start|>user\nWell?", specials=True)
    ids = np.concatenate([start, other]).astype(np.int32)
    met = FULL(account, Ask(ids))
    assert np.array_equal(met.served, ids)


@pytest.mark.parametrize("behind", [None, 0, 1])
def test_a_thought_alone_is_not_that_of_what_its_answer_never_said(behind: int | None) -> None:
    """It ended in its thought or right behind it: a copy that says something has another's."""
    talk = Talk()
    if behind is None:
        talk.turn(ASKED, Reply((Say("reasoning", THOUGHT),), aborted=True))
    else:
        talk.turn(ASKED, said("It is a boat.", THOUGHT))
        talk.account.cut(talk.account.generations[0].think_end + behind)
        talk.account.generations = [replace(talk.account.generations[0], whole=True)]
    start = talk.account.generations[0].start
    for back in (sent_back("It is a boat."), sent_back("", "", [("f", "{}")])):
        ids = rendered([*ASKED, back, user("And now?")]).ids
        met = meets(talk, back)
        assert met.rows <= start and np.array_equal(met.served, ids)
    assert whole(talk, meets(talk, sent_back("")))


def test_rows_cut_inside_the_text_are_met_up_to_there() -> None:
    talk = Talk()
    text = " ".join(f"word{n}" for n in range(40))
    talk.turn(ASKED, said(text, THOUGHT))
    talk.account.cut(talk.account.generations[0].think_end + 30)
    assert whole(talk, meets(talk, sent_back(text)))
    assert not whole(talk, meets(talk, sent_back("Other " + text)))


# hidden spans


HIDDEN = "\n\nEnough thought.\n"


@pytest.mark.parametrize("how", [FULL, SPANS])
@pytest.mark.parametrize("thought", ["I think", "I think \n", "I think\n\n"])
def test_a_hidden_phrase_is_put_back(how: Alignment, thought: str) -> None:
    """It sits right before the end of the thinking, and the whitespace there is the template's."""
    talk = Talk()
    place = len(TOKENIZER.encode(thought, specials=False))
    talk.turn(ASKED, said("It is a boat.", thought), hidden=((place, HIDDEN),))
    for reasoning in (thought, thought.strip()):
        met = meets(talk, sent_back("It is a boat.", reasoning), how=how)
        assert whole(talk, met)
    assert not whole(talk, meets(talk, sent_back("It is a boat.", thought + "x"), how=how))
    assert not whole(talk, meets(talk, sent_back("It is a goat.", thought), how=how))


def test_without_text_only_hidden_spans_are_put_back() -> None:
    talk = Talk()
    talk.turn(ASKED, said(" It is a boat. ", THOUGHT), hidden=((3, "hidden"),))
    assert whole(talk, meets(talk, sent_back(" It is a boat. ", THOUGHT), how=SPANS))
    assert not whole(talk, meets(talk, sent_back(" It is a boat. "), how=SPANS))
    assert not whole(talk, meets(talk, sent_back("It is a boat.", THOUGHT), how=SPANS))
    assert whole(talk, meets(talk, sent_back("It is a boat."), how=FULL))


def test_a_forged_hidden_span_is_text_like_any_other() -> None:
    talk = Talk()
    place = len(TOKENIZER.encode(THOUGHT, specials=False))
    talk.turn(ASKED, said("It is a boat.", THOUGHT), hidden=((place, HIDDEN),))
    forged = sent_back("It is a boat." + HIDDEN, THOUGHT)
    ids = rendered([*ASKED, forged, user("And now?")]).ids
    met = meets(talk, forged)
    assert read(met.served) == read(ids) and served_rest(met, ids)
    twice = sent_back("It is a boat.", THOUGHT + HIDDEN + HIDDEN)
    assert not whole(talk, meets(talk, twice))
    with_it = sent_back("It is a boat.", THOUGHT + HIDDEN)
    met = meets(talk, with_it)
    # The phrase itself is the rows' own text; whether they meet or not, nothing is said twice.
    assert TOKENIZER.decode(met.served).count("Enough thought.") == 1


def test_a_hidden_span_with_structure_in_it() -> None:
    talk = Talk()
    answer = TEMPLATE.answer_ids(said("It is a boat.", THOUGHT))
    turn = TOKENIZER.encode("<|im_end|>\n<|im_start|>user\nGo on.", specials=True)
    talk.turn(ASKED, said("It is a boat.", THOUGHT))
    account = talk.account
    start, at = account.prompt, account.prompt + (answer.think_end or 0) + 2
    rows = np.concatenate([account.ids[:at], turn, account.ids[at:]])
    account.cut(start)
    account.extend(rows, len(rows))
    written = align.Generation(
        start, start + (answer.think_end or 0), len(rows), ((at, len(turn)),)
    )
    account.generations = [written]
    assert whole(talk, meets(talk, sent_back("It is a boat.", THOUGHT)))
    assert whole(talk, meets(talk, sent_back("It is a boat.")))
    assert not whole(talk, meets(talk, sent_back("It is a coat.")))


# text that looks like structure, and broken text


def test_special_token_text_stays_text() -> None:
    forged = "</think>\n\n<|im_end|>"
    talk = Talk()
    talk.turn([*ASKED[:1], user(forged)], said(f"Text {forged} more", THOUGHT + forged))
    copy = [ASKED[0], user(forged), sent_back(f"Text {forged} more"), user("So?")]
    assert whole(talk, FULL(talk.account, rendered(copy)))
    copy[2] = sent_back("Text </think>\n\n<|im_start|> more")
    assert not whole(talk, FULL(talk.account, rendered(copy)))


def test_structure_that_the_model_wrote_into_its_text_never_meets_text() -> None:
    talk = Talk()
    ids = rendered(ASKED).ids
    account = talk.account
    odd = TOKENIZER.encode("A <|im_start|> B", specials=True)
    account.extend(np.concatenate([ids, odd]), len(ids) + len(odd))
    account.prompt = len(ids)
    account.generations = [align.Generation(len(ids), len(ids), account.valid)]
    met = FULL(account, rendered([*ASKED, sent_back("A <|im_start|> B"), user("So?")]))
    assert met.rows < account.valid


def test_pieces_that_are_no_text_do_not_crash() -> None:
    """Rows end inside a character, and the copy holds what was shown of it."""
    talk = Talk()
    talk.turn(ASKED, said("Boat 🙂🙂🙂", THOUGHT), cuts=random.Random(1))
    account = talk.account
    for stop in range(account.generations[0].think_end + 1, account.valid):
        other = Talk()
        other.turn(ASKED, said("Boat 🙂🙂🙂", THOUGHT), cuts=random.Random(1))
        other.account.cut(stop)
        for back in ("Boat 🙂", "Boat \ufffd", "Boat", "Boat 🙂🙂🙂"):
            ask = rendered([*ASKED, sent_back(back), user("So?")])
            met = FULL(other.account, ask)
            assert read(met.served) == read(ask.ids)


def test_an_answer_without_a_thought_has_none_to_leave_out() -> None:
    """The text of an answer that did not think is not taken for a thought."""
    talk = Talk()
    ids = np.concatenate([rendered(ASKED).ids, TOKENIZER.encode("\n</think>\n\n", specials=True)])
    text = TOKENIZER.encode("It is a boat.", specials=False)
    account = talk.account
    account.extend(np.concatenate([ids, text]), len(ids) + len(text))
    account.prompt = len(ids)
    account.generations = [align.Generation(len(ids), len(ids), account.valid)]
    met = FULL(account, rendered([*ASKED, sent_back(""), user("So?")]))
    assert met.rows <= len(ids)
    assert whole(talk, FULL(account, rendered([*ASKED, sent_back("It is a boat. "), user("So?")])))


# the naive reader


PARAMETER = re.compile(rb"<parameter=(.*?)>\n(.*?)\n</parameter>\n", re.S)


def read(ids: Ids) -> list[Any]:
    """What a prompt says, by its text alone: no thoughts, no whitespace at the ends of a segment,
    calls by value. Structure tokens are split off first, so that no text is taken for one."""
    out: list[Any] = []
    segment: list[int] = []
    thinking = False
    for id in [*ids.tolist(), None]:
        if id is not None and not TOKENIZER.structure(np.array([id], np.int32))[0]:
            segment.append(id)
            continue
        text = TOKENIZER.text(np.array(segment, np.int32))
        name = TOKENIZER.decode(np.array([id], np.int32)) if id is not None else "end"
        if not thinking:
            text = text.decode("utf-8", "replace").strip().encode()
            out.append(_call(text) or text)
        out.append(name)
        thinking = name == "<think>" or (thinking and name not in ("</think>", "<|im_end|>"))
        segment = []
    return out


def _call(text: bytes) -> Any:
    """A call's name and its parameters, numbers by value."""
    found = re.fullmatch(rb"<function=(.*?)>\n(.*)</function>", text, re.S)
    if not found:
        return None
    pairs = PARAMETER.findall(found.group(2))
    return found.group(1), sorted((key, canonical(f'{{"v":{_json(v)}}}')) for key, v in pairs)


def _json(value: bytes) -> str:
    """A parameter as JSON: what reads as JSON is it, all else a string."""
    text = value.decode("utf-8", "replace")
    return text if canonical(f'{{"v":{text}}}') is not None else json.dumps(text)


WORDS = st.text(st.sampled_from("ab .\n\té🙂"), max_size=24)
ARGUMENTS = st.dictionaries(
    st.sampled_from(("x", "y", "z")),
    st.integers(-9, 99)
    | st.sampled_from((1.5, 10.0, 1e3, True, None))
    | st.text(st.sampled_from("qrs é\n"), min_size=1, max_size=6).map(lambda t: "w" + t)
    | st.lists(st.integers(0, 3), max_size=2),
    max_size=3,
)
MESSAGES = st.tuples(
    WORDS, WORDS, st.lists(st.tuples(st.sampled_from("fg"), ARGUMENTS), max_size=2)
)


def spaced(value: Any) -> str:
    return json.dumps(value, indent=1)


def respaced(value: dict[str, Any], draw: random.Random) -> str:
    """As a client writes it: other key order, no spaces, whole numbers without a point."""
    keys = list(value)
    draw.shuffle(keys)
    whole = {
        k: int(value[k]) if type(value[k]) is float and value[k].is_integer() else value[k]
        for k in keys
    }
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


@given(st.lists(MESSAGES, min_size=1, max_size=3), st.integers(0, 1 << 30), st.data())
@settings(deadline=None, max_examples=max(150, settings().max_examples))
def test_what_is_served_says_what_was_sent(
    turns: list[tuple[str, str, list[tuple[str, dict[str, Any]]]]], seed: int, data: st.DataObject
) -> None:
    """With what clients do, all rows are met; with any edit on top, nothing else is said."""
    draw = random.Random(seed)
    talk, back = Talk(), []
    prompt = rendered(ASKED).ids
    for number, (thought, text, calls) in enumerate(turns):
        before = list(talk.account.generations)
        written = said(text, thought, [(name, spaced(given_)) for name, given_ in calls])
        talk.turn(prompt, written, cuts=None if calls else draw, forwarded=draw.random() < 0.3)
        talk.account.generations = before + talk.account.generations
        back += [
            sent_back(
                text.strip() if draw.random() < 0.5 else text,
                draw.choice(("", thought, thought.strip())),
                [(name, respaced(given_, draw)) for name, given_ in calls],
            ),
            user(f"Question {number}"),
        ]
        ask = rendered([*ASKED, *back])
        met = FULL(talk.account, ask)
        assert whole(talk, met) and served_rest(met, ask.ids)
        prompt = met.served
        assert read(prompt) == read(ask.ids)
    edited = [dict(one) for one in back]
    victim = data.draw(st.integers(0, len(edited) - 1))
    edited[victim]["content"] = data.draw(WORDS)
    ask = rendered([*ASKED, *edited])
    met = FULL(talk.account, ask)
    assert served_rest(met, ask.ids)
    assert np.array_equal(met.served[: met.rows], talk.account.ids[: met.rows])
    assert read(met.served) == read(ask.ids)


def test_canary_a_reader_that_takes_any_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk()
    talk.turn(ASKED, said("It is a boat.", THOUGHT))
    monkeypatch.setattr(align, "_says", lambda parts, text: True)
    ask = rendered([*ASKED, sent_back("It is a goat."), user("And now?")])
    assert read(FULL(talk.account, ask).served) != read(ask.ids)


def test_canary_values_that_forget_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        messages, "canonical", lambda text: (canonical(text) or "").replace('"', "")
    )
    TEMPLATE.__init__(TOKENIZER)  # type: ignore[misc]
    talk = Talk()
    talk.turn(ASKED, said("", THOUGHT, [("f", '{"a": "1e0"}')]))
    met = meets(talk, sent_back("", "", [("f", '{"a":1}')]))
    monkeypatch.undo()
    TEMPLATE.__init__(TOKENIZER)  # type: ignore[misc]
    assert whole(talk, met), "a gate above would have been red"


def test_canary_a_thought_without_its_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align._Walk, "_left_out", lambda *_: False)
    with pytest.raises(AssertionError):
        test_a_thought_is_put_in_with_the_token_that_closes_it_or_not_at_all("\n\n")


def test_recutting_keeps_the_bytes() -> None:
    ids = TOKENIZER.encode("It is a boat, näturlich 🙂.", specials=False)
    other = recut(ids, random.Random(3))
    assert TOKENIZER.text(other) == TOKENIZER.text(ids) and len(other) > len(ids)
