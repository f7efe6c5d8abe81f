"""A board's worst case: what each of its budgets may hold, summed beside its limits."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from cache import worst as caches
from cache.rows import BLOCK_ROWS
from cache.worst import Claims, WorstCase, worst_case
from engine.slots import SIDE_ANCHORS
from replay.models import stack_config
from sim.profile import Profile

HEADER_BYTES, NAME_BYTES = 16_384, 24
"""What a file on the drive has beside rows or sections, at most: its header, whole pages, and in an
anchor's the name of every chunk below."""

FRAMES_BYTES = 65_536
"""What a packed block has beside its rows: a header with the length of every frame."""


def caches_of(board: Profile) -> Claims:
    """The most that each cache holds."""
    copy = board.anchor_bytes
    own = caches.caches_of(stack_config(board), board.cost, board.window, board.grid)
    return {
        "encoded pictures": board.encoded_bytes,
        **own,
        "side slots' copies": board.side_slots * (SIDE_ANCHORS + board.end_anchor) * copy,
        "the disk tier's buffers": staging_of(board),
        "the spill's buffers": spill_staging_of(board),
    }


def staging_of(board: Profile) -> int:
    """Two buffers for anchors and two for chunks to be written, two for either to be read."""
    names = NAME_BYTES * (board.window // board.grid)
    chunk = board.grid * board.row_bytes + HEADER_BYTES
    anchor = board.anchor_bytes + HEADER_BYTES + names
    return board.disk * 2 * (anchor + chunk + max(anchor, chunk))


def spill_staging_of(board: Profile) -> int:
    """Two buffers for a block's planes, and two for the file of a block or an anchor."""
    block = BLOCK_ROWS * board.row_bytes
    image = max(block, board.anchor_bytes) + FRAMES_BYTES
    return board.spill * 2 * (block + image)


def worst_of(board: Profile) -> WorstCase:
    """The board's worst case."""
    copies = caches.copies_of(stack_config(board), board.cost, board.window)
    claims = caches_of(board)
    return worst_case(board.limits, board.cost, board.window, board.loaded_bytes, claims, copies)


def worst_data(board: Profile) -> dict[str, Any]:
    """The worst case as `moorage profile --json` has it."""
    worst = worst_of(board)
    return {
        "resting": dict(worst.resting),
        "passing": dict(worst.passing),
        "resting_bytes": worst.resting_bytes,
        "passing_bytes": worst.passing_bytes,
        "most_bytes": worst.most_bytes,
        "available_bytes": board.board_bytes - worst.most_bytes,
        "keeps_headroom": board.board_bytes - worst.most_bytes >= board.headroom_bytes,
    }


def print_worst(console: Console, board: Profile) -> None:
    """The worst case as a table, and whether it leaves the rest of the box its memory."""
    worst, limits = worst_of(board), board.limits
    table = Table(title="Memory at the worst", title_justify="left", header_style="bold")
    table.add_column("what")
    for name in ("GiB", "sum", "limit"):
        table.add_column(name, justify="right")
    total = 0
    between = {**worst.resting, "freed, kept by the allocator": limits.slack_bytes}
    for what, nbytes in between.items():
        total += nbytes
        if nbytes:
            table.add_row(what, _gib(nbytes), _gib(total))
    table.add_row("between requests", "", _gib(total), f"ceiling {_gib(limits.ceiling_bytes)}")
    table.add_section()
    total -= limits.slack_bytes
    for what, nbytes in worst.passing.items():
        total += nbytes
        if nbytes:
            table.add_row(what, _gib(nbytes), _gib(total))
    table.add_row("during a prefill", "", _gib(total), f"peak {_gib(limits.peak_bytes)}")
    console.print(table)
    console.print(headroom(board, worst), highlight=False)


def headroom(board: Profile, worst: WorstCase) -> str:
    """One line: what the limits leave of the board."""
    left = board.board_bytes - worst.most_bytes
    text = f"under the limits at most {_gib(worst.most_bytes)} of {_gib(board.board_bytes)} GiB"
    if left < 0:
        return f"[red bold]{text}: more than the board has[/red bold]"
    text += f": {_gib(left)} are left, {_gib(board.headroom_bytes)} should be"
    return text if left >= board.headroom_bytes else f"[red bold]{text}[/red bold]"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f}"
