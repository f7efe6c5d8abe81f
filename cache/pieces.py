"""What tokens are made of, as far as alignment needs it: structure, blanks and bytes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from cache.types import Ids

Flags = npt.NDArray[np.bool_]
"""One flag a token, shape (n,)."""


class Pieces(Protocol):
    """What token ids stand for. Changes nothing, and may be asked for any ids that were served."""

    def structure(self, ids: Ids) -> Flags:
        """Tokens that only a template or the engine writes; no text becomes one. Key ids are too.

        A key id (negative) equals only itself, as a structure token does; nobody asks for its text.
        """

    def blank(self, ids: Ids) -> Flags:
        """Tokens that are nothing but whitespace."""

    def text(self, ids: Ids) -> bytes:
        """The bytes of tokens that are no structure, one after another."""
