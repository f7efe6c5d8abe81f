"""Who does what next: the order of turns for each person of a part, and their pauses"""

from __future__ import annotations

import dataclasses
import random

from experiments.night.script import Act, Session

CHATS: tuple[tuple[tuple[str, int, dict[int, str]], ...], ...] = (
    (
        ("w1", 6, {2: "tool", 5: "long"}),
        ("w2", 6, {3: "regenerate"}),
        ("w3", 5, {}),
        ("w4", 6, {2: "stop text"}),
        ("w5", 5, {1: "tool"}),
    ),
    (
        ("w6", 6, {4: "edited", 6: "tool"}),
        ("w7", 5, {2: "stop thought"}),
        ("w8", 5, {1: "file"}),
        ("w9", 6, {2: "regenerate", 5: "regenerate"}),
        ("w10", 5, {}),
        ("w11", 4, {2: "long"}),
    ),
    (
        ("w12", 6, {3: "tool", 4: "tool"}),
        ("w13", 6, {3: "edited"}),
        ("w14", 4, {1: "file", 3: "stop text"}),
        ("w15", 5, {2: "long"}),
        ("w16", 5, {}),
    ),
)
"""Per part: (label, turns, what is special). An `edited` turn replaces the one two before it."""

ORDERS: tuple[dict[str, str], ...] = (
    {
        "ann": "oc1 oc1 oc1 oc2 oc2 oc1 oc1 oc2 oc1 oc1 oc1 oc2 oc1 oc1 oc1 oc2 oc2 oc1*",
        "ben": "oc12*",
    },
    {
        "ann": "oc3 oc4 oc4 oc3 oc4 oc4 oc3 oc4 oc3 oc4 oc3 oc4 oc3 oc4 oc3",
        "ben": "oc5 oc5 oc5 oc5 oc5 oc5 oc5 !oc5 oc5*",
    },
    {
        "ann": "oc6 oc7 oc6 oc6 #oc6 oc6 oc7 oc7 oc6 oc7 oc6 oc7 oc11 oc11 oc6 oc7",
        "ben": "oc10 oc10 oc8 oc10 oc10 oc10 oc9 oc9 oc10 oc10 oc8 oc8 oc9 oc9 oc10*",
    },
)
"""Per part and person: whose next turn it is. `*`: all that are left; `!`: compact; `#`: edit
AGENTS.md."""


def coding_acts(order: str, sessions: dict[str, Session], rule: str) -> list[Act]:
    """The acts of an opencode lane, think times left open."""
    left = {label: list(session.turns) for label, session in sessions.items()}
    acts = []
    for word in order.split():
        label = word.strip("*!#")
        if word.startswith("!"):
            acts.append(Act("compact", label))
        elif word.startswith("#"):
            acts.append(Act("rules", label, text=f"- {rule}\n"))
        else:
            count = len(left[label]) if word.endswith("*") else 1
            for turn in left[label][:count]:
                acts.append(Act("say", label, turn.label))
            del left[label][:count]
    used = {word.strip("*!#") for word in order.split()}
    assert not any(left[label] for label in used), {label: len(left[label]) for label in used}
    return acts


def chat_acts(seed: int, number: int, chats: dict[str, Session]) -> list[Act]:
    """Chats used in turn: mostly the newest goes on, now and then an older one is taken up."""
    rng = random.Random(f"{seed}/chats/{number}")
    kinds = {label: kinds for label, _, kinds in CHATS[number]}
    left = {label: list(chat.turns) for label, chat in chats.items()}
    acts: list[Act] = []
    waiting = list(chats)
    opened = [waiting.pop(0)]
    while opened:
        label = opened[-1] if rng.random() < 0.7 else rng.choice(opened)
        turn = left[label].pop(0)
        kind = kinds[label].get(int(turn.label.rsplit("t", 1)[1]), "")
        if kind == "edited":
            replaced = chats[label].turns[chats[label].turns.index(turn) - 2]
            acts.append(Act("edit", label, turn.label, replaced.label))
        else:
            acts.append(Act("say", label, turn.label))
        if kind == "regenerate":
            acts.append(Act("regenerate", label, turn.label))
        if not left[label]:
            opened.remove(label)
        if waiting and (not opened or rng.random() < 0.35):
            opened.append(waiting.pop(0))
    return acts


def _pause_s(rng: random.Random) -> float:
    """Half are under 14 s; one in seven is a break of three to fourteen minutes."""
    if rng.random() < 0.14:
        return round(rng.uniform(180, 840), 1)
    return round(min(100.0, max(1.5, rng.lognormvariate(2.64, 0.8))), 1)


def timed(acts: list[Act], seed: str) -> tuple[Act, ...]:
    """The acts with seconds to think before each: mostly seconds, now and then minutes."""
    rng = random.Random(seed)
    return tuple(dataclasses.replace(act, think_s=_pause_s(rng)) for act in acts)
