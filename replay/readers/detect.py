"""Which format a file is, and the reader for it"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from replay.bad import BadInput, OnBad, refuse
from replay.open import find_files, read_head
from replay.trace import Trace
from replay.tracefile import read_trace

Reader = Callable[[Path, OnBad], Trace]

FORMATS = ("moorage", "weka", "mooncake", "bailian", "raw")
_HEAD_BYTES = 1 << 16
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]')


def detect(path: Path) -> str:
    """One of FORMATS, told by the first object's keys. Raises BadInput."""
    head = read_head(path, _HEAD_BYTES)
    if not head or head.isspace():
        raise BadInput(str(path), None, "the file is empty")
    keys = top_keys(head)
    if "format" in keys:
        return "moorage"
    if "hash_id_scope" in keys or {"block_size", "requests"} <= keys:
        return "weka"
    if "chat_id" in keys:
        return "bailian"
    if "kind" in keys:
        return "raw"
    if keys & {"input_length", "text_input", "messages", "payload"}:
        return "mooncake"
    raise BadInput(str(path), 1, f"the format is none of {', '.join(FORMATS)}")


def reader(name: str) -> Reader:
    """The reader of a format. A reader is imported when it is asked for: the one of raw recordings
    brings a tokenizer and a chat template along."""
    assert name in FORMATS
    if name == "moorage":
        return read_trace
    if name == "weka":
        from replay.readers import weka as module
    elif name == "mooncake":
        from replay.readers import mooncake as module
    elif name == "bailian":
        from replay.readers import bailian as module
    else:
        from replay.readers import raw as module
    return module.read


def read_traces(
    paths: Sequence[Path], on_bad: OnBad = refuse, name: str | None = None
) -> list[Trace]:
    """The traces of files and folders, of one format or of what each file is.

    A file that cannot be read at all goes to `on_bad` as a bad line does; when none is left, the
    last one's BadInput is raised.
    """
    traces: list[Trace] = []
    last = BadInput("input", None, "no file was named")
    for path in find_files(paths):
        try:
            traces.append(reader(name or detect(path))(path, on_bad))
        except BadInput as bad:
            on_bad(bad)
            last = bad
    if not traces:
        raise last
    return traces


def top_keys(head: str) -> set[str]:
    """Keys of the object that `head` begins with; the text may be cut anywhere."""
    keys: set[str] = set()
    depth, key = 0, None
    if not head.lstrip().startswith("{"):
        return keys
    for found in _TOKEN.finditer(head):
        token = found.group()
        if token in "{[":
            depth, key = depth + 1, None
        elif token in "}]":
            depth -= 1
            if not depth:
                break
        elif token.startswith('"'):
            key = token if depth == 1 else None
        elif token == ":" and depth == 1 and key is not None:
            keys.add(_unquoted(key))
            key = None
    return keys


def _unquoted(token: str) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        return token
