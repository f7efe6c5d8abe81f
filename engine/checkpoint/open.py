"""A checkpoint directory as weights: its shape, its files, nothing read before it is used"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from engine.bad import BadCheckpoint, BadInput
from engine.checkpoint.json_file import read_object
from engine.checkpoint.names import draft_has_experts, draft_layers, sources
from engine.checkpoint.nvfp4 import Quantisation, quantisation_of
from engine.checkpoint.shape import hybrid_config
from engine.checkpoint.shards import open_shards
from engine.checkpoint.tensors import Tensors, unpacked_names
from engine.config import HybridConfig
from engine.weights import Weights, file_digest

CONFIG = "config.json"
MADE_BY = tuple(
    f"engine/checkpoint/{name}.py"
    for name in ("json_file", "names", "nvfp4", "open", "shape", "shards", "tensors")
)
"""What decides a checkpoint's bits beside its files."""


class Vocabulary(Protocol):
    """What a tokenizer says of its size."""

    @property
    def vocab(self) -> int:
        """Number of ids."""


def open_weights(directory: Path, *, dtype: str | None = None, kv: str = "model") -> Weights:
    """The weights of a published checkpoint; raises BadInput in one line for what doesn't fit.

    `dtype`, float32 or bfloat16, replaces the one in config.json; `kv` is the config's. Files stay
    mapped: a tensor that is used as it is stored is a view, and what is made of others (cast, cut,
    unpacked) is made once for each time that it is asked for.
    """
    if not directory.is_dir():
        raise BadInput(str(directory), None, "is no directory")
    config, quantisation = _read_config(directory / CONFIG, dtype, kv)
    shards = open_shards(directory)
    names = unpacked_names(shards.names)
    try:
        config = _with_drafts(config, names)
        found = sources(config, names)
    except BadCheckpoint as bad:
        raise BadCheckpoint(f"{directory}: {bad.what}") from bad
    tensors = Tensors(shards, found, config.torch_dtype, quantisation)
    shards.release()
    try:
        files = {str(path): file_digest(str(path)) for path in shards.files}
    except OSError as error:
        raise BadCheckpoint(f"{error.filename}: {error.strerror}") from error
    recipe = "files" if quantisation is None else "files nvfp4"
    return Weights(config, tensors, recipe, files, MADE_BY, shards.release)


def check_tokenizer(vocab: int, tokenizer: Vocabulary, source: str) -> None:
    """Raise BadInput, named after `source`, when a tokenizer writes ids that the model has not."""
    if tokenizer.vocab > vocab:
        what = f"its tokenizer has {tokenizer.vocab:,} ids, the model's vocabulary {vocab:,}"
        raise BadInput(source, None, what)


def _read_config(
    path: Path, dtype: str | None, kv: str
) -> tuple[HybridConfig, Quantisation | None]:
    published = read_object(path)
    changes = {"kv": kv} if dtype is None else {"kv": kv, "dtype": dtype}
    try:
        return hybrid_config(published, **changes), quantisation_of(published)
    except BadCheckpoint as bad:
        raise BadCheckpoint(f"{path}: {bad.what}") from bad


def _with_drafts(config: HybridConfig, names: Collection[str]) -> HybridConfig:
    """Draft layers are there when their tensors are, whatever config.json promises."""
    if not any(name.startswith("mtp.") for name in names):
        return replace(config, draft=False, draft_layers=1)
    count = config.draft_layers if config.draft else max(1, draft_layers(names))
    moe = config.moe and replace(config.moe, draft=draft_has_experts(names))
    return replace(config, draft=True, draft_layers=count, moe=moe)
