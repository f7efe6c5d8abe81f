"""A tool call in XML parameters, `<function=NAME><parameter=KEY>value...`, as its JSON arguments"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from serve.chat.schemas import Types, escaped, string_json, surely_string, types, value_json
from serve.chat.seeker import partial

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_KEY, _VALUE_END = "<parameter=", "</parameter>"
_BLANK = " \t\r\n"
_BLANKS_MAX = 16
"""Whitespace between two tags; more of it is no layout."""
_NAME_MAX = 256
_ENDS = tuple(gap + tag for gap in ("", "\n") for tag in (_VALUE_END, _FUNCTION_END))
_LAST = re.compile(rf"{_FUNCTION_END}[{_BLANK}]{{0,{_BLANKS_MAX}}}\Z")
_SURE = len("</p")
"""So much of an end tag, and a value that breaks off there is taken to end before it."""


class XmlCall:
    """One call's text to its arguments, as it comes.

    A value ends at a `</parameter>` only where a further parameter or the end of the call follows,
    so that values may hold the tags themselves. `</function>` is the end only where nothing
    follows it, and then also of a value that lacks its own end. Text in place of parameters is
    passed on as the arguments.
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._schemas = schemas
        self.name: str | None = None
        self.stray = False
        """It is no call; what was fed is `rest`."""
        self._held = ""
        self._out: list[str] = []
        self._state = self._opening
        self._count = 0
        self._kinds: Types = frozenset()
        self._fresh = self._quoted = False
        self._from = 0
        """Where in the held text the search for a value's end goes on."""

    @property
    def rest(self) -> str:
        """What was fed and has not been used."""
        return self._held

    def feed(self, text: str) -> str:
        """More of the call; what is new of its arguments."""
        self._held += text
        while self._state(False):
            pass
        return self._taken()

    def end(self, *, closed: bool) -> str:
        """Nothing more comes; `closed` says that the model ended the call itself."""
        while self._state(True):
            pass
        if self.name is None:
            self.stray = bool(self._held.strip()) and closed
        elif self._state == self._value:
            self._value_breaks(closed)
        elif self._state == self._raw:
            self._out.append(self._held)
        if closed and self._state in (self._between, self._value):
            self._close()
        return self._taken()

    def _taken(self) -> str:
        out, self._out = "".join(self._out), []
        return out

    def _opening(self, ended: bool) -> bool:
        """Before the function's name."""
        text = self._held.lstrip(_BLANK)
        if not text.startswith(_FUNCTION):
            self.stray = bool(text) and not _FUNCTION.startswith(text)
            return False
        name, found = _tag(text, _FUNCTION)
        if not found:
            self.stray = name is None
            return False
        self.name, self._held = name, text[found:]
        self._state = self._between
        return True

    def _between(self, ended: bool) -> bool:
        """Before a parameter, or the end."""
        text = self._held.lstrip(_BLANK)
        if text.startswith(_FUNCTION_END):
            self._close()
            return True
        if any(tag.startswith(text) for tag in (_KEY, _FUNCTION_END)):
            return False
        key, found = _tag(text, _KEY) if text.startswith(_KEY) else (None, 0)
        if found:
            self._out.append(f"{',' if self._count else '{'}{string_json(key or '')}:")
            self._count += 1
            self._kinds = types(self._schemas.get(self.name or ""), key or "")
            self._held, self._state = text[found:], self._value
            self._fresh, self._quoted, self._from = True, False, 0
            return True
        if key is not None:
            return False
        if not self._count:
            self._held, self._state = text, self._raw
            return True
        at = text.find("<", 1)  # text between parameters says nothing
        self._held = text[at:] if at > 0 else ""
        return at > 0

    def _value(self, ended: bool) -> bool:
        """Inside a value."""
        if self._fresh:
            if not self._held:
                return False
            self._held = self._held.removeprefix("\n")
            self._fresh = False
        start, stop = _value_end(self._held, self._from, ended)
        value = self._held[:start]
        if not self._quoted and surely_string(value, self._kinds) and (value or stop):
            self._out.append('"')
            self._quoted = True
        if self._quoted:
            self._out.append(escaped(value))
            self._held, self._from = self._held[start:], 0
        else:
            self._from = start
        if not stop:
            return False
        self._out.append('"' if self._quoted else value_json(value, self._kinds))
        self._held = self._held[stop - start if self._quoted else stop :]
        self._state = self._between
        return True

    def _value_breaks(self, closed: bool) -> None:
        """The call ends inside a value, of which `_held` has not been said."""
        text = self._held
        size = partial(text, _ENDS)
        if size >= _SURE + text[len(text) - size :].startswith("\n"):
            text = text[: len(text) - size]
        elif closed:
            text = text.removesuffix("\n")
        if self._quoted:
            self._out.append(escaped(text) + '"' * closed)
        elif closed:
            self._out.append(value_json(text, self._kinds))
        else:
            self._out.append(text)

    def _raw(self, ended: bool) -> bool:
        """Text in place of parameters."""
        at = self._held.find(_FUNCTION_END)
        while at >= 0 and not _ends(self._held[at + len(_FUNCTION_END) :]):
            at = self._held.find(_FUNCTION_END, at + 1)
        if at < 0:
            at = len(self._held) - partial(self._held, ("\n" + _FUNCTION_END, _FUNCTION_END))
        elif ended:
            self._state = self._done
        at -= self._held.endswith("\n", 0, at) and self._held.startswith(_FUNCTION_END, at)
        self._out.append(self._held[:at])
        self._held = self._held[at:]
        return False

    def _close(self) -> None:
        self._out.append("}" if self._count else "{}")
        self._state = self._done

    def _done(self, ended: bool) -> bool:
        """Behind the end, where nothing is read."""
        self._held = ""
        return False


def _tag(text: str, opening: str) -> tuple[str | None, int]:
    """(name, where the text goes on) of a tag with a name; 0 when it is not whole yet, and no
    name when it never will be."""
    stop = text.find(">", len(opening))
    name = text[len(opening) : stop if stop >= 0 else None]
    if "\n" in name or len(name) > _NAME_MAX:
        return None, 0
    return name, stop + 1


def _ends(text: str) -> bool:
    """Whether this, after `</function>`, may be the end of a call."""
    return len(text) <= _BLANKS_MAX and not text.strip(_BLANK)


def _value_end(text: str, start: int, ended: bool) -> tuple[int, int]:
    """Where a value ends, and where the text after its end tag starts.

    Without a second position the value may go on: what is before the first one is its, the rest is
    not clear yet.
    """
    at = text.find(_VALUE_END, start)
    while at >= 0:
        after = text[at + len(_VALUE_END) :]
        follows = after.lstrip(_BLANK)
        blanks = len(after) - len(follows)
        before = at - text.endswith("\n", 0, at)
        if blanks <= _BLANKS_MAX:
            open_ = any(tag.startswith(follows) for tag in (_KEY, _FUNCTION_END))
            open_ |= follows.startswith(_FUNCTION_END) and _ends(follows[len(_FUNCTION_END) :])
            if follows.startswith(_KEY) or (open_ and ended):
                return before, len(text) - len(follows)
            if open_:
                return before, 0
        at = text.find(_VALUE_END, at + 1)
    last = _LAST.search(text, max(start, len(text) - len(_FUNCTION_END) - _BLANKS_MAX))
    if last is not None:
        at = last.start()
        return at - text.endswith("\n", 0, at), at if ended else 0
    return len(text) - partial(text, _ENDS), 0
