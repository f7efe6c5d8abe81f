"""Goal: the real opencode works with the server for hours, and pays only for what is new.

Method: `opencode serve` over its HTTP API in scratch repositories, against `moorage serve
--script` with the embedded random model. opencode runs the tools that the script calls. The asserts
are on the server's journal: every request resumes where the generation before it ended, except
where opencode takes something back that was said.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moored import Moorage, Turn, follow
from opencode import Opencode, make_project, text_of, tools_of
from processes import Processes
from sayings import CODER_RULES, LONG_LINES, STEADY_LINES, SUMMARY, TITLE

pytestmark = pytest.mark.clients

CONTEXT_TOKENS = 65_536
FILES = {
    "README.md": "# harbour\n\nA scratch project.\n",
    "AGENTS.md": "# Rules\n\n- Use plain Python.\n- Keep functions short.\n",
    "src/app.py": 'def main():\n    print("hello")\n\n\nif __name__ == "__main__":\n    main()\n',
}


@pytest.fixture(scope="module")
def server(folder: Path, processes: Processes, modules: Path) -> Moorage:
    return Moorage(folder / "server", CODER_RULES, processes, ["--window", str(CONTEXT_TOKENS)])


@pytest.fixture(scope="module")
def coder(server: Moorage, folder: Path, processes: Processes, modules: Path) -> Iterator[Opencode]:
    home = folder / "home"
    opencode = Opencode(modules, home, server.address, server.model, processes, CONTEXT_TOKENS)
    yield opencode
    opencode.close()


@pytest.fixture
def project(folder: Path, request: pytest.FixtureRequest) -> Path:
    return make_project(folder / "work" / request.node.name, FILES)


def survey(
    coder: Opencode, server: Moorage, project: Path, who: str = "me"
) -> tuple[str, list[Turn]]:
    """A new session and its first turn: two steps with tools, then the answer."""
    session = coder.begin(project)
    said = coder.say(project, session, f"[survey] Get to know this folder for {who}.")
    assert said == "It holds one program, `src/app.py`."
    turns = server.wait_turns(3, session, "turn")
    follow(turns)
    return session, turns


def test_a_session_with_tools_goes_on_at_the_end_of_every_answer(
    coder: Opencode, server: Moorage, project: Path
) -> None:
    session, _ = survey(coder, server, project)
    said = coder.say(project, session, "[change] Add a module that adds numbers.")
    assert said == "Done: `src/sums.py` adds, and says so."
    assert "def add(a, b)" in (project / "src/sums.py").read_text()
    coder.say(project, session, "[talk] Is that all?")
    coder.say(project, session, "[search] Where is it used?")
    tools = tools_of(coder.messages(project, session))
    assert {name for name, _ in tools} == {"bash", "glob", "read", "write", "edit", "grep"}
    assert {state for _, state in tools} == {"completed"}
    turns = server.turns(session, "turn")
    assert len(turns) == 3 + 5 + 1 + 2
    follow(turns)
    assert all(turn.finish == "stop" and turn.client == "opencode" for turn in turns)


def test_the_title_is_asked_for_beside_the_first_turn_and_costs_it_nothing(
    coder: Opencode, server: Moorage, project: Path
) -> None:
    session, _ = survey(coder, server, project)
    title = server.wait_turns(1, session, "title")[0]
    assert title.finish == "stop"
    server.wait("the title in opencode", lambda: coder.title(project, session) == TITLE)
    coder.say(project, session, "[talk] Go on.")
    follow(server.wait_turns(4, session, "turn"))


def test_two_sessions_take_turns_and_both_find_their_rows(
    coder: Opencode, server: Moorage, project: Path
) -> None:
    sessions = [survey(coder, server, project, who)[0] for who in ("ann", "ben")]
    for _ in range(2):
        for session in sessions:
            coder.say(project, session, "[talk] And now you.")
    for session in sessions:
        turns = server.wait_turns(5, session, "turn")
        follow(turns)
        assert turns[-1].source == "park.end"
    # the head of a second session in the same folder is not read again
    assert server.turns(sessions[1], "turn")[0].cached > 4_096


def test_an_answer_stopped_in_its_text_is_gone_on_from(
    coder: Opencode, server: Moorage, project: Path
) -> None:
    session, _ = survey(coder, server, project)
    coder.cut(project, session, "[long] Tell me everything.", "text", 200)
    turns = server.wait_turns(4, session, "turn")
    assert turns[-1].finish == "cancelled" and turns[-1].output > 0
    left = text_of(coder.messages(project, session)[-1])
    assert left and LONG_LINES.startswith(left)
    coder.say(project, session, "[talk] Shorter, please.")
    turns = server.wait_turns(5, session, "turn")
    follow(turns[:4])
    # what was said and not seen, or seen and not kept, is all that parts the two
    assert turns[4].cached >= turns[3].prompt, server.table()
    coder.say(project, session, "[talk] And again.")
    follow(server.wait_turns(6, session, "turn")[4:])


def test_an_answer_stopped_in_its_thought_is_taken_back(
    coder: Opencode, server: Moorage, project: Path
) -> None:
    session, _ = survey(coder, server, project)
    coder.cut(project, session, "[ponder] Think hard.", "reasoning", 200)
    assert server.wait_turns(4, session, "turn")[-1].finish == "cancelled"
    coder.say(project, session, "[talk] Never mind.")
    turns = server.wait_turns(5, session, "turn")
    # opencode drops the message with the thought, so the end of the prompt is new
    follow(turns, {4: "parted"})
    coder.say(project, session, "[talk] And again.")
    follow(server.wait_turns(6, session, "turn")[4:])


def test_a_sub_agent_works_beside_and_the_conversation_stays(
    coder: Opencode, server: Moorage, project: Path
) -> None:
    session, _ = survey(coder, server, project)
    said = coder.say(project, session, "[delegate] Have the files counted.")
    assert said == "The helper counted them."
    (helper,) = coder.children(project, session)
    helps = server.wait_turns(2, helper, "subagent")
    follow(helps)
    follow(server.wait_turns(5, session, "turn"))
    assert server.turns(session, "turn")[-1].source == "park.end"


def test_a_compaction_goes_on_with_the_conversation(
    coder: Opencode, server: Moorage, project: Path
) -> None:
    session, _ = survey(coder, server, project)
    coder.say(project, session, "[change] Add a module that adds numbers.")
    before = server.wait_turns(8, session, "turn")
    follow(before)
    coder.compact(project, session)
    (compaction,) = server.wait_turns(1, session, "compaction")
    assert server.events(session, "compaction") == ["continuation"]
    assert compaction.source == "continuation", server.table()
    assert compaction.begins_where_ended(before[-1]), server.table()
    assert any(SUMMARY in text_of(m) for m in coder.messages(project, session))
    coder.say(project, session, "[talk] Go on.")
    coder.say(project, session, "[search] Where is it used?")
    after = server.turns(session, "turn")[8:]
    # the summary stands where the conversation stood: the head alone is as it was
    assert after[0].cached > 4_096 and after[0].why == "parted", server.table()
    follow(after)


def test_a_restart_in_the_middle_reads_the_conversation_back(
    coder: Opencode, server: Moorage, project: Path
) -> None:
    session, _ = survey(coder, server, project)
    other, _ = survey(coder, server, project, "ben")
    coder.say(project, other, "[talk] Before the stop.")
    server.stop()
    server.start()
    coder.say(project, other, "[change] Add a module that adds numbers.")
    turns = server.wait_turns(9, other, "turn")
    follow(turns)
    assert turns[4].source == "end", server.table()
    # the one that was not in place at the stop lies on the drive
    coder.say(project, session, "[talk] After the stop.")
    turns = server.wait_turns(4, session, "turn")
    follow(turns)
    assert turns[3].source == "spill.end", server.table()


def test_an_answer_that_a_stop_cut_off_is_asked_for_again_by_opencode_itself(
    coder: Opencode, server: Moorage, project: Path
) -> None:
    session, _ = survey(coder, server, project)
    with coder.saying(project, session, "[steady] Line by line, please.", "text", 100):
        server.stop()
        server.start()
    coder.idle(project, session)
    assert text_of(coder.messages(project, session)[-1]).endswith(STEADY_LINES)
    cut, whole = server.wait_turns(5, session, "turn")[3:]
    assert (cut.finish, whole.finish) == ("cancelled", "stop"), server.table()
    # what was said is not in the second prompt, and the copies at its end were in memory alone
    assert whole.prompt == cut.prompt and whole.cached > 4_096, server.table()
    coder.say(project, session, "[talk] Go on.")
    # opencode sends both tries back as one answer, so the two part where the answer begins
    follow(server.wait_turns(6, session, "turn")[4:], {1: "parted"})
