"""Line ends at the end of a text, held back until it is known whether they belong to it"""

from __future__ import annotations


class Tail:
    """Holds back up to `most` line ends."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = ""

    def feed(self, text: str) -> str:
        """What can be said of the text so far."""
        text = self._held + text
        size = min(self._most, len(text) - len(text.rstrip("\n")))
        self._held = text[len(text) - size :]
        return text[: len(text) - size]

    def end(self, gap: int = 0) -> str:
        """What is left of the text, when the last `gap` line ends are not part of it."""
        held, self._held = self._held, ""
        return held[: max(0, len(held) - gap)]
