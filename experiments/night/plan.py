"""The plan of the night: from a seed to who says what where, and what the model answers"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

from experiments.night.chats import Talker
from experiments.night.coding import Coder, Steps
from experiments.night.lanes import CHATS, ORDERS, chat_acts, coding_acts, timed
from experiments.night.projects import Project, make_projects
from experiments.night.script import Act, Cut, Lane, Night, Part, Session, Step, Turn

SEED = 20261130

CUT_TOKENS = 6000
"""Length of an answer that will be stopped: it must still be coming when the client stops it."""


class SessionPlan:
    """Builds one opencode session turn by turn."""

    def __init__(self, seed: int, label: str, client: str, project: Project) -> None:
        self.label, self.client, self.project = label, client, project
        self.coder = Coder(seed, label, project)
        self.turns: list[Turn] = []
        self.helpers: list[Turn] = []

    def say(self, turn: tuple[str, Steps], agent: str = "build", cut: Cut | None = None) -> None:
        """Adds a turn."""
        label = f"{self.label}.t{len(self.turns) + 1}"
        prompt, steps = turn
        self.turns.append(Turn(label, prompt, steps, 0.0, agent=agent, cut=cut, session=self.label))

    def delegate(self, *kinds: str) -> None:
        """Adds a turn with sub-agents."""
        prompt, steps, helpers = self.coder.delegate(kinds)
        label = f"{self.label}.t{len(self.turns) + 1}"
        for number, (task, its) in enumerate(helpers, 1):
            self.helpers.append(Turn(f"{label}.h{number}", task, its, 0.0, session=self.label))
        self.say((prompt, steps))

    def done(self) -> Session:
        """The finished session."""
        title = self.coder.writer.sentence().split(",")[0][:48]
        summaries = tuple(self.coder.summary() for _ in range(3))
        return Session(
            self.label,
            self.client,
            self.project.name,
            title,
            tuple(self.turns),
            tuple(self.helpers),
            summaries,
        )


def _long(plan: SessionPlan, reads: Iterable[int]) -> None:
    """Turns that read whole files, with other work between them."""
    coder = plan.coder
    between = [coder.change, coder.figures, coder.stumble, coder.chores, coder.create]
    for number, files in enumerate(reads):
        plan.say(coder.study(files))
        if number % 2:
            plan.say(between[number // 2 % len(between)]())


def _first_part(seed: int, projects: dict[str, Project]) -> list[SessionPlan]:
    # oc1 grows until the client compacts it by itself; oc2 plans first and builds then.
    one = SessionPlan(seed, "oc1", "serve", projects["tidewatch"])
    one.say(one.coder.survey())
    _long(one, (1, 2, 1, 2, 2, 1))
    one.say(one.coder.ponder(4200))
    _long(one, (2, 1, 2, 1))
    one.say(one.coder.change(2))
    one.say(one.coder.figures())
    two = SessionPlan(seed, "oc2", "serve", projects["tidewatch"])
    two.say(two.coder.outline(), agent="plan")
    two.say(two.coder.outline(2), agent="plan")
    two.say(two.coder.change(2))
    two.say(two.coder.create())
    two.say(two.coder.stumble())
    two.say(two.coder.ponder(2600, 300))
    twelve = SessionPlan(seed, "oc12", "serve", projects["orrery"])
    twelve.say(twelve.coder.survey())
    twelve.say(twelve.coder.study(1))
    twelve.say(twelve.coder.change())
    twelve.say(twelve.coder.stumble())
    twelve.say(twelve.coder.figures())
    twelve.say(twelve.coder.create())
    twelve.say(twelve.coder.chores())
    twelve.say(twelve.coder.change(2))
    return [one, two, twelve]


def _second_part(seed: int, projects: dict[str, Project]) -> list[SessionPlan]:
    # oc3 has sub-agents, oc4 is stopped three times, oc5 is long and compacted by hand.
    three = SessionPlan(seed, "oc3", "serve", projects["lanternd"])
    three.say(three.coder.survey())
    three.delegate("general", "explore")
    three.say(three.coder.change())
    three.delegate("explore", "explore", "general")
    three.say(three.coder.chores())
    three.say(three.coder.create())
    three.say(three.coder.study(2))
    four = SessionPlan(seed, "oc4", "serve", projects["lanternd"])
    four.say(four.coder.survey())
    four.say(four.coder.long_text(CUT_TOKENS), cut=Cut(0, "content", 420))
    four.say(four.coder.change())
    four.say(four.coder.ponder(CUT_TOKENS), cut=Cut(0, "reasoning", 900))
    four.say(four.coder.stumble())
    four.say(four.coder.long_write(CUT_TOKENS), cut=Cut(0, "tool", 500))
    four.say(four.coder.study(2))
    four.say(four.coder.change(2))
    five = SessionPlan(seed, "oc5", "serve", projects["orrery"])
    five.say(five.coder.survey())
    _long(five, (2, 1, 2, 2, 1, 1))
    five.say(five.coder.ponder(5200, 700))
    five.say(five.coder.change(2))
    _long(five, (1, 1, 1, 1))
    five.say(five.coder.figures())
    return [three, four, five]


def _third_part(seed: int, projects: dict[str, Project]) -> list[SessionPlan]:
    # oc6 sees AGENTS.md change; oc7 and oc8 are in the plain folder; oc8 and oc9 are `run`.
    six = SessionPlan(seed, "oc6", "serve", projects["orrery"])
    six.say(six.coder.survey())
    for turn in (six.coder.change(), six.coder.study(2), six.coder.stumble(), six.coder.chores()):
        six.say(turn)
    six.say(six.coder.study(1))
    six.say(six.coder.create())
    seven = SessionPlan(seed, "oc7", "serve", projects["almanac"])
    seven.say(seven.coder.survey())
    seven.say(seven.coder.create())
    seven.say(seven.coder.study(2))
    seven.say(seven.coder.figures())
    seven.say(seven.coder.ponder(1800))
    seven.say(seven.coder.create())
    eight = SessionPlan(seed, "oc8", "run", projects["almanac"])
    eight.say(eight.coder.survey())
    eight.say(eight.coder.study(2))
    eight.say(eight.coder.create())
    nine = SessionPlan(seed, "oc9", "run", projects["tidewatch"])
    nine.say(nine.coder.change())
    nine.say(nine.coder.chores())
    nine.say(nine.coder.study(1))
    nine.say(nine.coder.figures())
    ten = SessionPlan(seed, "oc10", "serve", projects["lanternd"])
    ten.say(ten.coder.survey())
    _long(ten, (2, 1, 2, 1, 2))
    ten.say(ten.coder.study(1))
    ten.say(ten.coder.change())
    ten.say(ten.coder.ponder(3400, 500))
    eleven = SessionPlan(seed, "oc11", "serve", projects["lanternd"])
    eleven.say(eleven.coder.figures())
    eleven.say(eleven.coder.change())
    return [six, seven, eight, nine, ten, eleven]


def _chat(seed: int, label: str, turns: int, kinds: dict[int, str]) -> Session:
    """A chat; `kinds` says which of its turns are out of the ordinary (numbers from 1)."""
    talker = Talker(seed, label)
    made = []
    for number in range(1, turns + 1):
        kind = kinds.get(number, "")
        steps: tuple[Step, ...] = (talker.answer(),)
        again: tuple[Step, ...] = ()
        cut = None
        if kind == "tool":
            steps = talker.with_tool()
        elif kind == "regenerate":
            again = (talker.answer(),)
        elif kind == "stop text":
            steps, cut = (talker.answer(CUT_TOKENS, 90),), Cut(0, "content", 380)
        elif kind == "stop thought":
            steps, cut = (talker.answer(300, CUT_TOKENS),), Cut(0, "reasoning", 700)
        elif kind == "long":
            steps = (talker.answer(1300, 3600),)
        turn = Turn(f"{label}.t{number}", talker.question(), steps, 0.0, again, cut=cut)
        made.append(dataclasses.replace(turn, session=label))
    attachment = talker.writer.prose(2400) if "file" in kinds.values() else ""
    return Session(label, "page", "", talker.title(), tuple(made), attachment=attachment)


def _files(projects: dict[str, Project]) -> dict[str, dict[str, str]]:
    return {name: dict(project.files) for name, project in projects.items()}


def _with_pauses(session: Session, acts: list[Act]) -> Session:
    """The session with its acts' think times in its turns, where the upstream looks them up."""
    said = {act.turn: act.think_s for act in acts if act.do in ("say", "edit")}
    again = {act.turn: act.think_s for act in acts if act.do == "regenerate"}
    turns = tuple(
        dataclasses.replace(
            turn, think_s=said[turn.label], again_think_s=again.get(turn.label, 0.0)
        )
        for turn in session.turns
    )
    return dataclasses.replace(session, turns=turns)


