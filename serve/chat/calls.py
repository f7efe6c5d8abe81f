"""The text of one tool call, in whichever form the model wrote it"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from serve.chat.json_calls import JsonCall
from serve.chat.xml_calls import XmlCall

_BLANK = " \t\r\n"


class CallText(Protocol):
    """What reads the text between a call's marks."""

    name: str | None
    """The function, once it is known."""
    stray: bool
    """It is no call; what was fed is `rest`."""

    @property
    def rest(self) -> str:
        """What was fed and is no call."""

    def feed(self, text: str) -> str:
        """More of the call; what is new of its arguments."""

    def end(self, *, closed: bool) -> str:
        """Nothing more comes; `closed` says that the model ended the call itself."""


def call_text(start: str, schemas: Mapping[str, Mapping[str, Any]]) -> CallText | None:
    """What reads a call that begins like this; None while that is open.

    Its first character decides and not the model's habit: a model that was trained on both forms
    writes both.
    """
    start = start.lstrip(_BLANK)
    if not start:
        return None
    return JsonCall() if start[0] == "{" else XmlCall(schemas)
