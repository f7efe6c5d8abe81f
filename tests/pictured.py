"""What tests about pictures share: prompts with pictures, engines with a tower, their turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from support import GRID, VOCAB, WINDOW, box, forced, joined, judge, tokens, verifier

from cache.journal import TurnRow
from cache.meet import Meeting, exactly
from cache.types import Ids
from engine.adapter import Engine
from engine.config import HybridConfig
from engine.decode import Rule
from engine.hybrid import Hybrid
from engine.pictures.patches import named
from engine.pictures.picture import Picture
from engine.turn import Box, Prompt, Reader, Ready, Tokens, plainly, turn
from engine.vision_config import VisionConfig
from engine.witness import Witness
from replay.verify import Verdict, Verifier

MODELS = ("witness", "hybrid-float32", "hybrid-bfloat16")
Part = Ids | Picture


def picture(h: int = 12, w: int = 16, seed: int = 0) -> Picture:
    """A still of random pixels, of h x w patches: 48 rows."""
    pixels = np.random.default_rng(seed).integers(0, 256, (h * w, 768), np.uint8)
    return named(torch.from_numpy(pixels), (1, h, w))


def engine(model: str, window: int = WINDOW) -> Engine:
    """An empty engine that reads pictures; on the hybrid four angles turn, so all directions do."""
    if model == "witness":
        return Witness(GRID, window, vocab=VOCAB)
    dtype = model.removeprefix("hybrid-")
    narrow = {"layers": 2, "full_attention_interval": 2, "rotary_fraction": 0.5}
    config = HybridConfig.tiny(vision=VisionConfig.small(), dtype=dtype, **narrow)
    return Hybrid.random(config, 1, grid=GRID, window=window)


def ids_of(*parts: Part) -> Ids:
    """Text as it is, a picture as its key ids."""
    return joined(*(part.ids if isinstance(part, Picture) else part for part in parts))


def prompt_of(*parts: Part, session: str | None = None, kind: str = "turn") -> Prompt:
    """A prompt of these parts."""
    pictures = tuple(part for part in parts if isinstance(part, Picture))
    return Prompt(ids_of(*parts), session, kind=kind, pictures=pictures)


@dataclass
class Shown:
    """A turn: its journal row, the verdict on its prefill, what it wrote."""

    row: TurnRow
    verdict: Verdict
    written: list[int]


class Wall:
    """A box on a model that reads pictures; every turn is held to its gate."""

    def __init__(self, model: str, meeting: Meeting = exactly, **room: int) -> None:
        self.model = model
        self.of = engine(model)
        self.on: Box = box(self.of, meeting=meeting, **room)
        self.check: Verifier = verifier(self.of)

    def shows(
        self,
        *parts: Part,
        answer: Ids | None = None,
        rule: Rule | None = None,
        limit: int = 9,
        must_hold: bool = True,
        session: str | None = None,
        kind: str = "turn",
        on: Box | None = None,
        read: Reader = plainly,
    ) -> Shown:
        """A turn; with an `answer` it is forced, and 9 tokens of one are where nothing is said."""
        answer = tokens(limit, 999) if answer is None else answer
        rule, most = (rule, limit) if rule else (forced(answer), len(answer))
        at, verdict, written = on or self.on, None, list[int]()
        check = self.check if at is self.on else verifier(at.engine)
        prompt = prompt_of(*parts, session=session, kind=kind)
        for event in turn(at, prompt, rule, limit=most, read=read):
            if isinstance(event, Ready):
                verdict = judge(at, event.ids, event.logits, check)
            elif isinstance(event, Tokens):
                written += event.ids
        at.stack.check()
        assert verdict is not None
        if must_hold:
            assert verdict.ok, verdict
        return Shown(at.journal.rows[-1], verdict, written)
