"""A tool call in JSON, `{"name": ..., "arguments": {...}}`: its arguments as they come"""

from __future__ import annotations

import json
from collections.abc import Callable

_BLANK = " \t\r\n"
_NAMES = ("name",)
_ARGUMENTS = ("arguments", "parameters")
_UNICODE = len("\\u0000")


class JsonCall:
    """One call's text to its arguments, as it comes.

    The arguments' text is the model's own, but for raw line ends in strings, which JSON forbids.
    Arguments that are a string hold the JSON in it. The members may come in any order.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.stray = False
        """It is no call; what was fed is `rest`."""
        self._state: Callable[[str], None] = self._start
        self._fed: list[str] = []
        self._out: list[str] = []
        self._said = False
        self._key = ""
        self._literal: list[str] = []
        """Of the string that is being read."""
        self._depth = 0
        self._string = self._escape = False
        self._pending = ""
        """An escape that is not whole yet."""

    @property
    def rest(self) -> str:
        """What was fed, while the call has no name."""
        return "".join(self._fed)

    def feed(self, text: str) -> str:
        """More of the call; what is new of its arguments."""
        if self.name is None:
            self._fed.append(text)
        for character in text:
            self._state(character)
        return self._taken()

    def end(self, *, closed: bool) -> str:
        """Nothing more comes; `closed` says that the model ended the call itself."""
        self.stray = self.stray or (self.name is None and closed and bool(self.rest.strip()))
        if closed and self.name is not None and not self._said and not self._out:
            self._out.append("{}")
        return self._taken()

    def _taken(self) -> str:
        """Arguments that come before the name wait for it."""
        if self.name is None:
            return ""
        out, self._out = "".join(self._out), []
        self._said = self._said or bool(out)
        return out

    def _start(self, character: str) -> None:
        if character == "{":
            self._state = self._members
        elif character not in _BLANK:
            self.stray = True

    def _members(self, character: str) -> None:
        """Before a key."""
        if character == '"':
            self._literal, self._escape = [character], False
            self._state = self._key_string
        elif character == "}":
            self._state = self._done

    def _key_string(self, character: str) -> None:
        text = self._read_string(character)
        if text is not None:
            self._key, self._state = text, self._colon

    def _colon(self, character: str) -> None:
        if character == ":":
            self._state = self._before_value

    def _before_value(self, character: str) -> None:
        if character in _BLANK:
            return
        if character == '"' and self._key in _NAMES:
            self._literal, self._escape = [character], False
            self._state = self._name_string
        elif character == '"' and self._key in _ARGUMENTS:
            self._state = self._arguments_string
        else:
            self._depth, self._string, self._escape = 0, False, False
            self._literal = []
            self._state = self._any_value
            self._any_value(character)

    def _name_string(self, character: str) -> None:
        text = self._read_string(character)
        if text is not None:
            self.name = text if self.name is None else self.name
            self._fed.clear()
            self._state = self._members

    def _read_string(self, character: str) -> str | None:
        """The string, once it is whole."""
        self._literal.append(character)
        if self._escape:
            self._escape = False
        elif character == "\\":
            self._escape = True
        elif character == '"':
            literal = "".join(self._literal)
            try:
                return _whole(json.loads(literal, strict=False))
            except ValueError:
                return literal[1:-1]
        return None

    def _any_value(self, character: str) -> None:
        """Inside a value; of the arguments it is passed on, any other is passed over."""
        ours = self._key in _ARGUMENTS
        if self._string:
            said = json.dumps(character)[1:-1] if character < " " else character
            if self._escape:
                self._escape = False
            elif character == "\\":
                self._escape = True
            elif character == '"':
                self._string = False
        else:
            if not self._depth and character in ",}":
                self._scalar()
                self._state = self._members
                self._members(character)
                return
            said = character
            self._string = character == '"'
            self._depth += (character in "{[") - (character in "}]")
        if not ours:
            pass
        elif self._depth or character in "}]":
            self._out.append(said)
        else:
            self._literal.append(said)
        if not self._depth and not self._string and character in '}]"':
            self._scalar()
            self._state = self._members

    def _scalar(self) -> None:
        """Arguments that are no object are passed on whole; `null` is none."""
        text, self._literal = "".join(self._literal).strip(_BLANK), []
        if text != "null":
            self._out.append(text)

    def _arguments_string(self, character: str) -> None:
        """Inside arguments that are a string with JSON in it."""
        if self._pending:
            self._in_escape(character)
        elif character == "\\":
            self._pending = character
        elif character == '"':
            self._state = self._members
        else:
            self._out.append(character)

    def _in_escape(self, character: str) -> None:
        """Pass on an escape that is whole; the two halves of a pair are one."""
        text = self._pending + character
        at = len(text) - 1
        if (at == _UNICODE and character != "\\") or (at == _UNICODE + 1 and character != "u"):
            self._unescape(text[:_UNICODE])  # half a pair, and no other half
            self._pending = text[_UNICODE:at]
            self._arguments_string(character)
            return
        self._pending = text
        if text[1] == "u" and (len(text) % _UNICODE or (len(text) == _UNICODE and _half(text))):
            return
        self._pending = ""
        self._unescape(text)

    def _unescape(self, text: str) -> None:
        """Say what an escape stands for; half a pair stays one, for no text can hold it."""
        try:
            said = str(json.loads(f'"{text}"', strict=False))
        except ValueError:
            said = text
        whole = all(not "\ud800" <= character <= "\udfff" for character in said)
        self._out.append(said if whole else text)

    def _done(self, character: str) -> None:
        """Behind the end, where nothing is read."""


def _half(text: str) -> bool:
    """Whether an escape is the first half of a pair."""
    return text[2:4].lower() in ("d8", "d9", "da", "db")


def _whole(text: str) -> str:
    """A text without lone halves of pairs, which no UTF-8 has."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
