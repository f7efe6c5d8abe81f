"""Server-sent events: bytes in any pieces to the data of whole events"""

from __future__ import annotations


class Events:
    """Incremental decoder of a `text/event-stream` body (WHATWG HTML, section 9.2.6).

    Lines may end in LF, CRLF or CR and may be split anywhere, inside a UTF-8 character too.
    Comments and fields other than `data` are passed over: chat servers put nothing there.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, piece: bytes) -> list[str]:
        """The data of the events that `piece` completed, in order."""
        if self._after_cr and piece:
            # The CR already ended the line; the LF of a CRLF must not end an empty second one.
            piece = piece[1:] if piece[:1] == b"\n" else piece
            self._after_cr = False
        self._after_cr = piece.endswith(b"\r") or (self._after_cr and not piece)
        *whole, rest = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        events = []
        for line in whole:
            self._line += line
            event = self._end_line(bytes(self._line))
            self._line.clear()
            if event is not None:
                events.append(event)
        self._line += rest
        return events

    def close(self) -> list[str]:
        """The event a server left unfinished when it stopped without the last empty line."""
        event = self._end_line(bytes(self._line))
        self._line.clear()
        last = self._end_line(b"")
        return [found for found in (event, last) if found is not None]

    def _end_line(self, line: bytes) -> str | None:
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data).decode("utf-8", "replace") if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None
