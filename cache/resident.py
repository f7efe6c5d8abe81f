"""The rows in place: grid anchors over them, the end anchor, and the taint line."""

from __future__ import annotations

import numpy as np
import torch

from cache.anchors import AnchorConfig, Anchors, copy_sections, write_sections
from cache.ports import Model
from cache.types import COLD, Ask, Gate, Ids, Line, Marks, Offer, Outcome, common_prefix


class Resident:
    """The last sequence's rows, which stay in the engine's buffers, and copies of its sections.

    Ranges over the rows [0, valid):
      [0, taint)      written by grid chunks from a cold state: a cold prefill's bits at grid lines
      [taint, valid)  written by a verify block, or computed on top of one
    An anchor at or below `taint` is held to the bit gate, one above it to the greedy gate. Rows
    past `valid` are junk. `ids` are the tokens of the rows, and every offer compares them.
    """

    name = "resident"

    def __init__(self, window: int, config: AnchorConfig, *, keeps_end: bool = True) -> None:
        self._ids: Ids = np.zeros(window, np.int32)
        self.valid = 0
        self.taint: int | None = None
        self.marks = Marks()
        self.anchors = Anchors(config)
        self._anchored: list[int] = []
        self._keeps_end = keeps_end
        self._end_buffers: tuple[torch.Tensor, ...] | None = None
        self.end: int | None = None
        """Tokens the end anchor has absorbed; None when there is none."""

    @property
    def ids(self) -> Ids:
        """Tokens of the rows in place."""
        return self._ids[: self.valid]

    def shared(self, ids: Ids) -> int:
        """Leading tokens that the rows in place and `ids` have in common. Changes nothing."""
        return common_prefix(self.ids, ids)

    # the tier's questions and answers

    def offer(self, ask: Ask, floor: int = 0) -> Offer | None:
        """The highest line above `floor` that the rows serve for this ask. Changes nothing.

        At equal height a grid anchor beats the end anchor: it is held to the stricter gate.
        """
        reach = min(self.shared(ask.ids), ask.limit)
        anchor = self.anchors.best(reach)
        line = Line(anchor.tokens, "grid", anchor.gate) if anchor else COLD
        if self.end is not None and line.tokens < self.end <= reach:
            line = Line(self.end, "end", Gate.GREEDY)
        return Offer(self.name, line) if line.tokens > floor else None

    def restore(self, offer: Offer, model: Model) -> Outcome:
        """Put the line's sections back and let the model resume there; rows above it are cut."""
        line = offer.line
        if line.kind == "end":
            assert self.end == line.tokens and self._end_buffers is not None
            write_sections(model.cache_state(), self._end_buffers)
        else:
            anchor = self.anchors.best(line.tokens)
            assert anchor is not None and anchor.tokens == line.tokens, "the offer is stale"
            write_sections(model.cache_state(), anchor.tensors)
        model.resume_at(line.tokens)
        self.cut(line.tokens)
        if line.gate is Gate.BITS:
            self.taint = None
        return Outcome(True)

    def start_cold(self, model: Model) -> None:
        """Nothing serves: empty the model and forget the rows."""
        model.resume_at(0)
        self.cut(0)
        self.taint = None

    def cut(self, length: int) -> None:
        """Only the first `length` rows stay, and what stood on later ones goes with them."""
        assert length <= self.valid
        self.valid = length
        self.anchors.cut(length)
        while self._anchored and self._anchored[-1] > length:
            self._anchored.pop()
        # A resume at the end anchor uses it up as well: its buffers serve the turn that follows.
        self.end = None

    # a turn's progress

    def passed(self, ids: Ids, stop: int, model: Model) -> None:
        """A prefill has written rows up to `stop` of the prompt `ids`; anchor it on a grid line."""
        assert model.length == stop and stop > self.valid, (model.length, stop, self.valid)
        self._ids[self.valid : stop] = ids[self.valid : stop]
        self.valid = stop
        if stop % model.grid == 0:
            self.anchors.take(stop, self.gate(stop), model.cache_state(), model.cost().anchor_bytes)
            self._anchored.append(stop)

    def anchored_below(self, limit: int) -> int:
        """The highest line at or below `limit` that ever had an anchor, evicted since or not."""
        return next((line for line in reversed(self._anchored) if line <= limit), 0)

    def gate(self, line: int) -> Gate:
        """What a state at `line` of the rows in place is held to."""
        return Gate.BITS if self.taint is None or line <= self.taint else Gate.GREEDY

    def keep_end(self, ids: Ids, marks: Marks, model: Model) -> Outcome:
        """Take in the generation's rows, and copy the sections at the last one.

        `ids` are the committed tokens, prompt and answer; the last one is usually not forwarded
        yet. An engine that is ahead of them, because the generation stopped part way through an
        accepted block, is cut back first; when its sections are past them already, the rows stay
        and no end anchor is kept (`absorbed`).
        """
        length = min(model.length, len(ids))
        assert self.marks.prompt == self.valid <= length
        # Verify blocks wrote what follows. A state in the middle of a chunk counts as well: a cold
        # prefill forwards the prompt's last rows together with the ones after them.
        self.taint = self.valid if self.taint is None else min(self.taint, self.valid)
        self._ids[self.valid : length] = ids[self.valid : length]
        self.valid = length
        self.marks = marks
        self.end = None
        if not model.trim_pending(length):
            return Outcome(False, "absorbed")
        if not self._keeps_end:
            return Outcome(False, "off")
        model.settle()
        state = model.cache_state()
        if self._end_buffers is None:
            self._end_buffers = copy_sections(state)
        else:
            for buffer, section in zip(self._end_buffers, state.sections, strict=True):
                buffer.copy_(section.tensor)
        self.end = length
        return Outcome(True)

    # accounts

    def held_bytes(self, anchor_bytes: int) -> dict[str, int]:
        """Bytes by what holds them, as the budget counts them."""
        end = anchor_bytes if self._end_buffers is not None else 0
        return {"anchors": len(self.anchors) * anchor_bytes, "end": end}

    def check(self, grid: int) -> None:
        """Integrity of the account; raises AssertionError."""
        self.anchors.check(self.valid, grid)
        assert self.taint is None or 0 <= self.taint <= self.valid
        assert self.end is None or self.end == self.valid
