"""What of a board may be set, each with its type, and how large a board is described at all."""

from __future__ import annotations

MOST = {
    "vocab": 2**24,
    "grid": 2**24,
    "window": 2**24,
    "side_window": 2**24,
    "side_slots": 64,
    "drafts": 64,
    "row_bytes": 2**32,
    "anchor_bytes": 2**40,
    "resident_bytes": 2**50,
    "park_bytes": 2**50,
    "pin_bytes": 2**50,
    "stash_bytes": 2**50,
    "guest_tokens": 2**24,
    "store_bytes": 2**50,
    "store_entry_bytes": 2**50,
    "store_boundaries": 2**24,
    "checkpoint_tokens": 2**24,
    "answer_tokens": 2**24,
    "images_max": 2**24,
    "image_rows_max": 2**24,
    "board_bytes": 2**60,
    "headroom_bytes": 2**60,
    "base_bytes": 2**60,
    "ceiling_bytes": 2**60,
    "peak_bytes": 2**60,
    "slack_bytes": 2**60,
    "workspace_floor_bytes": 2**50,
    "workspace_row_bytes": 2**32,
    "workspace_cap_bytes": 2**50,
    "encoded_bytes": 2**50,
    "encoded_row_bytes": 2**32,
}
"""Beyond these no box is described, and the replay's own memory would not do."""

SETTABLE = {
    "grid": int,
    "window": int,
    "row_bytes": int,
    "anchor_bytes": int,
    "resident_bytes": int,
    "anchor_rule": str,
    "end_anchor": bool,
    "park_bytes": int,
    "pin_bytes": int,
    "stash_bytes": int,
    "guest_tokens": int,
    "store_bytes": int,
    "store_entry_bytes": int,
    "store_boundaries": int,
    "session_trim": bool,
    "checkpoint_tokens": int,
    "alignment": str,
    "side_slots": int,
    "side_window": int,
    "answer_tokens": int,
    "images_max": int,
    "image_rows_max": int,
    "board_bytes": int,
    "headroom_bytes": int,
    "base_bytes": int,
    "ceiling_bytes": int,
    "peak_bytes": int,
    "slack_bytes": int,
    "workspace_floor_bytes": int,
    "workspace_row_bytes": int,
    "workspace_cap_bytes": int,
    "workspace_factor": float,
    "encoded_bytes": int,
    "encoded_row_bytes": int,
    "decode_tokens_s": float,
    "drafts": int,
    "accepted": float,
}
"""What `--set KEY=VALUE` may change, with its type."""

REFUSED = {
    "response_bytes": "a replay forces the recorded answers, so a remembered one would be another"
    " than the next prompt was recorded with, and a benchmark would measure a dictionary"
}
"""What a server has and a board has not, with the reason."""
