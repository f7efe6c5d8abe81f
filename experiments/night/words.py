"""Seeded English: sentences, thoughts and marked-up answers from word lists of our own"""

from __future__ import annotations

import random

CHARS_A_TOKEN = 4
"""What the plan and the scripted upstream take a token for; real tokenizers differ by a fifth."""


def _list(words: str, between: str | None = None) -> list[str]:
    return [word.strip() for word in words.split(between)]


NOUNS = _list(
    """anchor archive arrow atlas barge basin batch beacon bearing bell berth bracket bridge bucket
buoy cable cache cargo chain channel chart clock column compass counter cradle crane crew
current cursor cycle deck delay depth diary dock draft drift driver engine entry epoch
estuary event factor ferry field filter flag float fold frame gate gauge grid group harbour
hatch header horizon hour hull index inlet jetty journal keel kernel key lamp lantern latch
layer ledger lens level limit line link list lock log marker mast matrix meadow measure
median meter mirror mode moon mooring motor network node note offset orbit order packet page
panel parser path phase pier pilot pipe planet plate pocket point pool port probe pulley
query queue quay ramp range rate reader record region register report rig river road rope
rotor route row rudder rule sail sample scale schedule screen seal season segment sensor
series shaft shelf shore signal siding slot sluice source span spindle spool stage station
step store stream strip summary surge switch table tackle tally tape target tide timer token
tower trace track tray trend trim tunnel valve vessel wake watch wave weight wheel winch
window wire yard zone"""
)
VERBS = _list(
    """adjust align apply balance bind bound build carry check clamp clear collect combine compare
convert copy count cut decode defer derive detect draw drop encode expand extend fetch fill
filter find fit flush fold follow format gather group guard hold index insert join keep lift
limit link list load lower map mark match measure merge move name note open order pack pad
parse patch plan plot pull push raise rank read record reduce refresh reject release repair
replace report reset resolve restore rotate round sample scan score select send settle shift
show skip slice smooth sort split stack start stop store sum swap sweep tally test trace
track trim turn unpack update verify wait walk warm weigh widen write"""
)
ADJECTIVES = _list(
    """active ample bare brief broad calm central clean clear close coarse cold common deep dense
direct double dry early empty equal even exact faint fast final fine firm fixed flat full
gentle heavy high hollow idle inner large late lean left light linear local long loose low
main minor mixed modest narrow nearest new next noisy odd old open outer partial plain
proper quiet rapid rare raw ready recent rigid rough round safe second shallow sharp short
simple single slack slow small smooth solid sparse stable stale steady steep stiff strict
strong sudden tall thin third tight tiny true uneven upper usual warm weak whole wide worn"""
)
ADVERBS = _list(
    """again almost already also always apart barely clearly closely directly early easily evenly
exactly fairly finally first gently hardly here indeed instead just later mostly nearly
never nowhere often once only plainly quickly quietly rarely really safely seldom simply
slowly sometimes soon still then there together twice usually well widely"""
)
TOPICS = _list(
    """bread baking, bicycle gears, bird song, candle making, cheese cellars, coastal walks,
cold frames, compost heaps, dry stone walls, fog forecasts, garden ponds, hedge laying,
honey bees, kite flying, knots, lighthouse history, map reading, model boats, moon phases,
mushroom drying, night trains, old clocks, orchard pruning, paper folding, piano tuning,
pottery glazes, rain gauges, rope making, rowing technique, seed saving,
sourdough starters, star charts, stone bridges, tea tasting, tide tables, tram networks,
water mills, weaving looms, wind harps, wood stoves""",
    ",",
)

_OPENERS = (
    "So",
    "Then",
    "In that case",
    "As far as I can see",
    "Looking at it again",
    "For now",
    "On the other hand",
    "To be sure",
    "After that",
    "In short",
    "Most of the time",
    "Given this",
)
_THINKING = (
    "Let me {v} the {n} first.",
    "Wait, the {a} {n} is not the same as the {n2}.",
    "Hmm, that would {v} the {n} twice.",
    "I should {v} `{i}` before I {v2} anything.",
    "The user wants the {n} to be {a}, not the {n2}.",
    "Okay, so `{i}` {d} {vs} the {n}.",
    "If the {n} is {a}, the {n2} must be at least {k}.",
    "Actually, {k} {n}s at {k2} each give {k3}; that fits the {n2}.",
    "No, the {n} comes after the {n2}, otherwise `{i}` would {v} too early.",
    "What if the {n} is empty? Then `{i}` should {v} nothing and return.",
    "I'll keep the change small: only the {a} {n}.",
)
_PLAIN = (
    "The {a} {n} {d} {vs} the {n2}.",
    "When the {n} is {a}, the {n2} has to {v} {d}.",
    "Each {n} of the {n2} is {a} and {vs} about {k} {n3}s.",
    "{o}, the {n} should {v} before the {n2} does.",
    "{o}, `{i}` takes the {a} {n} and {vs} it into the {n2}.",
    "A {a} {n} with {k} entries will {v} the {n2} by {k2} percent.",
    "It is {a2} to {v} the {n} {d}, because the {n2} stays {a}.",
    "Nothing in the {n} says how the {a} {n2} {vs}.",
    "The {n} and the {n2} {d} {v} the same {a} {n3}.",
    "Without a {n}, the {a} {n2} would {v} {k} times an hour.",
)
_ACCENTS = (
    "café",
    "naïve",
    "Zürich",
    "piñata",
    "smørrebrød",
    "漢字",
    "→",
    "≈ 3 µm",
    "“quoted”",
    "🙂",
)


