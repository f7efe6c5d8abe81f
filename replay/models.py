"""The models a replay can run on: the witness, random ones, and checkpoint directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
from engine.knobs import PLAIN, Knobs
from engine.open_model import RANDOM, is_directory, load, shape_of
from engine.pictures.encoded import Encoded
from engine.witness import Witness
from replay.pieces import WHITESPACE_END
from replay.trace import Trace
from replay.verify import ColdVerifier, Verifier, WitnessVerifier
from sim.profile import Profile

MODELS = ("witness", *RANDOM)


def known(model: str) -> str:
    """A model's name as `build` takes it in any process, wherever that runs; raises BadInput for
    one that is none.
    """
    if model in MODELS:
        return model
    if is_directory(model):
        return str(Path(model).absolute())
    raise BadInput("--model", None, f"{model!r} is none of {', '.join(MODELS)}, and no directory")


def build(
    model: str,
    profile: Profile,
    seed: int,
    *,
    block_logits: bool = False,
    knobs: Knobs = PLAIN,
) -> Engine:
    """The engine of this name at the profile's grid and window; raises BadInput.

    Forced decoding needs no `block_logits`, which take longer than the rest of a verify block.
    """
    cost = profile.cost
    if known(model) == "witness":
        _refuse(knobs)
        return Witness(
            profile.grid, profile.window, vocab=profile.vocab, cost=cost, block_logits=block_logits
        )
    loaded = load(model, knobs, seed=seed, vocab=profile.vocab)
    return loaded.engine(
        grid=profile.grid,
        window=profile.window,
        cost=cost,
        block_logits=block_logits,
        encoded=Encoded(profile.encoded_bytes, profile.encoded_row_bytes),
    )


def _refuse(knobs: Knobs) -> None:
    """The witness has no weights whose dtype, rows, device or table could be chosen."""
    for name in ("dtype", "kv", "device", "table"):
        if getattr(knobs, name) != getattr(PLAIN, name):
            raise BadInput(f"--{name}", None, "the witness computes nothing that it could change")


def board_for(model: str, board: Profile, traces: Sequence[Trace]) -> Profile:
    """The board with a checkpoint's vocabulary; raises BadInput for traces it can't read."""
    if model in MODELS:
        return board
    shape = shape_of(model)
    for trace in traces:
        needed = trace.live.pieces.vocab if trace.live is not None else WHITESPACE_END + 2
        if shape.vocab < needed:
            what = f"knows {shape.vocab:,} tokens; {trace.name} needs {needed:,}"
            raise BadInput(model, None, what)
        pictured = next((one.id for one in trace.requests if one.images), None)
        if pictured is not None and not shape.sees:
            what = f"reads no pictures, and request {pictured} of {trace.name} has some"
            raise BadInput(model, None, what)
    return replace(board, vocab=shape.vocab)


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
