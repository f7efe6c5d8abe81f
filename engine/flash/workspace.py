"""What a prefill takes beside weights and buffers: floor, slope and cap, from the sizes"""

from __future__ import annotations

from dataclasses import dataclass

from engine.flash.config import FIXED_BLOCKS, FlashConfig
from engine.flash.sparse_attention import TILE


@dataclass(frozen=True, slots=True)
class Workspace:
    """Bytes; Cost's fields of these names."""

    floor_bytes: int
    """Activations of one chunk and the logits of one row, whatever the context."""
    row_bytes: int
    """More for each token of the context, as long as the chosen blocks are still all blocks."""
    cap_bytes: int
    """At the window's end."""

    @classmethod
    def of(cls, config: FlashConfig, grid: int, window: int) -> Workspace:
        """Upper estimates: what is alive at once at the widest moment.

        A tile of queries gathers its rows of keys and values, and these stop growing with the
        context once as many blocks are chosen as may be; their places and the scores of the index
        go on growing. So the true curve bends down, and lies under the line of its first slope.
        """
        item = config.torch_dtype.itemsize
        gathered = _gathered_bytes(config, item)
        scored = _scored_bytes(config)
        bound = min(window, (config.top_blocks + FIXED_BLOCKS) * config.block_rows)
        floor = grid * _activations(config) * 4 + 4 * config.vocab
        cap = floor + gathered * bound + scored * window
        return cls(floor, gathered + scored, cap)


def _activations(config: FlashConfig) -> int:
    """Float32 elements of a row: streams before and after a branch, the per-layer embeddings, and
    the widest branch.
    """
    streams = (2 * config.streams + 3) * config.hidden
    # While they are made there are the stream, its copy behind the tail, and two in float32.
    making = 4 * config.ple_channels + 2 * (config.ngram - 1) * config.ngram_width
    delta = 6 * config.channels + 4 * config.value_heads * (config.value_dim + 64)
    heads = 2 * (config.q_heads + config.kv_heads) * config.head_dim
    sparse = 4 * heads + 2 * (config.index_heads + 1) * config.index_dim
    widest = max(delta, sparse, 3 * config.intermediate, 2 * (config.hidden + config.ple_dim))
    return max(making, streams + config.ple_channels + widest)


def _gathered_bytes(config: FlashConfig, item: int) -> int:
    """For a row that a tile's queries attend: keys and values, its place in int64, whether it is
    seen (twice), and the mask that the product reads.
    """
    return TILE * (2 * config.kv_heads * config.head_dim * item + 8 + 2 + 4)


def _scored_bytes(config: FlashConfig) -> int:
    """For a row of the context: a tile's float32 scores, a head's each and their sum, and the order
    keys (two of int64 at a time, and the bits), for the block it is a part of. Pooling at a restore
    takes less.
    """
    block = TILE * (4 * config.index_heads + 4 + 4 + 4 + 8 + 8)
    return -(-block // config.block_rows)
