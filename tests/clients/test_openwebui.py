"""Goal: the real Open WebUI works with the server for hours, and pays only for what is new.

Method: its web API, and its page in headless Chromium for a chat with a stop and a regenerated
answer, against `moorage serve --script` with the embedded random model. Reasoning never comes back
from this client and answers come back stripped, so every follow-up turn needs the alignment to
resume at the end. The asserts are on the server's journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moored import Moorage, Turn, follow
from PIL import Image
from processes import Processes
from sayings import CHAT_RULES, CHAT_TITLE, LONG_ANSWER
from webui import Page, WebUi, chromium

pytestmark = pytest.mark.clients

SIDES = ("title", "tags", "followups")


@pytest.fixture(scope="module")
def server(folder: Path, processes: Processes, webui_python: Path) -> Moorage:
    return Moorage(folder / "server", CHAT_RULES, processes, ["--window", "65536"])


@pytest.fixture(scope="module")
def webui(
    server: Moorage, folder: Path, processes: Processes, webui_python: Path
) -> Iterator[WebUi]:
    webui = WebUi(webui_python, folder / "data", server.address, server.model, processes)
    yield webui
    webui.close()


@pytest.fixture(scope="module")
def page(webui: WebUi, folder: Path, processes: Processes, modules: Path) -> Page:
    if chromium() is None:
        pytest.skip("there is no Chromium here")
    return Page(webui, modules, folder / "page", processes)


def quiet(server: Moorage, chat: str, answers: int) -> list[Turn]:
    """The chat's turns, once all that is asked beside so many answers is answered, too."""
    server.wait_turns(answers, chat, "turn")
    server.wait_turns(answers, chat, "followups")
    for kind in ("title", "tags"):
        server.wait_turns(1, chat, kind)
    return server.turns(chat, "turn")


def test_a_chat_goes_on_at_the_end_though_no_reasoning_comes_back(
    webui: WebUi, server: Moorage
) -> None:
    chat = webui.say("[rooms] Which rooms has a lighthouse?")
    for text in (
        "[blanks] Is it dark?",
        "[table] Compare two of them.",
        "[rooms] Which is higher?",
    ):
        webui.say(text, chat)
    turns = quiet(server, chat, 4)
    follow(turns)
    assert all(turn.finish == "stop" and turn.client == "openwebui" for turn in turns)
    server.wait("the title", lambda: webui.chat(chat)["title"] == CHAT_TITLE)


def test_side_requests_cost_the_conversation_no_rows(webui: WebUi, server: Moorage) -> None:
    chat = webui.say("[rooms] Which rooms has a mill?")
    quiet(server, chat, 1)
    webui.say("[blanks] Is it loud?", chat)
    follow(quiet(server, chat, 2))
    sides = server.turns(chat, *SIDES)
    assert len(sides) == 4
    assert all(side.guest or side.slot > 0 for side in sides), server.table()


def test_a_tool_of_the_page_is_called_and_answered(webui: WebUi, server: Moorage) -> None:
    chat = webui.say("[clock] What time is it?")
    webui.say("[rooms] And where is a clock?", chat)
    server.wait_turns(3, chat, "turn")
    server.wait_turns(2, chat, "followups")
    turns = server.turns(chat, "turn")
    # the message with the call is sent back without its thought within the turn, too
    follow(turns)


def test_two_chats_in_turns_find_their_rows(webui: WebUi, server: Moorage) -> None:
    chats = [webui.say(f"[rooms] Which rooms has a {house}?") for house in ("barn", "school")]
    for text in ("[blanks] Is it old?", "[table] Compare two of them."):
        for chat in chats:
            webui.say(text, chat)
    for chat in chats:
        follow(quiet(server, chat, 3))


def test_a_picture_is_sent_again_with_every_turn_and_read_once(
    webui: WebUi, server: Moorage, tmp_path: Path
) -> None:
    file = tmp_path / "red.png"
    Image.new("RGB", (224, 160), "red").save(file)
    chat = webui.say("[rooms] What is on this?", files=[webui.upload(file, "image/png")])
    webui.say("[blanks] And which colour?", chat)
    webui.say("[table] And the shapes?", chat)
    follow(quiet(server, chat, 3))


def test_canary_without_the_alignment_the_end_is_not_found(webui: WebUi, server: Moorage) -> None:
    server.set(alignment="off")
    try:
        chat = webui.say("[rooms] Which rooms has a tower?")
        webui.say("[blanks] Is it high?", chat)
        turns = quiet(server, chat, 2)
    finally:
        server.set(alignment="full")
    with pytest.raises(AssertionError):
        follow(turns)


def test_a_restart_in_the_middle_reads_the_chat_back(webui: WebUi, server: Moorage) -> None:
    chat = webui.say("[rooms] Which rooms has a castle?")
    webui.say("[blanks] Is it cold?", chat)
    quiet(server, chat, 2)
    server.stop()
    server.start()
    webui.say("[table] Compare two of them.", chat)
    turns = quiet(server, chat, 3)
    follow(turns)
    webui.say("[rooms] Which is warmer?", chat)
    follow(quiet(server, chat, 4))


def test_the_page_stops_an_answer_and_has_one_written_again(
    page: Page, webui: WebUi, server: Moorage
) -> None:
    page.begin()
    chat = page.say("[rooms] Which rooms has a ship?")
    page.say("[blanks] Is it wet?")
    follow(quiet(server, chat, 2))
    page.regenerate(chat)
    turns = server.wait_turns(3, chat, "turn")
    # the same prompt again: the copy at the end before it is a checkpoint now, or in the store
    assert turns[2].prompt == turns[1].prompt
    assert turns[2].begins_where_ended(turns[0]), server.table()
    page.say("[long] Tell me everything.", whole=False)
    page.shows("Room 3 holds a lamp")
    page.stop()
    stopped = page.answered(chat, "[long] Tell me everything.")
    assert LONG_ANSWER.startswith(stopped)
    turns = server.wait_turns(4, chat, "turn")
    assert turns[3].finish == "cancelled"
    page.say("[rooms] Shorter, please.")
    page.say("[blanks] And again?")
    turns = server.wait_turns(6, chat, "turn")
    follow(turns[2:4])
    # the page keeps some characters less than it was sent
    assert turns[4].cached >= turns[3].prompt, server.table()
    follow(turns[4:])
