"""A trace as Alibaba Bailian writes one: chats and their parents, 16-token hash ids"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from replay.open import write_lines
from replay.readers.bailian import BLOCK
from replay.trace import Trace
from replay.writers.blocks import prompts_in_blocks


def write(trace: Trace, path: Path, block: int = BLOCK) -> None:
    """Write a file of JSON lines; a name that ends in .zst or .gz is packed."""
    write_lines(path, lines(trace, block))


def lines(trace: Trace, block: int = BLOCK) -> Iterator[str]:
    """The lines of a Bailian file: a chat's parent is the last request of its session before it."""
    last: dict[str, tuple[int, int]] = {}
    for request, ids in prompts_in_blocks(trace, block):
        parent, turns = -1, 0
        if request.session is not None:
            parent, turns = last.get(request.session, (-1, 0))
            last[request.session] = (request.number, turns + 1)
        row = {
            "chat_id": request.number,
            "parent_chat_id": parent,
            "timestamp": round(request.t_s, 3),
            "input_length": request.prompt_tokens,
            "output_length": request.output_tokens,
            "type": "text" if request.kind == "turn" else request.kind,
            "turn": turns + 1,
            "hash_ids": ids,
        }
        yield json.dumps(row)
