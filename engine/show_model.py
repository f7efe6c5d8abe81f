"""`moorage model show`: what a model's weights, copies and rows take, counted without its memory"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from engine.bad import BadInput
from engine.checkpoint.json_file import read_object
from engine.checkpoint.open import CONFIG, open_weights
from engine.config import HybridConfig
from engine.dry_run import Sizes, dry_run
from engine.flash.checkpoint import open_flash
from engine.flash.config import MODEL_TYPE, FlashConfig
from engine.flash.decoder import FlashDecoder
from engine.flash.engine import Flash
from engine.flash.table import MemoryTable
from engine.flash.weights import FlashWeights
from engine.flash.weights import expected_shapes as flash_shapes
from engine.knobs import KV
from engine.loaded import FLASH_GRID, GRID
from engine.open_model import is_directory

SHAPES = ("27b", "flash-next")
"""Shapes without files: the published 27B hybrid, and the sparse one at the seed's size."""
MIB = 1 << 20


def run_show(name: str, *, dtype: str, kv: str, draft_layers: int | None, as_json: bool) -> None:
    """`moorage model show`; raises BadInput. `draft_layers` replaces the model's own count."""
    if kv not in KV:
        raise BadInput("--kv", None, f"{kv!r} is none of {', '.join(KV)}")
    sizes = sizes_of(name, dtype=dtype, kv=kv, draft_layers=draft_layers)
    if as_json:
        sys.stdout.write(json.dumps(figures(sizes)) + "\n")
    else:
        _print(Console(highlight=False), name, sizes)


def sizes_of(
    name: str, *, dtype: str = "", kv: str = "model", draft_layers: int | None = None
) -> Sizes:
    """The sizes of a shape or a directory; raises BadInput."""
    directory, changes = Path(name), {"dtype": dtype} if dtype else {}
    if name == "flash-next":
        config = FlashConfig.large(**changes)
    elif not is_directory(name) and name != "27b":
        raise BadInput(name, None, f"is none of {', '.join(SHAPES)}, and no directory")
    elif name != "27b" and read_object(directory / CONFIG).get("model_type") == MODEL_TYPE:
        return _flash_of(directory, dtype, kv, draft_layers)
    else:
        return _hybrid(name, changes, kv, draft_layers)
    _refuse(kv, draft_layers)
    return flash_sizes(config, config.torch_dtype)


def _refuse(kv: str, draft_layers: int | None) -> None:
    if kv != "model" or draft_layers is not None:
        flag = "--kv" if kv != "model" else "--draft-layers"
        raise BadInput(flag, None, "is for the hybrid")


def _flash_of(directory: Path, dtype: str, kv: str, draft_layers: int | None) -> Sizes:
    """Of a flash model's directory, whose every file is opened: what is wrong with one is said."""
    _refuse(kv, draft_layers)
    weights = open_flash(directory, dtype=dtype or None)
    weights.table.close()
    return flash_sizes(weights.config, weights.table.header.dtype)


def _hybrid(name: str, changes: dict[str, str], kv: str, draft_layers: int | None) -> Sizes:
    drafts = {} if draft_layers is None else {"draft_layers": draft_layers}
    if name == "27b":
        return dry_run(HybridConfig.qwen_27b(kv=kv, **changes, **drafts), grid=GRID)
    config = open_weights(Path(name), dtype=changes.get("dtype"), kv=kv).config
    if drafts:
        raise BadInput("--draft-layers", None, f"{name} has its own")
    return dry_run(config, grid=GRID)


def flash_sizes(config: FlashConfig, table_dtype: torch.dtype) -> Sizes:
    """The sizes of a flash model of this shape; its table, which has a dtype of its own, is counted
    among the weights."""
    with torch.device("meta"):
        tensors = {
            name: torch.empty(shape, dtype=config.torch_dtype)
            for name, shape in flash_shapes(config).items()
        }
        rows = torch.empty(config.ngram_rows, config.ngram_width, dtype=table_dtype)
        weights = FlashWeights(config, tensors, MemoryTable(rows), "meta")
        engine = Flash(FlashDecoder(weights), grid=FLASH_GRID, window=FLASH_GRID)
    return Sizes.of(engine, [*tensors.values(), rows])


def figures(sizes: Sizes) -> dict[str, object]:
    """Plain numbers."""
    return {
        "parameters": sizes.parameters,
        "weight_bytes": sizes.weight_bytes,
        "anchor_bytes": sizes.anchor_bytes,
        "sections": dict(sizes.section_bytes),
        "row_bytes": sizes.row_bytes,
        "kv_row_bytes": sizes.kv_row_bytes,
        "draft_row_bytes": sizes.draft_row_bytes,
        "views": dict(sizes.view_row_bytes),
        "workspace_floor_bytes": sizes.workspace_floor_bytes,
        "workspace_row_bytes": sizes.workspace_row_bytes,
    }


def _print(console: Console, name: str, sizes: Sizes) -> None:
    table = Table("what", "bytes", "", title=f"{name}: {sizes.parameters / 1e9:.2f} G parameters")
    table.add_row("weights", f"{sizes.weight_bytes:,}", f"{sizes.weight_bytes / 2**30:.2f} GiB")
    groups: dict[str, list[int]] = {}
    for section, nbytes in sizes.section_bytes.items():
        groups.setdefault(section.rstrip("0123456789").rstrip("."), []).append(nbytes)
    for group, each in groups.items():
        count = f" ({len(each)} sections)" if len(each) > 1 else ""
        table.add_row(group + count, f"{sum(each):,}", f"{sum(each) / MIB:.2f} MiB")
    total = sizes.anchor_bytes
    table.add_row("an anchor", f"{total:,}", f"{total / MIB:.2f} MiB", end_section=True)
    for view, nbytes in sizes.view_row_bytes.items():
        table.add_row(f"a token of {view}", f"{nbytes:,}", "")
    table.add_row("a token, the drafters' part", f"{sizes.draft_row_bytes:,}", "")
    table.add_row("a token", f"{sizes.row_bytes:,}", f"{sizes.row_bytes / 1024:.1f} KiB")
    console.print(table)
