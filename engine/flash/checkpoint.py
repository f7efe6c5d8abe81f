"""A flash model's checkpoint directory: config.json, safetensors and the n-gram table's file"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from engine.bad import BadCheckpoint
from engine.checkpoint.json_file import read_object
from engine.checkpoint.names import Source
from engine.checkpoint.save import SHARD_BYTES, save_shards
from engine.checkpoint.shards import Shards, open_shards
from engine.checkpoint.tensors import Tensors
from engine.flash.config import MODEL_TYPE, FlashConfig
from engine.flash.table import CACHE_BYTES, Policy, Table, open_table
from engine.flash.table_file import BLOCK_ROWS, TableUnreadable, write_blocks
from engine.flash.weights import FlashWeights, expected_shapes
from engine.weights import file_digest

CONFIG, TABLE = "config.json", "ngram.table"
MADE_BY = (
    "engine/checkpoint/json_file.py",
    "engine/checkpoint/names.py",
    "engine/checkpoint/nvfp4.py",
    "engine/checkpoint/shards.py",
    "engine/checkpoint/tensors.py",
    "engine/flash/checkpoint.py",
)
"""What decides a checkpoint's bits beside its files."""


def read_config(directory: Path, dtype: str | None = None) -> FlashConfig:
    """The shape that config.json says, perhaps in another dtype; raises BadInput in one line."""
    path = directory / CONFIG
    given = read_object(path)
    if given.get("quantization_config") is not None:
        raise BadCheckpoint(f"{path}: quantization_config is not supported for {MODEL_TYPE}")
    try:
        return FlashConfig.from_json(given, **({} if dtype is None else {"dtype": dtype}))
    except BadCheckpoint as bad:
        raise BadCheckpoint(f"{path}: {bad.what}") from bad


def open_flash(
    directory: Path,
    *,
    dtype: str | None = None,
    table_policy: Policy = "warm",
    table_cache_bytes: int = CACHE_BYTES,
) -> FlashWeights:
    """The weights of a directory, for a FlashDecoder; raises BadInput in one line for what doesn't
    fit.

    `dtype`, float32 or bfloat16, replaces the one in config.json. Files stay mapped: a tensor that
    is used as it is stored is a view. The table may hold its rows in any dtype it can have; `close`
    it when no engine is left.
    """
    if not directory.is_dir():
        raise BadCheckpoint(f"{directory}: is no directory")
    config = read_config(directory, dtype)
    shards = open_shards(directory)
    sources = {name: Source(name, shape) for name, shape in expected_shapes(config).items()}
    for name in sources:
        if name not in shards.names:
            raise BadCheckpoint(f"{directory}: {name} is missing")
    tensors = Tensors(shards, sources, config.torch_dtype, None)
    path = str(directory / TABLE)
    table = open_table(
        path,
        policy=table_policy,
        cache_bytes=table_cache_bytes,
        rows=config.ngram_rows,
        width=config.ngram_width,
    )
    try:
        files = _digests(shards) | {path: table.digest()}
    except (BadCheckpoint, TableUnreadable) as error:
        table.close()
        raise BadCheckpoint(str(error)) from error
    return FlashWeights(config, tensors, table, "files", files, MADE_BY, shards.release)


def _digests(shards: Shards) -> dict[str, str]:
    try:
        return {str(path): file_digest(str(path)) for path in shards.files}
    except OSError as error:
        raise BadCheckpoint(f"{error.filename}: {error.strerror}") from error


def save_flash(directory: Path, weights: FlashWeights, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a directory that `open_flash` reads, the table in the dtype it has; raises BadInput.

    A shard holds `shard_bytes` at most, or one tensor.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        save_shards(directory, iter(weights.tensors.items()), shard_bytes)
        text = json.dumps(weights.config.to_json(), indent=2)
        (directory / CONFIG).write_text(text + "\n")
    except OSError as error:
        raise BadCheckpoint(f"{directory}: cannot be written: {error.strerror}") from error
    write_blocks(str(directory / TABLE), weights.table.header, _blocks(weights.table))


def _blocks(table: Table) -> Iterator[torch.Tensor]:
    rows = table.header.rows
    for at in range(0, rows, BLOCK_ROWS):
        yield table.rows(torch.arange(at, min(at + BLOCK_ROWS, rows)))
