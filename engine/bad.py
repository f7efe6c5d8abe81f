"""Bad input: one line that names the file, the line and what is wrong."""

from __future__ import annotations

from collections.abc import Callable


class BadInput(ValueError):
    """Input that cannot be used; the command line prints it as one line and exits 2."""

    def __init__(self, source: str, line: int | None, what: str) -> None:
        self.source, self.line, self.what = source, line, what
        place = source if line is None else f"{source}:{line}"
        # A name may hold a newline; the message is one line all the same.
        said = f"{place}: {what}"
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in said))


class BadCheckpoint(BadInput):
    """A configuration or a weights file that a model can't run; `said` is "place: what"."""

    def __init__(self, said: str) -> None:
        source, _, what = said.partition(": ")
        super().__init__(source, None, what)


class Unreadable(RuntimeError):
    """A file that was sound when it was opened, and can't be read any more. A server fails the
    request that met it; any other command prints it as one line and exits 2.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")


OnBad = Callable[[BadInput], None]
"""What a reader calls for a bad line it can pass over; raising from it stops the read."""


def refuse(bad: BadInput) -> None:
    """The strict reader: the first bad line ends the read."""
    raise bad
