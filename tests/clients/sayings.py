"""What the model says to the clients: rules of a script, by the mark in a user's message."""

from __future__ import annotations

from typing import Any

Part = list[Any]
Rule = dict[str, Any]

SLOW_TOKENS_S = 400
"""The pace of an answer that is going to be stopped: there is much of it."""
STEADY_TOKENS_S = 20
"""The pace of an answer that takes longer than a planned stop waits."""
TITLE = "A look at the harbour"
SUMMARY = (
    "## Where the harbour stands\n\n- The folder was looked at.\n- `src/sums.py` adds numbers.\n\n"
    "## Next steps\n\n- Wait for the user.\n"
)
LONG_LINES = "".join(
    f"{number}. The tide came in at hour {number} and left the harbour full of boats.\n"
    for number in range(1, 201)
)
STEADY_LINES = "".join(LONG_LINES.splitlines(keepends=True)[:10])
CHAT_TITLE = "Rooms of old houses"
LONG_ANSWER = "".join(
    f"Room {number} holds a lamp, a chair and a window. " for number in range(1, 401)
)
BLANKS = (
    "\n\nTwo blank lines above;  two  spaces;\ttab.   \n\n"
    "```python\ndef f(x):\n    return x\n```\n\n"
    "Unicode: naïve é 漢字 🙂 — “quotes”. <b>html</b> & <details>x</details>\n\nAnd an end. \n\n"
)
TABLE = "| room | lamps |\n|---|---|\n| hall | 2 |\n| cellar | 1 |\n\nThe *hall* has more."


def think(text: str) -> Part:
    """Reasoning."""
    return ["reasoning", text]


def say(text: str) -> Part:
    """What the user sees."""
    return ["content", text]


def call(name: str, **arguments: Any) -> Part:
    """A call of a tool."""
    return ["tool", name, arguments]


def turn(mark: str, *steps: tuple[Part, ...], tokens_s: float | None = None) -> list[Rule]:
    """The steps of the turn that a message with the mark begins."""
    pace = {} if tokens_s is None else {"tokens_s": tokens_s}
    return [
        {
            "when": {"last_user": rf"\[{mark}\]", "step": number, "has_tools": True},
            "say": list(step),
        }
        | pace
        for number, step in enumerate(steps, 1)
    ]


def side(kind: str, *parts: Part) -> Rule:
    """The answer to a request about a conversation."""
    return {"when": {"kind": kind}, "say": list(parts)}


CODER_RULES: list[Rule] = [
    side("title", think("A short title, then."), say(TITLE)),
    side("compaction", say(SUMMARY)),
    *turn(
        "survey",
        (
            think("The user wants an overview. I list the files first."),
            say("I'll look at the folder."),
            call("bash", command="ls -1 && ls -1 src", description="List files"),
        ),
        (
            think("Two calls in parallel.\n"),
            call("glob", pattern="**/*.py"),
            call("read", filePath="README.md"),
        ),
        (think("Now I can answer."), say("It holds one program, `src/app.py`.")),
    ),
    *turn(
        "change",
        (
            think("\nA thought with a line end before it and one behind.\n"),
            say("\n\nWriting the file.\n"),
            call(
                "write",
                filePath="src/sums.py",
                content='"""Sums / café 🙂."""\n\n\ndef add(a, b):\n    return a + b\n',
            ),
        ),
        (call("read", limit=10, offset=1, filePath="src/sums.py"),),
        (
            think("An edit, then."),
            say("  two blanks before, two behind  "),
            call(
                "edit",
                newString='    """The sum."""\n    return a + b',
                oldString="    return a + b",
                filePath="src/sums.py",
            ),
        ),
        (
            think("Does it run?"),
            call("bash", command="python3 src/app.py; echo rc=$?", description="Run it"),
        ),
        (think("It does."), say("Done: `src/sums.py` adds, and says so.")),
    ),
    *turn(
        "search",
        (think("A search."), call("grep", pattern="def ", path="src")),
        (think("Seen."), say("Nowhere yet. \n\n")),
    ),
    *turn("talk", (think(" No tools for this. "), say("\n\nYes: that is all there is.   \n\n"))),
    *turn("long", (think("A long one."), say(LONG_LINES)), tokens_s=SLOW_TOKENS_S),
    *turn("ponder", (think(LONG_LINES), say("No.")), tokens_s=SLOW_TOKENS_S),
    *turn("steady", (think("Line by line."), say(STEADY_LINES)), tokens_s=STEADY_TOKENS_S),
    *turn(
        "delegate",
        (
            think("A helper can do this."),
            call(
                "task",
                description="Count files",
                prompt="[count] Count the files here.",
                subagent_type="general",
            ),
        ),
        (think("It came back."), say("The helper counted them.")),
    ),
    *turn(
        "count",
        (think("Counting."), call("bash", command="ls | wc -l", description="Count files")),
        (think("Counted."), say("There are a few.")),
    ),
]

CHAT_RULES: list[Rule] = [
    side("title", think("JSON is wanted."), say(f'{{"title": "{CHAT_TITLE}"}}')),
    side("tags", think("JSON is wanted."), say('{"tags": ["Houses", "History"]}')),
    side(
        "followups",
        think("JSON is wanted."),
        say('{"follow_ups": ["Which room is the oldest?", "Who lived there?", "Is it open?"]}'),
    ),
    *turn(
        "rooms",
        (
            think("The user asks for rooms.\n\n1. A hall.\n2. A  cellar.\n\nI can answer.\n"),
            say("It has a **hall**, a kitchen and a cellar.\n\n- the hall is high\n- the rest low"),
        ),
    ),
    *turn("blanks", (think("\n\nOdd blanks are wanted.\n\n"), say(BLANKS))),
    *turn("table", (say(TABLE),)),
    *turn(
        "clock",
        (think("There is a tool for this."), call("get_current_timestamp")),
        (think("Now I know."), say("It is late.")),
    ),
    *turn("long", (think("A long one."), say(LONG_ANSWER)), tokens_s=SLOW_TOKENS_S),
]
