"""The models a replay can run on: the witness, and the random hybrid."""

from __future__ import annotations

import torch

from cache.align import Alignment
from cache.anchors import AnchorConfig
from cache.config import StackConfig
from cache.guest import GuestConfig
from cache.meet import Meeting, exactly
from cache.parked import ParkConfig
from cache.pieces import Pieces
from cache.snapshot import StoreConfig
from engine.adapter import Engine
from engine.bad import BadInput
from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.pictures.encoded import Encoded
from engine.witness import Witness
from replay.verify import ColdVerifier, Verifier, WitnessVerifier
from sim.profile import Profile

MODELS = ("witness", "random")


def build(model: str, profile: Profile, seed: int, *, block_logits: bool = False) -> Engine:
    """The engine of this name at the profile's grid and window.

    Forced decoding needs no `block_logits`, which take longer than the rest of a verify block.
    """
    cost = profile.cost
    if model == "witness":
        return Witness(
            profile.grid, profile.window, vocab=profile.vocab, cost=cost, block_logits=block_logits
        )
    if model == "random":
        # So narrow a model is faster on one thread, and its bits don't hang on the machine's cores.
        torch.set_num_threads(1)
        config = HybridConfig.replay(vocab=profile.vocab)
        return Hybrid.random(
            config,
            seed,
            grid=profile.grid,
            window=profile.window,
            cost=cost,
            block_logits=block_logits,
            encoded=Encoded(profile.encoded_bytes, profile.encoded_row_bytes),
        )
    raise BadInput("--model", None, f"{model!r} is none of {', '.join(MODELS)}")


def verifier(engine: Engine) -> Verifier:
    """What checks an engine."""
    return WitnessVerifier(engine) if isinstance(engine, Witness) else ColdVerifier(engine)


def meeting(profile: Profile, pieces: Pieces) -> Meeting:
    """How a client's copy meets the rows, where tokens are made of these pieces."""
    if profile.alignment == "off":
        return exactly
    return Alignment(pieces, text=profile.alignment == "full")


def stack_config(profile: Profile) -> StackConfig:
    """The tiers' settings of a board."""
    return StackConfig(
        anchors=AnchorConfig(budget_bytes=profile.resident_bytes, rule=profile.anchor_rule),
        park=ParkConfig(park_bytes=profile.park_bytes, pin_bytes=profile.pin_bytes),
        guest=GuestConfig(tokens_max=profile.guest_tokens, stash_bytes=profile.stash_bytes),
        store=StoreConfig(
            budget_bytes=profile.store_bytes,
            entry_bytes=profile.store_entry_bytes,
            boundaries=profile.store_boundaries,
            session_trim=profile.session_trim,
        ),
        keeps_end=profile.end_anchor,
        checkpoint_tokens=profile.checkpoint_tokens,
    )
