"""Prompts as prefix-block ids: small numbers in order of first appearance"""

from __future__ import annotations

from collections.abc import Iterator

from cache.hashing import block_hashes, prefix_hashes
from cache.types import Ids
from replay.tokens import Tokens
from replay.trace import Request, Trace


class BlockNumbers:
    """Gives equal prefixes of blocks equal ids.

    A block's id stands for all tokens up to its end; a partial last block has one too. Told apart
    by 64-bit hashes of the tokens.
    """

    def __init__(self, block: int) -> None:
        assert block > 0
        self._block = block
        self._ids: dict[tuple[int, int], int] = {}

    def of(self, ids: Ids) -> list[int]:
        """Ids of a prompt's blocks, ceil(len(ids) / block) of them."""
        hashes = block_hashes(ids, self._block).tolist()
        rest = ids[len(hashes) * self._block :]
        sizes = [self._block] * len(hashes)
        if len(rest):
            hashes.append(int(prefix_hashes(rest, hashes[-1] if hashes else 0)[-1]))
            sizes.append(len(rest))
        return [
            self._ids.setdefault(key, len(self._ids)) for key in zip(hashes, sizes, strict=True)
        ]


def prompts_in_blocks(trace: Trace, block: int) -> Iterator[tuple[Request, list[int]]]:
    """Every request with its prompt's block ids."""
    tokens = Tokens(trace)
    numbers = BlockNumbers(block)
    for request in trace.requests:
        yield request, numbers.of(tokens.prompt(request.number))
