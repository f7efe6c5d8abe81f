"""The rows in place: grid anchors over them, checkpoints, the end anchor, and the taint line."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

import numpy as np

from cache.account import COMPACTION, Account, Answer, End
from cache.anchors import (
    Anchor,
    AnchorConfig,
    Anchors,
    Room,
    Shared,
    Tensors,
    copy_sections,
    write_sections,
)
from cache.budget import Grow, freely
from cache.ports import Model
from cache.types import GOES_ON, Ask, Gate, Generation, Ids, Line, Met, Offer, Outcome
from cache.worth import Layout


class Resident:
    """The last sequence's rows, which stay in the engine's buffers, and copies of its sections.

    Rows past the account's `valid` are junk.
    """

    name = "resident"

    def __init__(
        self,
        window: int,
        config: AnchorConfig,
        *,
        keeps_end: bool = True,
        grow: Grow = freely,
        shared: Shared = set,
    ) -> None:
        self.account = Account.empty(window, config)
        self._grow = grow
        self.shared = shared
        self._window = window
        self.keeps_end = keeps_end
        self._anchored: list[int] = []
        self._sums_up = False
        """The request under way has all of the conversation summed up."""

    # the tier's questions and answers

    def offer(self, met: Met) -> Offer | None:
        """The best line the rows have for an ask that goes on with them so far. Changes nothing."""
        line = self.account.best_line(met.limit)
        return Offer(self.name, line, met) if line else None

    def restore(self, line: Line, model: Model) -> Outcome:
        """Put the line's sections back and let the model resume there; rows above it are cut."""
        account = self.account
        write_sections(model.cache_state(), account.copies_at(line))
        model.resume_at(line.tokens)
        self.cut(line.tokens)
        if line.gate is Gate.GREEDY:
            # Whatever follows stands on a state that no cold prefill passes through.
            account.taint = line.tokens if account.taint is None else account.taint
        return Outcome(True)

    def start_cold(self, model: Model) -> None:
        """Nothing serves: empty the model and forget the rows."""
        model.resume_at(0)
        self.cut(0)

    def cut(self, length: int) -> None:
        """Only the first `length` rows stay, and what stood on later ones goes with them."""
        self.account.cut(length)
        while self._anchored and self._anchored[-1] > length:
            self._anchored.pop()

    def exchange(self, account: Account) -> Account:
        """Other rows have taken the place of these: their account goes, this one comes."""
        gone, self.account = self.account, account
        room = np.zeros(self._window, np.int32)
        room[: account.valid] = account.ids
        account.buffer = room
        self._anchored = account.anchors.lines
        return gone

    def arrived(self, account: Account) -> None:
        """Rows above those in place came in: the account's, which starts with what is in place."""
        own, lines = self.account, account.anchors.lines
        own.extend(account.ids, account.valid)
        others = [anchor for anchor in own.anchors if anchor.tokens not in lines]
        own.anchors = Anchors.of(own.anchors.config, [*others, *account.anchors])
        self._anchored = sorted({*self._anchored, *lines})

    def configure(self, config: AnchorConfig, anchor_bytes: int) -> None:
        """Other settings of the anchors; those over the budget go, the least worth first."""
        account = self.account
        account.anchors = account.anchors.under(config)
        over = len(account.anchors) * anchor_bytes - config.budget_bytes
        if over > 0:
            account.anchors.give(-(-over // anchor_bytes), self.layout, lambda anchor: False)

    # a turn's progress

    def begin(
        self,
        ask: Ask,
        tools: int,
        system: int,
        prompt: int,
        coming: Sequence[Generation] = (),
    ) -> None:
        """A prompt's prefill begins on these rows; it has the answers `coming` among its tokens."""
        account = self.account
        account.session, account.left, account.compacted = ask.session, False, False
        self._sums_up = ask.kind == COMPACTION and bool(account.generations)
        if ask.kind in GOES_ON or not account.generations:
            # A side request that goes on from a conversation's answers leaves it what it was.
            account.kind = ask.kind
        account.tools, account.system, account.prompt = tools, tools + system, prompt
        account.coming = [answer for answer in coming if answer.stop > account.valid]

    def passed(self, ids: Ids, stop: int, model: Model) -> None:
        """A prefill has written rows up to `stop` of the prompt `ids`; anchor it on a grid line."""
        account = self.account
        assert model.length == stop and stop > account.valid, (model.length, stop, account.valid)
        account.extend(ids, stop)
        if stop % model.grid == 0:
            gate, state = account.gate(stop), model.cache_state()
            account.anchors.take(stop, gate, state, self._room(model))
            self._anchored.append(stop)

    @property
    def layout(self) -> Layout:
        """What the worth of an anchor hangs on."""
        return Layout(self.account.system, self.account.prompt, self.account.valid)

    def _room(self, model: Model) -> Room:
        return Room(model.cost().anchor_bytes, self.layout, self._grow, self.shared)

    def anchored_below(self, limit: int) -> int:
        """The highest line at or below `limit` that ever had an anchor, evicted since or not."""
        return next((line for line in reversed(self._anchored) if line <= limit), 0)

    def checkpoint(self, ids: Ids, model: Model) -> None:
        """Copy the sections where a generation is: the tokens committed so far are `ids`."""
        account, length = self.account, model.length
        assert account.prompt <= account.valid <= length <= len(ids)
        self._tainted_from(account.valid)
        account.extend(ids, length)
        model.settle()
        account.anchors.checkpoint(length, model.cache_state(), self._room(model))
        self._anchored.append(length)

    def keep_end(self, ids: Ids, answer: Answer, model: Model) -> Outcome:
        """Take in the generation's rows, and copy the sections at the last one.

        `ids` are the committed tokens, prompt and answer; the last one is usually not forwarded
        yet. An engine that is ahead of them, because the generation stopped part way through an
        accepted block, is cut back first; when its sections are past them already, the rows stay
        and no end anchor is kept (`absorbed`).
        """
        account = self.account
        length = min(model.length, len(ids))
        assert account.prompt <= account.valid <= length
        self._tainted_from(account.valid)
        account.extend(ids, length)
        account.compacted = self._sums_up
        if length > account.prompt:
            account.generations.append(answer.over(account.prompt, length))
        used, account.end = account.end, None
        if not model.trim_pending(length):
            return Outcome(False, "absorbed")
        if not self.keeps_end:
            return Outcome(False, "off")
        model.settle()
        spare = self._retire(used, length, model)
        if spare is None and not self._grow("end", model.cost().anchor_bytes):
            return Outcome(False, "no room")
        account.end = End(length, copy_sections(model.cache_state(), spare))
        return Outcome(True)

    def _retire(self, used: End | None, length: int, model: Model) -> Tensors | None:
        """Keep the end anchor of the turn before as a checkpoint, or give its buffers back."""
        if used is None:
            return None
        old = Anchor(used.tokens, Gate.GREEDY, used.tensors, "checkpoint")
        if used.tokens < length and self.account.anchors.adopt(old, self._room(model)):
            insort(self._anchored, used.tokens)
            return None
        return used.tensors

    def _tainted_from(self, row: int) -> None:
        """Verify blocks write from here on.

        A state in the middle of a chunk counts as well: a cold prefill forwards the prompt's last
        rows together with the ones after them.
        """
        account = self.account
        account.taint = row if account.taint is None else min(account.taint, row)

    # accounts

    def copies(self) -> set[int]:
        """Which copies of the sections its anchors hold; others may hold some of them as well."""
        return {id(anchor.tensors) for anchor in self.account.anchors}

    def check(self, grid: int) -> None:
        """Integrity of the account; raises AssertionError."""
        self.account.check(grid)