def third_person(verb: str) -> str:
    """`carry` to `carries`, `fetch` to `fetches`, `load` to `loads`."""
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "x", "ch", "sh")) else "s")


class Writer:
    """Writes from one seeded stream; equal seeds write equal texts."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)

    def noun(self) -> str:
        """One noun."""
        return self.rng.choice(NOUNS)

    def name(self) -> str:
        """An identifier in snake case."""
        return f"{self.rng.choice(VERBS)}_{self.noun()}"

    def sentence(self, thinking: bool = False) -> str:
        """One sentence, of a written text or of somebody's thoughts."""
        rng = self.rng
        form = rng.choice(_THINKING if thinking and rng.random() < 0.6 else _PLAIN)
        verb = rng.choice(VERBS)
        words = {
            "n": self.noun(),
            "n2": self.noun(),
            "n3": self.noun(),
            "v": verb,
            "vs": third_person(verb),
            "v2": rng.choice(VERBS),
            "a": rng.choice(ADJECTIVES),
            "a2": rng.choice(ADJECTIVES),
            "d": rng.choice(ADVERBS),
            "i": self.name(),
            "o": rng.choice(_OPENERS),
            "k": rng.randrange(2, 60),
            "k2": rng.randrange(2, 90),
            "k3": rng.randrange(100, 9000),
        }
        return form.format(**words)

    def paragraph(self, sentences: int, thinking: bool = False) -> str:
        """Sentences on one line."""
        return " ".join(self.sentence(thinking) for _ in range(sentences))

    def prose(self, tokens: int, thinking: bool = False) -> str:
        """Paragraphs of about `tokens` tokens."""
        paragraphs, chars = [], 0
        while chars < tokens * CHARS_A_TOKEN:
            paragraphs.append(self.paragraph(self.rng.randrange(1, 5), thinking))
            chars += len(paragraphs[-1]) + 2
        return "\n\n".join(paragraphs)

    def thought(self, tokens: int) -> str:
        """A reasoning text of about `tokens` tokens, with the odd white space real ones have."""
        rng, text = self.rng, self.prose(tokens, thinking=True)
        if rng.random() < 0.15:
            text = "\n" + text
        if rng.random() < 0.35:
            text += "\n"
        return text

    def answer(self, tokens: int, odd: float = 0.25) -> str:
        """A marked-up answer of about `tokens` tokens; a share `odd` has odd white space."""
        blocks, chars = [self.paragraph(self.rng.randrange(1, 3))], 0
        while chars < (tokens - 40) * CHARS_A_TOKEN:
            blocks.append(self._block())
            chars += len(blocks[-1]) + 2
        text = "\n\n".join(blocks)
        rng = self.rng
        if rng.random() < 0.2:
            text += f" ({rng.choice(_ACCENTS)})"
        if rng.random() < odd:
            text = (
                rng.choice(("", "\n\n", "\n", " ")) + text + rng.choice(("\n", "  ", " \n\n", ""))
            )
        return text

    def _block(self) -> str:
        rng = self.rng
        kind = rng.randrange(6)
        if kind == 0:
            return f"## {self.noun().title()} and {self.noun()}\n\n{self.paragraph(2)}"
        if kind == 1:
            return "\n".join(
                f"- **{self.noun()}**: {self.sentence()}" for _ in range(rng.randrange(2, 6))
            )
        if kind == 2:
            items = range(1, rng.randrange(3, 6))
            return "\n".join(f"{number}. {self.sentence()}" for number in items)
        if kind == 3:
            body = "\n".join(
                f"    {self.noun()} = {self.name()}({self.noun()}, {rng.randrange(99)})"
                for _ in range(rng.randrange(1, 5))
            )
            head = f"def {self.name()}({self.noun()}):"
            return f"```python\n{head}\n{body}\n    return {self.noun()}\n```"
        if kind == 4:
            rows = "\n".join(
                f"| {self.noun()} | {rng.randrange(1000)} | {rng.random():.3f} |"
                for _ in range(rng.randrange(2, 6))
            )
            return f"| {self.noun()} | {self.noun()} | {self.noun()} |\n|---|---:|---:|\n{rows}"
        return self.paragraph(rng.randrange(2, 5))
