"""What is owed of conversations: what was noted before a crash, and how that binds what comes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cache.spill.entry import Entry


@dataclass(frozen=True, slots=True)
class Shot:
    """A conversation's bytes, told apart by digests."""

    session: str
    digest: str
    """Of its tokens and rows."""
    copies: frozenset[str]
    """Of every copy of the sections: kind and line, a colon, a digest."""

    def note(self) -> str:
        """As it is noted."""
        return f"{self.session} {self.digest} {','.join(sorted(self.copies)) or '-'}"

    @property
    def conversation(self) -> tuple[str, ...]:
        """Its session, its rows and its end: older copies need not come along."""
        return self.session, self.digest, *(c for c in self.copies if c.startswith("end"))

    @property
    def marks(self) -> frozenset[str]:
        """Kinds and lines of its copies."""
        return frozenset(copy.split(":")[0] for copy in self.copies)


def marks_of(entry: Entry) -> str:
    """Kinds and lines of an entry's copies."""
    return ",".join(f"{copy.kind}{copy.tokens}" for copy in entry.copies) or "-"


@dataclass(slots=True)
class Owed:
    """What must come back, and what may."""

    saved: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    """Of each session the digest and the copies that were acknowledged last, and not given up."""
    begun: dict[str, set[str]] = field(default_factory=dict)
    """Of each session what was begun since: it may be there instead."""
    known: set[tuple[str, str]] = field(default_factory=set)
    """All sessions and digests that ever were."""
    copies: set[str] = field(default_factory=set)
    pointed: set[str] = field(default_factory=set)
    """Sessions of which one was in place last; nothing is owed without any."""

    @classmethod
    def by(cls, notes: Iterable[str]) -> Owed:
        """What these notes come to."""
        owed = cls()
        for note in notes:
            kind, session, *rest = note.split()
            if kind == "begun":
                owed.known.add((session, rest[0]))
                owed.begun.setdefault(session, set()).add(rest[0])
                owed.copies |= set(rest[1].split(",")) - {"-"}
            elif kind == "saved":
                owed.saved[session] = rest[0], frozenset(rest[1].split(",")) - {"-"}
                owed.begun[session] = set()
            elif kind == "points" and owed.pointed:
                owed.pointed.add(session)
            elif kind == "last":
                owed.pointed = {session}
            elif kind == "gone":
                owed.saved.pop(session, None)
                # Which of several it was is not known: perhaps the one that went.
                owed.pointed = set() if session in owed.pointed else owed.pointed
        return owed

    def against(
        self, held: Iterable[Shot], *, ample: bool = True, last: str | None = None
    ) -> list[str]:
        """What is wrong with what came back; unless there is ample room, the newest is enough.

        `last` is the session of the one that would be read back at a start.
        """
        found, there = list[str](), dict[str, Shot]()
        due = ample and self.pointed and self.pointed <= self.saved.keys()
        if due and last not in self.pointed:
            found.append(f"{last} was in place last, not {sorted(self.pointed)}")
        for shot in held:
            found += [f"two conversations of {shot.session}"] if shot.session in there else []
            there[shot.session] = shot
            if (shot.session, shot.digest) not in self.known:
                found.append(f"{shot.session} has other bytes than were ever saved")
            if strange := shot.copies - self.copies:
                found.append(f"{shot.session} has other copies: {sorted(strange)}")
        for session, (digest, marks) in self.saved.items():
            if session not in there and there and not ample:
                continue
            found += self._due(session, digest, marks, there.get(session))
        return found

    def _due(
        self, session: str, digest: str, marks: frozenset[str], shot: Shot | None
    ) -> list[str]:
        """What of an acknowledged conversation is not there."""
        if shot is None:
            return [f"lost {session}"]
        begun = self.begun.get(session, set())
        if shot.digest != digest and shot.digest not in begun:
            return [f"{session} came back as it was before it was saved"]
        if shot.digest == digest and not begun and shot.marks != marks:
            return [f"{session} has {sorted(shot.marks)}, {sorted(marks)} were acknowledged"]
        return []
