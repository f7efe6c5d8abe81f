"""What a model's name means: a small random model, or a checkpoint directory, with its weights"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from engine.bad import BadInput
from engine.checkpoint.json_file import read_object
from engine.checkpoint.open import CONFIG, open_weights
from engine.config import HybridConfig
from engine.device import device_of, moved
from engine.flash.checkpoint import open_flash
from engine.flash.config import MODEL_TYPE, FlashConfig
from engine.flash.decoder import FlashDecoder
from engine.flash.table import Policy
from engine.flash.weights import random_weights as random_flash
from engine.knobs import PLAIN, Knobs
from engine.layers.decoder import Decoder
from engine.loaded import Loaded, LoadedFlash, LoadedHybrid, LoadedThird
from engine.weights import Weights, random_weights

RANDOM = ("random", "flash", "third")
"""Models without files: the hybrid, the sparse one, and the made-up one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model must be known before its weights are read."""

    vocab: int
    sees: bool
    """Whether it reads pictures."""
    window_max: int | None
    """Positions it was made for; None where nobody says."""


def shape_of(directory: str) -> Shape:
    """What a directory's config.json says; raises BadInput."""
    path = Path(directory) / CONFIG
    given = read_object(path)
    text = _text(given)
    vocab, most = text.get("vocab_size", text.get("vocab")), text.get("max_position_embeddings")
    window_max = None if most is None else _size(path, "max_position_embeddings", most)
    size = _size(path, "vocab_size", vocab)
    sees = bool(given.get("vision_config")) and given.get("model_type") != MODEL_TYPE
    return Shape(size, sees, window_max)


def _size(path: Path, name: str, value: Any) -> int:
    # A bool is an int to Python, but no size.
    if isinstance(value, bool) or not isinstance(value, int) or not value > 0:
        raise BadInput(str(path), None, f"{name} {value!r} is no size")
    return value


def is_directory(name: str) -> bool:
    """Whether a model's name is a directory's that can be looked into; an empty one is none."""
    try:
        return bool(name) and Path(name).is_dir()
    except OSError:
        return False


def load(
    name: str, knobs: Knobs, *, seed: int = 0, vocab: int = 248_320, silent: Sequence[int] = ()
) -> Loaded:
    """The weights of a name, on the knobs' device; raises BadInput in one line.

    `seed`, `vocab` and `silent` are a random model's: `silent` tokens it never writes.
    """
    device = device_of(knobs.device)
    if name in RANDOM:
        # So narrow a model is faster on one thread, and its bits don't hang on the machine's cores.
        torch.set_num_threads(knobs.threads or 1)
        return _random(name, knobs, device, seed, vocab, silent)
    if not is_directory(name):
        what = f"{name!r} is none of {', '.join(RANDOM)}, and no directory"
        raise BadInput("--model", None, what)
    if knobs.threads:
        torch.set_num_threads(knobs.threads)
    return _from_files(Path(name), knobs, device)


def _random(
    name: str,
    knobs: Knobs,
    device: torch.device,
    seed: int,
    vocab: int,
    silent: Sequence[int],
) -> Loaded:
    dtype = knobs.dtype or "float32"
    shape: dict[str, Any] = {"vocab": vocab, "dtype": dtype, "tie_embeddings": not silent}
    if name == "third":
        _refuse("the made-up model", knobs, device, dtype=knobs.dtype == "bfloat16")
        return LoadedThird(vocab, seed)
    if name == "flash":
        _refuse("the flash model", knobs, device)
        weights = random_flash(FlashConfig.replay(**shape), seed, silent=silent)
        return LoadedFlash(FlashDecoder(weights))
    config = HybridConfig.replay(kv=knobs.kv, **shape)
    return _hybrid(random_weights(config, seed, silent), knobs, device, None)


def _from_files(directory: Path, knobs: Knobs, device: torch.device) -> Loaded:
    shape, dtype = shape_of(str(directory)), knobs.dtype or None
    if read_object(directory / CONFIG).get("model_type") == MODEL_TYPE:
        _refuse("the flash model", knobs, device, table=False)
        weights = open_flash(
            directory,
            dtype=dtype,
            table_policy=cast(Policy, knobs.table),
            table_cache_bytes=knobs.table_cache_bytes,
        )
        try:
            return LoadedFlash(FlashDecoder(weights), shape.window_max)
        except BadInput:
            weights.table.close()
            raise
    opened = open_weights(directory, dtype=dtype, kv=knobs.kv)
    return _hybrid(opened, knobs, device, shape.window_max)


def _hybrid(
    weights: Weights, knobs: Knobs, device: torch.device, window_max: int | None
) -> LoadedHybrid:
    _refuse_table("the hybrid", knobs)
    return LoadedHybrid(Decoder(moved(weights, device)), window_max, knobs.graphs)


def _refuse(
    what: str, knobs: Knobs, device: torch.device, *, dtype: bool = False, table: bool = True
) -> None:
    """What a model has no code for is said, instead of being passed over."""
    if table:
        _refuse_table(what, knobs)
    if knobs.kv != "model":
        raise BadInput("--kv", None, f"{what} keeps its rows as it computes them")
    if device.type != "cpu":
        raise BadInput("--device", None, f"{what} runs on the processor")
    if dtype:
        raise BadInput("--dtype", None, f"{what} has dtypes of its own")


def _refuse_table(what: str, knobs: Knobs) -> None:
    if knobs.table != PLAIN.table:
        raise BadInput("--table", None, f"{what} has no table in a file")


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a config.json shapes the text model."""
    text = config.get("text_config")
    return text if text and isinstance(text, dict) else config
