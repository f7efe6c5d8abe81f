"""The embedded model: small, random, and silent where what it would say is no text"""

from __future__ import annotations

import torch

from engine.chat.dialect import Dialect
from engine.chat.tokenizer import Tokenizer
from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.pictures.encoded import Encoded
from engine.weights import random_weights


def embedded(dialect: Dialect, seed: int, *, grid: int, window: int) -> Hybrid:
    """An engine over the dialect's vocabulary.

    So narrow a model is faster on one thread, and its bits don't hang on the machine's cores.
    """
    torch.set_num_threads(1)
    config = HybridConfig.replay(vocab=dialect.tokenizer.vocab, tie_embeddings=False)
    weights = random_weights(config, seed, silent(dialect))
    return Hybrid(Decoder(weights), grid=grid, window=window, encoded=Encoded())


def silent(dialect: Dialect) -> list[int]:
    """Tokens that are part of a character, or structure other than an answer's end.

    What a client is sent comes back as the same tokens only when it is text.
    """
    tokenizer = dialect.tokenizer
    structure = set(tokenizer.ids.values()) - dialect.stop_ids
    return [id for id in range(tokenizer.vocab) if id in structure or not _is_text(tokenizer, id)]


def _is_text(tokenizer: Tokenizer, id: int) -> bool:
    try:
        return bool(tokenizer.piece(id).decode())
    except UnicodeDecodeError:
        return False
