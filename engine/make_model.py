"""`moorage model make`: a small random checkpoint directory, as a publisher would lay it out"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from engine.bad import BadInput
from engine.chat.dialect import Bundled
from engine.chat.silent import silent
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from engine.checkpoint.save import SHARD_BYTES, save_checkpoint
from engine.config import DTYPES, HybridConfig
from engine.flash.checkpoint import save_flash
from engine.flash.config import FlashConfig
from engine.flash.weights import random_weights as random_flash
from engine.moe_config import MoeConfig
from engine.vision_config import VisionConfig
from engine.weights import random_weights

KINDS = ("qwen3_5", "qwen3_5_text", "qwen3_next", "flash")
HYBRIDS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"hidden": 48, "layers": 4, "key_dim": 16, "value_dim": 16},
    "small": {
        "hidden": 256,
        "layers": 8,
        "q_heads": 4,
        "kv_heads": 2,
        "head_dim": 64,
        "key_heads": 4,
        "value_heads": 8,
        "key_dim": 32,
        "value_dim": 32,
        "intermediate": 704,
    },
    "50m": {
        "hidden": 512,
        "layers": 8,
        "q_heads": 8,
        "kv_heads": 2,
        "head_dim": 128,
        "key_heads": 4,
        "value_heads": 8,
        "key_dim": 128,
        "value_dim": 128,
        "intermediate": 1_728,
    },
}
"""By size; `tiny` is for tests, `50m` has about so many parameters."""
FLASHES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {},
    "small": {
        "hidden": 256,
        "layers": 8,
        "head_dim": 64,
        "index_heads": 2,
        "index_dim": 32,
        "top_blocks": 8,
        "key_heads": 4,
        "value_heads": 8,
        "key_dim": 32,
        "value_dim": 32,
        "intermediate": 704,
        "ple_dim": 32,
        "ngram_rows": 262_144,
        "ngram_width": 64,
        "block_rows": 64,
    },
}
EXPERTS: Mapping[str, Any] = {"experts": 8, "per_token": 2}


def make(
    kind: str,
    out: Path,
    *,
    size: str = "small",
    seed: int = 0,
    dtype: str = "float32",
    nvfp4: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write weights drawn from `seed`, the bundled tokenizer and a template; raises BadInput.

    What the model writes is text: tokens that are none it never writes.
    """
    shapes = FLASHES if kind == "flash" else HYBRIDS
    for flag, value, known in (
        ("KIND", kind, KINDS),
        ("--size", size, shapes),
        ("--dtype", dtype, DTYPES),
    ):
        if value not in known:
            raise BadInput(flag, None, f"{value!r} is none of {', '.join(known)}")
    if nvfp4 and kind == "flash":
        raise BadInput("--nvfp4", None, "is for the hybrids' kinds")
    try:
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as error:
        raise BadInput(str(out), None, f"cannot be looked into: {error.strerror}") from error
    if taken:
        raise BadInput(str(out), None, "is there already")
    dialect = Bundled(Template(Tokenizer()))
    quiet = silent(dialect)
    shape = dict(shapes[size]) | {"vocab": dialect.tokenizer.vocab, "dtype": dtype}
    shape["tie_embeddings"] = False
    try:
        if kind == "flash":
            weights = random_flash(FlashConfig.tiny(**shape), seed, silent=quiet)
            save_flash(out, weights, shard_bytes=shard_bytes)
        else:
            hybrid = random_weights(_hybrid(kind, shape), seed, quiet)
            save_checkpoint(hybrid, out, kind=kind, nvfp4=nvfp4, shard_bytes=shard_bytes)
        _write_chat(out, dialect)
    except OSError as error:
        raise BadInput(str(out), None, f"cannot be written: {error.strerror}") from error


def _hybrid(kind: str, shape: Mapping[str, Any]) -> HybridConfig:
    if kind == "qwen3_5":
        return HybridConfig.tiny(**shape, vision=VisionConfig.small())
    config = HybridConfig.tiny(**shape)
    if kind == "qwen3_5_text":
        return config
    wide = max(16, config.intermediate // 4 // 16 * 16)
    moe = MoeConfig.small(**EXPERTS, intermediate=wide, shared_intermediate=wide)
    return HybridConfig.tiny(**shape, moe=moe)


def _write_chat(out: Path, dialect: Bundled) -> None:
    """Tokenizer, template, and what ends an answer."""
    ours = files("engine.chat")
    (out / "tokenizer.json").write_bytes(ours.joinpath("tokenizer.json").read_bytes())
    template = ours.joinpath("published.jinja").read_text(encoding="utf-8")
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    ends = {"eos_token_id": sorted(dialect.stop_ids), "do_sample": False}
    (out / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
