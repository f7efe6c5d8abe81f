"""The embedded model: small, random, and silent where what it would say is no text"""

from __future__ import annotations

from engine.adapter import Engine
from engine.chat.dialect import Dialect
from engine.chat.silent import silent
from engine.knobs import PLAIN, Knobs
from engine.loaded import Loaded
from engine.open_model import load
from engine.pictures.encoded import Encoded


def embedded(dialect: Dialect, seed: int, *, grid: int, window: int) -> Engine:
    """An engine over the dialect's vocabulary."""
    return load_embedded("random", dialect, seed).engine(
        grid=grid, window=window, encoded=Encoded()
    )


def load_embedded(name: str, dialect: Dialect, seed: int, knobs: Knobs = PLAIN) -> Loaded:
    """The weights of an embedded model over the dialect's vocabulary; raises BadInput."""
    return load(name, knobs, seed=seed, vocab=dialect.tokenizer.vocab, silent=silent(dialect))
