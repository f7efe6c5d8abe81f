"""The settings document as it lies on the drive: read at the start, written at every change"""

from __future__ import annotations

import json

from cache.ports import Files
from cache.saving import said, save_now
from engine.bad import BadInput
from serve.settings import Settings, parsed

NAME = "settings.json"
BYTES_MAX = 2**20


class SettingsFile:
    """One document in a directory. A file that is no good is neither used nor written over."""

    def __init__(self, files: Files, place: str = "") -> None:
        """`place` is the directory, as messages name it."""
        self._files = files
        self._name = f"{place.rstrip('/')}/{NAME}" if place else NAME

    def load(self, usual: Settings) -> Settings:
        """The document that was written last, over the usual one; that, when none ever was.

        Raises BadInput for a file that is no good: somebody wrote it, and wants to know.
        """
        files = self._files
        try:
            if not files.exists(NAME):
                return usual
            size = files.size(NAME)
            if size > BYTES_MAX:
                raise BadInput(self._name, None, f"{size:,} bytes are no settings")
            handle = files.open(NAME)
            try:
                text = files.read(handle, 0, size)
            finally:
                files.close(handle)
        except OSError as error:
            raise BadInput(self._name, None, said(error)) from None
        try:
            return Settings.from_json(parsed(text), usual)
        except ValueError as error:
            raise BadInput(self._name, None, str(error)) from None

    def save(self, settings: Settings) -> str:
        """Write the document; why that failed, or empty. The old one stays until the new is
        whole and on the drive. Never raises."""
        text = json.dumps(settings.as_json(), indent=1, ensure_ascii=False) + "\n"
        return save_now(self._files, NAME, memoryview(text.encode()))
