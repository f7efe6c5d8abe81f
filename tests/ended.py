"""A replay to be ended by signals: says on its error stream how far it is, and is slow there.

Run as a program: where it says so, then what `moorage` takes. What it says is `saving` when the
first file of a request's save is on its way, and `draining` in the planned stop.
"""

import sys
import time
from dataclasses import replace
from typing import Any

import moorage
from cache.spill.pipeline import Pipeline
from cache.spill.writer import SpillWriter
from replay import bay

WAITS_S = 0.5


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
    time.sleep(WAITS_S)


def main() -> None:
    wanted = set(sys.argv[1].split(","))
    disk, spill = bay.disk_config, bay.spill_config
    begin, save = Pipeline._begin, SpillWriter.save
    bay.disk_config = lambda board: replace(disk(board), min_free_bytes=0, floor_bytes=0)
    bay.spill_config = lambda board: replace(spill(board), min_free_bytes=0, floor_bytes=0)
    now = {"who": ""}

    def saves(self: SpillWriter, source: Any, who: Any, *more: Any) -> Any:
        now["who"] = "draining" if who == "drain" else "saving"
        return save(self, source, who, *more)

    def begins(self: Pipeline, *args: Any) -> str:
        why = begin(self, *args)
        if now["who"] in wanted:
            wanted.discard(now["who"])
            say(now["who"])
        return why

    Pipeline._begin, SpillWriter.save = begins, saves  # type: ignore[method-assign]
    moorage.main(sys.argv[2:])


if __name__ == "__main__":
    main()
