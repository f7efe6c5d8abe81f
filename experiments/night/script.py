"""What the plan consists of: calls, steps, turns, sessions, acts, lanes and parts"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.night.words import CHARS_A_TOKEN


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the model writes it; `{CWD}` in the arguments stands for the folder."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Step:
    """One answer of the scripted model."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def tokens(self) -> int:
        """About as many tokens as the answer has."""
        chars = len(self.reasoning) + len(self.content)
        return (chars + sum(len(call.arguments) + 20 for call in self.calls)) // CHARS_A_TOKEN + 1


@dataclass(frozen=True, slots=True)
class Cut:
    """The user stops `step` when about `tokens` tokens of its `part` have come."""

    step: int
    part: str
    """reasoning, content or tool."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the user and what the model does about it."""

    label: str
    prompt: str
    steps: tuple[Step, ...]
    think_s: float
    """Real seconds from the end of the lane's last turn to this message."""
    again: tuple[Step, ...] = ()
    """The steps when the answer is regenerated."""
    again_think_s: float = 0.0
    agent: str = "build"
    cut: Cut | None = None
    session: str = ""

    @property
    def key(self) -> str:
        """What the turn is known by in a request: its prompt's first line, blanks evened out."""
        return even(self.prompt.split("\n", 1)[0])


@dataclass(frozen=True, slots=True)
class Session:
    """An opencode session or an Open WebUI chat."""

    label: str
    client: str
    """serve, run (both opencode) or page (Open WebUI)."""
    folder: str
    """The project's name; empty for a chat."""
    title: str
    turns: tuple[Turn, ...]
    helpers: tuple[Turn, ...] = ()
    """Turns of sub-agents: the prompt is the one that a planned task call gives them."""
    summaries: tuple[Step, ...] = ()
    """Answers to compactions, in order."""
    attachment: str = ""
    """A text file's content that goes with the first message."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing a person does: say, regenerate, edit, compact or rules."""

    do: str
    session: str
    turn: str = ""
    """Label of the turn that is said or regenerated; for `edit`, of the one that replaces it."""
    replaced: str = ""
    """For `edit`: label of the turn whose message is edited."""
    think_s: float = 0.0
    text: str = ""
    """For `rules`: what is added to the folder's AGENTS.md."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A person at one client, doing one thing after the other."""

    name: str
    client: str
    """opencode or page."""
    acts: tuple[Act, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the night that is recorded into one file: its lanes run at the same time."""

    name: str
    lanes: tuple[Lane, ...]
    files: dict[str, dict[str, str]]
    """Folder name to path to text, as the folders are when the part begins."""


@dataclass(frozen=True, slots=True)
class Night:
    """The whole plan."""

    seed: int
    sessions: dict[str, Session]
    parts: tuple[Part, ...]
    repositories: tuple[str, ...]
    """Folders that are git repositories."""

    def turns(self) -> dict[str, Turn]:
        """Every turn by its label, those of sub-agents too."""
        found = {}
        for session in self.sessions.values():
            found |= {turn.label: turn for turn in (*session.turns, *session.helpers)}
        return found


def even(text: str) -> str:
    """Text with every run of white space as one blank: clients wrap and re-indent."""
    return " ".join(text.split())
