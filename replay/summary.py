"""A ledger in one object: the figures a replay prints, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from cache.budget import LEVELS
from replay.columns import CAUSES
from replay.ledger import HOLDERS
from sim.profile import Profile


def summarise(
    ledger: pd.DataFrame,
    *,
    wall_s: float,
    seed: int,
    board: Profile | None = None,
    disk: Mapping[str, Any] | None = None,
    spill: Mapping[str, Any] | None = None,
    writes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The fields of `moorage replay --json`.

    Tokens of requests that were refused, or that the client left during the prefill, count in
    `unread_tokens` alone, so that forwarded = prompt - cached and cached + reread + new = prompt.
    `by_source` shares out the cached tokens by the line they were resumed at, `by_why` the re-read
    ones by cause. `ttft_s` runs from the start of the prefill, `wait_s` is the queue before it.
    `peak_bytes` has the most each cache held after any request, the largest workspace, and the most
    that the driver had given out at once (`total`). `disk`, `spill` and `writes` are what a replay
    gives of these: with them, the bytes count what was written after the last request too. What
    each of the two did not let be forwarded is `spared_s`; less what requests waited for it, it is
    `saved_s`, and that by the gigabyte it wrote `saved_s_per_gb`.
    """
    served = ledger[~ledger["over_window"] & ~ledger["no_room"]]
    checked = served[served["checked"].notna()]
    totals = {f"{name}_tokens": int(served[name].sum()) for name in ("prompt", "cached")}
    totals |= {f"{name}_tokens": int(served[name].sum()) for name in ("forwarded", "new", "reread")}
    return {
        "requests": len(ledger),
        "over_window": int(ledger["over_window"].sum()),
        "no_room": int(ledger["no_room"].sum()),
        **totals,
        "unread_tokens": int(ledger["unread"].sum()),
        "put_back_tokens": int(served["put_back"].sum()),
        "ideal_cached_tokens": int(served["ideal"].sum()),
        "output_tokens": int(served["output"].sum()),
        "guests": int(served["guest"].sum()),
        "followups": int(served["followup"].sum()),
        "end_resumes": int((served["followup"] & served["end_resume"]).sum()),
        "by_source": _sums(served, "source", "cached"),
        "requests_by_source": _counts(served, "source"),
        "by_why": {str(cause): int(served[f"reread_{cause}"].sum()) for cause in CAUSES},
        "requests_by_why": _counts(served, "why"),
        "ttft_s": quantiles(served["ttft_s"].dropna()),
        "wait_s": quantiles(served["wait_s"]),
        "prefill_s": float(served["prefill_s"].sum()),
        "decode_s": float(served["decode_s"].sum()),
        "restarts": int(ledger["process"].max()) if len(ledger) else 0,
        "restore_s": float(served["restore_s"].sum()),
        **_drive(ledger, served, {"disk": disk, "spill": spill}),
        "writes": None if writes is None else dict(writes),
        "verified": {
            "checked": len(checked),
            "failed": int((checked["failure"] != "").sum()),
            "bits": int((checked["checked"] == "bits").sum()),
            "greedy": int((checked["checked"] == "greedy").sum()),
        },
        "peak_bytes": {
            **{name: _peak(served[f"held_{name}"]) for name in HOLDERS},
            "workspace": _peak(served["workspace"]),
            "total": _peak(ledger["peak"]),
        },
        "memory": _memory(ledger, board),
        "wall_s": wall_s,
        "prompt_tokens_per_wall_s": totals["prompt_tokens"] / wall_s if wall_s else 0.0,
        "seed": seed,
    }


def _drive(
    ledger: pd.DataFrame, served: pd.DataFrame, tiers: Mapping[str, Mapping[str, Any] | None]
) -> dict[str, Any]:
    """What was moved, and what each tier on the drive did and saved."""
    moved = {
        (tier, name): int(ledger[f"{tier}_{name}"].sum()) if seen is None else seen[f"{name}_bytes"]
        for tier, seen in tiers.items()
        for name in ("read", "written")
    }
    return {
        "written_bytes": {"tier": moved["disk", "written"], "spill": moved["spill", "written"]},
        "read_bytes": moved["disk", "read"] + moved["spill", "read"],
        "save_s": float(served["save_s"].sum()),
        **{name: seen and {**seen, **_saved(served, name, seen)} for name, seen in tiers.items()},
    }


def _saved(served: pd.DataFrame, tier: str, seen: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds that a tier's lines saved: prefill that was not needed, less all the waiting."""
    mine = served[served["source"].str.startswith(f"{tier}.")]
    spared_s = float(mine["spared_s"].sum())
    waited_s = float((mine["restore_s"] - mine["save_s"]).clip(lower=0).sum())
    if tier == "spill":
        waited_s += float(served["save_s"].sum())
    saved_s, gb = spared_s - waited_s, seen["written_bytes"] / 1e9
    per_gb = saved_s / gb if gb else None
    return {"spared_s": spared_s, "saved_s": saved_s, "saved_s_per_gb": per_gb}


def _memory(ledger: pd.DataFrame, board: Profile | None) -> dict[str, Any]:
    """What was given back, by level, how long the limits were passed, and the board's own."""
    seen: dict[str, Any] = {
        "shed_bytes": {name: int(ledger[f"shed_{name}"].sum()) for name in LEVELS},
        "over_s": {
            name: float(ledger[f"over_{name}_s"].sum()) for name in ("ceiling", "peak", "board")
        },
    }
    if board is not None:
        seen["limits"] = {
            "base_bytes": board.loaded_bytes,
            "ceiling_bytes": board.ceiling_bytes,
            "peak_bytes": board.peak_bytes,
            "board_bytes": board.board_bytes,
        }
        for name in ("peak", "board"):
            limit = seen["limits"][f"{name}_bytes"]
            seen[f"requests_over_{name}"] = int((ledger["peak"] > limit).sum())
    return seen


def quantiles(seconds: pd.Series) -> dict[str, float]:
    """p50, p90, p99 and the sum of a column; zeros when it is empty."""
    if seconds.empty:
        return {"p50": 0.0, "p90": 0.0, "p99": 0.0, "sum": 0.0}
    named = {f"p{percent}": float(seconds.quantile(percent / 100)) for percent in (50, 90, 99)}
    return named | {"sum": float(seconds.sum())}


def _sums(frame: pd.DataFrame, by: str, of: str) -> dict[str, int]:
    return {str(key): int(total) for key, total in frame.groupby(by)[of].sum().items()}


def _counts(frame: pd.DataFrame, by: str) -> dict[str, int]:
    return {str(key): int(count) for key, count in frame[by].value_counts().sort_index().items()}


def _peak(column: pd.Series) -> int:
    return 0 if column.empty else int(column.max())
