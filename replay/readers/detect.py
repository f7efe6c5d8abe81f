"""Which format a file is, and the reader for it"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from engine.bad import BadInput, OnBad, refuse
from engine.pictures.leave_out import Cap
from replay.open import find_files, read_head
from replay.trace import Trace
from replay.tracefile import read_trace

Reader = Callable[[Path, OnBad], Trace]

FORMATS = ("moorage", "weka", "mooncake", "bailian", "raw")
_RECORDER = "moorage.raw"
"""`format` of our recorder's lines."""
_HEAD_BYTES = 1 << 16
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]')


def detect(path: Path) -> str:
    """One of FORMATS, told by the first object's keys. Raises BadInput."""
    head = read_head(path, _HEAD_BYTES)
    if not head or head.isspace():
        raise BadInput(str(path), None, "the file is empty")
    keys = top_keys(head)
    if "format" in keys:
        return "raw" if keys["format"] == _RECORDER else "moorage"
    if "hash_id_scope" in keys or {"block_size", "requests"} <= keys.keys():
        return "weka"
    if "chat_id" in keys:
        return "bailian"
    if "kind" in keys:
        return "raw"
    if keys.keys() & {"input_length", "text_input", "messages", "payload"}:
        return "mooncake"
    raise BadInput(str(path), 1, f"the format is none of {', '.join(FORMATS)}")


def reader(name: str, cap: Cap | None = None) -> Reader:
    """The reader of a format; `cap` bounds the images of a raw recording's prompts.

    A reader is imported when it is asked for: the one of raw recordings brings a tokenizer and a
    chat template along.
    """
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
        from replay.readers import raw

        return partial(raw.read, cap=cap)
    return module.read


def read_traces(
    paths: Sequence[Path],
    on_bad: OnBad = refuse,
    name: str | None = None,
    cap: Cap | None = None,
) -> list[Trace]:
    """The traces of files and folders, of one format or of what each file is.

    `cap` is what a raw recording's prompts may have of images.

    A file that cannot be read at all goes to `on_bad` as a bad line does; when none is left, the
    last one's BadInput is raised.
    """
    traces: list[Trace] = []
    last = BadInput("input", None, "no file was named")
    for path in find_files(paths):
        try:
            traces.append(reader(name or detect(path), cap)(path, on_bad))
        except BadInput as bad:
            on_bad(bad)
            last = bad
    if not traces:
        raise last
    return traces


def top_keys(head: str) -> dict[str, str | None]:
    """Keys of the object that `head` begins with, and their values where those are strings.

    The text may be cut anywhere: a document can be many megabytes in one line.
    """
    found: dict[str, str | None] = {}
    depth, last, key = 0, "", ""
    if not head.lstrip().startswith("{"):
        return found
    for match in _TOKEN.finditer(head):
        token = match.group()
        if token in "{[":
            depth += 1
        elif token in "}]":
            depth -= 1
            if not depth:
                break
        elif token == ":" and depth == 1 and last.startswith('"'):
            key = _unquoted(last)
            found[key] = None
        elif last == ":" and depth == 1 and token.startswith('"'):
            found[key] = _unquoted(token)
        last = token
    return found


def _unquoted(token: str) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        return token
