"""A trace as Mooncake writes one: arrival in ms, lengths, hash ids of prefix blocks"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from replay.open import write_lines
from replay.readers.mooncake import BLOCK
from replay.trace import Trace
from replay.writers.blocks import prompts_in_blocks


def write(trace: Trace, path: Path, block: int = BLOCK) -> None:
    """Write a file of JSON lines; a name that ends in .zst or .gz is packed.

    Every line is a whole prompt, so no session is written: a reader of AIPerf's keys would put
    what went before in front of it again.
    """
    write_lines(path, lines(trace, block))


def lines(trace: Trace, block: int = BLOCK) -> Iterator[str]:
    """The lines of a Mooncake file."""
    for request, ids in prompts_in_blocks(trace, block):
        row = {
            "timestamp": round(request.t_s * 1000),
            "input_length": request.prompt_tokens,
            "output_length": request.output_tokens,
            "hash_ids": ids,
        }
        yield json.dumps(row)
