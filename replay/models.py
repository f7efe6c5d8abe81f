"""The models a replay can run on: the witness, and the random hybrid."""

from __future__ import annotations

import torch

from cache.anchors import AnchorConfig
from cache.guest import GuestConfig
from cache.parked import ParkConfig
from cache.stack import StackConfig
from cache.types import Cost
from engine.adapter import Engine
from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.witness import Witness
from replay.bad import BadInput
from replay.verify import ColdVerifier, Verifier, WitnessVerifier
from sim.profile import Profile

MODELS = ("witness", "random")


def build(model: str, profile: Profile, seed: int) -> tuple[Engine, Verifier]:
    """The engine of this name at the profile's grid and window, and what checks it."""
    cost = Cost(row_bytes=profile.row_bytes, anchor_bytes=profile.anchor_bytes)
    if model == "witness":
        witness = Witness(
            profile.grid, profile.window, vocab=profile.vocab, cost=cost, block_logits=False
        )
        return witness, WitnessVerifier(witness)
    if model == "random":
        # So narrow a model is faster on one thread, and its bits don't hang on the machine's cores.
        torch.set_num_threads(1)
        config = HybridConfig.replay(vocab=profile.vocab)
        hybrid = Hybrid.random(
            config,
            seed,
            grid=profile.grid,
            window=profile.window,
            cost=cost,
            block_logits=False,
        )
        return hybrid, ColdVerifier(hybrid)
    raise BadInput("--model", None, f"{model!r} is none of {', '.join(MODELS)}")


def stack_config(profile: Profile) -> StackConfig:
    """The tiers' settings of a board."""
    return StackConfig(
        anchors=AnchorConfig(budget_bytes=profile.resident_bytes),
        park=ParkConfig(park_bytes=profile.park_bytes, pin_bytes=profile.pin_bytes),
        guest=GuestConfig(tokens_max=profile.guest_tokens, stash_bytes=profile.stash_bytes),
        keeps_end=profile.end_anchor,
        checkpoint_tokens=profile.checkpoint_tokens,
    )