def make_night(seed: int = SEED) -> Night:
    """The night of a seed: equal seeds give equal nights."""
    projects = make_projects(seed)
    rules = random.Random(f"{seed}/rules")
    sessions: dict[str, Session] = {}
    parts = []
    makers = (_first_part, _second_part, _third_part)
    for number, maker in enumerate(makers):
        files = _files(projects)
        coding = {plan.label: plan.done() for plan in maker(seed, projects)}
        chats = {label: _chat(seed, label, *rest) for label, *rest in CHATS[number]}
        rule = f"Round every reading to {rules.randrange(2, 6)} digits before it is stored."
        lanes = []
        for name, order in ORDERS[number].items():
            acts = timed(coding_acts(order, coding, rule), f"{seed}/pauses/{number}/{name}")
            lanes.append(Lane(name, "opencode", acts))
        acts = timed(chat_acts(seed, number, chats), f"{seed}/pauses/{number}/cleo")
        lanes.append(Lane("cleo", "page", acts))
        sessions |= coding | chats
        parts.append(Part(f"part{number + 1}", tuple(lanes), files))
    acts = [act for part in parts for lane in part.lanes for act in lane.acts]
    sessions = {label: _with_pauses(session, acts) for label, session in sessions.items()}
    repositories = tuple(name for name, project in projects.items() if project.git)
    night = Night(seed, sessions, tuple(parts), repositories)
    _assert_told_apart(night)
    return night


def _assert_told_apart(night: Night) -> None:
    keys = sorted(turn.key for turn in night.turns().values())
    for one in keys:
        assert sum(one in other for other in keys) == 1, f"a prompt is part of another: {one}"
