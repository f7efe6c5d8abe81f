"""The tape: recorded exchanges, a JSON line each, without secrets, for their owner alone"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FORMAT = "moorage.raw"
VERSION = 1

_SECRET = re.compile(r"auth|cookie|api[-_]?key|token|secret|password|credential|signature", re.I)

_log = logging.getLogger(__name__)


def public_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[list[str]]:
    """Headers in order as text, without those that carry a key, a cookie or another secret."""
    pairs = ([name.decode("latin-1"), value.decode("latin-1")] for name, value in headers)
    return [pair for pair in pairs if not _SECRET.search(pair[0])]


class Tape:
    """The file: one JSON line an exchange, appended; readable by its owner only."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file can't be opened."""
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(self._fd, 0o600)
        self.lost = 0
        self.nbytes = size = os.fstat(self._fd).st_size
        # A line cut by a crash must not swallow the next one.
        self._cut = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def append(self, exchange: dict[str, Any]) -> None:
        """Writes one exchange. A full disk loses the line and is logged: traffic comes first."""
        written, line = 0, b""
        try:
            # ASCII escapes, because a body may hold half a surrogate pair, which UTF-8 can't.
            text = json.dumps(exchange, separators=(",", ":")).encode()
            line = b"\n" * self._cut + text + b"\n"
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except (OSError, RecursionError) as error:  # a body as deep as it can be read, in a line
            self.lost += 1
            _log.warning("an exchange was not recorded: %s", error)
        self.nbytes += written
        if written:
            self._cut = written < len(line)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)
