"""Small files of a checkpoint directory: bytes, text, JSON objects, refused in one line"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.bad import BadInput


def read_bytes(path: Path, *, optional: bool = False) -> bytes | None:
    """All of a file; None for one that may be missing and is. Raises BadInput."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # A pipe or a device may never end.
            raise BadInput(str(path), None, "is no file")
        return path.read_bytes()
    except OSError as error:
        if optional and isinstance(error, FileNotFoundError):
            return None
        what = "is missing" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise BadInput(str(path), None, what) from error


def read_text(path: Path, *, optional: bool = False) -> str | None:
    """A UTF-8 file; None for one that may be missing and is. Raises BadInput."""
    data = read_bytes(path, optional=optional)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise BadInput(str(path), None, "is no UTF-8") from error


def read_object(path: Path, *, optional: bool = False) -> Mapping[str, Any]:
    """A file that is a JSON object; one that may be missing is empty then. Raises BadInput."""
    text = read_text(path, optional=optional)
    try:
        value = {} if text is None else json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(str(path), error.lineno, f"is no JSON: {error.msg}") from error
    except ValueError as error:
        # Python reads no integer of thousands of digits.
        raise BadInput(str(path), None, f"is no JSON: {error}") from error
    except RecursionError as error:
        raise BadInput(str(path), None, "is nested too deep") from error
    if not isinstance(value, dict):
        raise BadInput(str(path), None, "is no JSON object")
    return value
