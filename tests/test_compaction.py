"""A compaction served as the conversation's continuation writes what a cold run of it writes.

Goal: the continuation resumes where the conversation ended, wherever its rows lie, and its greedy
tokens are a cold run's; what it was not asked about is not summed up; whatever can't be continued
is served as it was sent; nothing that served before is lost by it. Method: a client over the real
turn on the small random hybrid, with tools, thoughts and pictures, in place, pooled, on a drive.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compacted import DIALECT, SYSTEM, Client, cold, hybrid, result, said, text_of, user
from pictured import picture
from support import box, forced, serve, spill, tokens

from cache.account import COMPACTION
from cache.align import Alignment
from cache.keys import digest_of, key_ids
from cache.planned import drain
from engine.chat.messages import Show
from engine.events import Chunk, Resumed
from engine.prompt import Prompt
from engine.turn import turn
from serve import compaction
from serve.compaction import Continued, Miss
from sim.files import SimFiles

LONG = "Help with everything there is.\n" * 30
"""A system text of some chunks, as agents have."""


def continues(client: Client, **how: Any) -> Continued:
    made = client.asks(**how)
    assert isinstance(made, Continued), made
    return made


@pytest.fixture
def client() -> Client:
    made = Client.alone()
    made.works()
    return made


# what is served


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_resumes_at_the_end_and_writes_a_cold_runs_tokens(dtype: str) -> None:
    client = Client.alone(dtype)
    client.works()
    end = client.on.stack.end
    made = continues(client)
    assert made.whole and made.rows == end and made.forwarded == len(made.prompt.ids) - end < 80
    row, written = client.served(made)
    assert (row.kind, row.source, row.cached) == (COMPACTION, "end", end)
    if dtype == "float32":
        assert written == cold(client.on.engine, made.prompt)


def test_one_turn_asks_behind_an_empty_thought(client: Client) -> None:
    made = continues(client)
    text = text_of(made.prompt.ids[made.rows :])
    assert text.startswith(f"<|im_end|>\n<|im_start|>user\n{SYSTEM}\n\n")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert text.count("<|im_start|>") == 2
    assert (made.prompt.session, made.prompt.client) == ("a", "agent")
    assert made.prompt.last_user == made.rows


def test_results_that_no_request_brought_go_into_the_turn(client: Client) -> None:
    client.says("One more", said("I look.", "", ("bash", {"command": "ls"})))
    client.history.append(result("seven files"))
    made = continues(client)
    asked, before = text_of(made.prompt.ids[made.rows :]), text_of(made.prompt.ids[: made.rows])
    assert made.rows == client.on.stack.end
    assert "seven files" in asked and "seven files" not in before


def test_an_answer_cut_in_its_thought_is_ended_first() -> None:
    client = Client.alone()
    client.works(2)
    client.history.append(user("Think"))
    prompt = client.prompt(client.messages())
    open_thought = DIALECT.tokenizer.encode("I think and", specials=False)
    for _ in turn(client.on, prompt, forced(open_thought), len(open_thought)):
        pass
    client.history.append(said("", "I think and"))
    made = continues(client)
    text = text_of(made.prompt.ids[made.rows - 2 :])
    assert "\n</think>\n\n<|im_end|>\n<|im_start|>user\n" in text
    assert client.served(made)[1] == cold(client.on.engine, made.prompt)


def test_the_newest_messages_that_a_client_keeps_are_not_summed_up(client: Client) -> None:
    """Four messages of the last turn: the record ends in the one before."""
    made = continues(client, keep=4)
    text = text_of(made.prompt.ids)
    assert not made.whole and "number 1" in text and "number 2" not in text
    row, written = client.served(made)
    assert row.source in ("grid", "checkpoint") and row.cached > made.rows - 64 - 1
    assert written == cold(client.on.engine, made.prompt)


def test_all_of_it_where_that_is_wanted(client: Client) -> None:
    made = continues(client, keep=4, tail="whole")
    assert made.rows == client.on.stack.end and not made.whole


def test_a_second_compaction_builds_on_the_first() -> None:
    client = Client.alone()
    client.says("What did we do?", said("## Goal\n- count", "I sum up."))
    client.works(2)
    made = continues(client, prior="## Goal\n- count", skip=1)
    assert made.whole and "<prior-summary>\n## Goal\n- count\n" in text_of(made.prompt.ids)
    assert client.served(made)[1] == cold(client.on.engine, made.prompt)


# pictures


def shown(client: Client, seed: int) -> Show:
    made = picture(12, 16, seed)
    client.album[made.digest] = made
    return Show(made.digest, replace(made, patches=None), f"data:{seed}")


def test_a_conversation_with_pictures_is_continued_too() -> None:
    client = Client.alone(sees=True)
    client.says("Look", said("A cat.", "Hm."), shown(client, 1))
    client.says("And here", said("A dog.", "Hm."), shown(client, 2), shown(client, 3))
    client.works(1)
    made = continues(client)
    assert len(made.prompt.pictures) == 3
    row, written = client.served(made)
    assert row.source == "end" and written == cold(client.on.engine, made.prompt)


def test_a_picture_that_is_not_at_hand_is_a_miss() -> None:
    """Where the rows should not come, all of it is read, and nobody could read that."""
    client = Client.alone(sees=True)
    client.says("Look", said("A cat.", "Hm."), shown(client, 1))
    client.works(1)
    assert client.asks(album=lambda digest: None) == Miss("pictures")


def test_a_digest_comes_back_from_key_ids() -> None:
    for seed in range(20):
        digest = np.random.default_rng(seed).bytes(32)
        assert digest_of(key_ids(digest, 9 + seed)) == digest


# where the rows lie


def pair(**room: Any) -> tuple[Client, Client]:
    meeting = Alignment(DIALECT.tokenizer)
    on = box(hybrid(), meeting=meeting, **room)
    return Client(on, "a"), Client(on, "b", "Another system text.")


def test_a_pooled_conversation_comes_back_for_it() -> None:
    one, other = pair(park_rows=4_000)
    one.works()
    end = one.on.stack.end
    other.works()
    made = continues(one)
    row, written = one.served(made)
    assert (row.source, row.cached) == ("park.end", end)
    assert written == cold(one.on.engine, made.prompt)
    kept = [(entry.kind, entry.account.session) for entry in one.on.stack.park.entries]
    assert kept == [("park", "b")], "the other one is no head of its"
    other.says("Go on", said("Yes."))
    assert other.on.journal.rows[-1].source == "park.end"


def test_a_conversation_on_the_drive_comes_back_for_it() -> None:
    files = SimFiles()

    def starts() -> Client:
        of = hybrid()
        at = box(of, meeting=Alignment(DIALECT.tokenizer), spill=spill(files, of))
        return Client(at)

    client = starts()
    client.works()
    end, history = client.on.stack.end, client.history
    drain(client.on.stack, client.on.engine)
    assert client.on.stack.spill is not None
    client.on.stack.spill.close()
    client = starts()
    client.history = history
    made = continues(client)
    row, written = client.served(made)
    assert (row.source, row.cached) == ("spill.end", end)
    assert written == cold(client.on.engine, made.prompt)


# what is served as it was sent


def test_whatever_cannot_be_continued(client: Client) -> None:
    history = list(client.history)
    client.session = "nobody"
    assert client.asks() == Miss("no conversation")
    client.session = "a"
    client.history = [user("Something else"), *history[1:]]
    assert client.asks() == Miss("another user line")
    client.history = history
    client.on.engine.window = len(client.on.stack.rows) + 60
    assert client.asks() == Miss("window")


def test_a_request_that_names_no_session(client: Client) -> None:
    parts = compaction.CompactionParts("", "[User]: x", "sum up")
    sent = Prompt(tokens(9), None, kind=COMPACTION)
    assert compaction.continuation(client.on, DIALECT, sent, parts) == Miss("no session")


def test_rows_that_a_client_left_in_the_middle_of_are_not_summed_up(client: Client) -> None:
    """It left while a long message was read: of that the rows have a part."""
    client.history.append(user("Look at all of this. " * 80))
    events = turn(client.on, client.prompt(client.messages()), forced(tokens(3)), 3)
    next(event for event in events if isinstance(event, Chunk))
    next(events)
    events.close()
    client.history.pop()
    made = continues(client)
    assert "all of this" not in text_of(made.prompt.ids)
    assert client.served(made)[1] == cold(client.on.engine, made.prompt)


# what is left afterwards


def after(client: Client) -> Client:
    """The turn after: the same head, the summary in place of the conversation."""
    client.history = [user("What did we do?"), said("## Goal\n- count", "I sum up.")]
    client.says("Go on", said("Going on.", "Hm."))
    return client


def test_the_turn_after_resumes_at_the_head() -> None:
    """At its last line, and nothing of the conversation that was summed up is kept for it."""
    client = Client.alone(pin_rows=1_000, park_rows=2_000)
    client.system = LONG
    client.works(4)
    head = client.on.stack.resident.account.system
    client.served(continues(client))
    row = after(client).on.journal.rows[-1]
    assert (row.cached, row.source) == (head // 64 * 64, "grid") and row.cached > 100
    assert client.on.stack.park.entries == []


def test_as_it_was_sent_no_more_of_the_head_is_left() -> None:
    client = Client.alone(pin_rows=1_000, park_rows=2_000)
    client.system = LONG
    client.works(4)
    head = client.on.stack.resident.account.system
    serve(client.on, tokens(300, 5), tokens(9), session="a", kind=COMPACTION)
    assert 0 < after(client).on.journal.rows[-1].cached <= head // 64 * 64


def test_the_head_outlives_another_conversation_after_it() -> None:
    meeting = Alignment(DIALECT.tokenizer)
    on = box(hybrid(), meeting=meeting, pin_rows=1_500, park_rows=1_500)
    client, other = Client(on, "a", LONG), Client(on, "b", "Something else entirely.")
    client.works(3)
    client.served(continues(client))
    assert not client.on.stack.resident.account.goes_on
    other.works(2)
    assert [(e.kind, e.account.session) for e in on.stack.park.entries] == [("pin", "a")]
    row = after(client).on.journal.rows[-1]
    assert row.source == "park.grid" and row.cached >= 64


def test_a_client_that_goes_on_after_all_resumes_where_it_was(client: Client) -> None:
    end = client.on.stack.end
    client.served(continues(client))
    row = client.says("Rather not", said("Fine."))
    assert row.cached >= end - 1 and client.on.stack.resident.account.goes_on


def test_the_same_request_again(client: Client) -> None:
    """A client that lost the answer asks again: what asked for it is no part of the record."""
    first = continues(client)
    client.served(first)
    again = continues(client)
    assert (again.prompt.ids == first.prompt.ids).all()
    assert client.served(again)[1] == cold(client.on.engine, again.prompt)


def test_a_summed_up_conversation_is_not_written_to_the_drive() -> None:
    of = hybrid()
    store = spill(SimFiles(), of)
    client = Client(box(of, meeting=Alignment(DIALECT.tokenizer), spill=store))
    client.works(2)
    client.served(continues(client))
    assert drain(client.on.stack, of) == 0
    store.close()


def test_a_cancelled_compaction_leaves_the_conversation_what_it_was(client: Client) -> None:
    made = continues(client)
    events = turn(client.on, made.prompt, forced(tokens(3)), 3)
    assert isinstance(next(events), Resumed)
    events.close()
    assert client.on.stack.resident.account.goes_on


# canaries


def test_canary_an_answer_that_is_not_ended(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the end mark the turn would stand inside the answer."""
    monkeypatch.setattr(compaction, "closing", lambda before, dialect: before[:0])
    made = continues(client)
    assert not text_of(made.prompt.ids[made.rows :]).startswith("<|im_end|>")


def test_canary_the_pooled_rows_are_forgotten_before_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compaction drops its session's rows from the pool; not those that it starts from."""
    one, other = pair(park_rows=4_000)
    one.works()
    other.works()
    made = continues(one)
    forgot = type(one.on.stack.park).forget_session
    gone: list[int] = []

    def all_of_them(park: Any, session: str | None, but: object = None) -> None:
        forgot(park, session)
        gone.append(len(park.entries))

    monkeypatch.setattr(type(one.on.stack.park), "forget_session", all_of_them)
    one.served(made)
    assert gone == [0]
