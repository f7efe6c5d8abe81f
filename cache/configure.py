"""Other settings for the caches of a running engine: what shrinks gives back at once"""

from __future__ import annotations

from cache.config import StackConfig
from cache.ports import Model
from cache.stack import Stack


def configure(stack: Stack, model: Model, config: StackConfig) -> None:
    """The caches of a slot, and the store it shares, have these settings from now on.

    Between requests. A guest that was served leaves first. Block sizes, margins and what an engine
    is asked to do (`keeps_end`) stay as they were made.
    """
    assert not stack.serving and config.keeps_end == stack.config.keeps_end
    if config == stack.config:
        return
    stack.leave()
    stack.config = config
    stack.resident.configure(config.anchors, model.cost().anchor_bytes)
    stack.exchange.configure(config)
    stack.visits.configure(config.guest)
    # What the pool gives up may go to the drive.
    stack.park.configure(config.park, config.anchors)
    stack.store.configure(config.store)
