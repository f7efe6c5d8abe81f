"""While one block is put in place the workers unpack the next, and nobody takes a buffer too soon.

Method: the two schedules that are furthest apart. Files whose reads fill the buffer at once, and
workers that do nothing before somebody waits: whoever gives a buffer away too soon loses what is in
it. What comes back is compared as bytes. The canaries forget one wait each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

import pytest
import torch
from homes import Home

from cache.ports import Result
from cache.spill.codec import CodecConfig, Unpacking
from cache.spill.reader import Reader
from sim.files import SimFiles

PACKED, RAW = CodecConfig(frame_bytes=4_096), CodecConfig(mode="raw")


class Task(Generic[Result]):
    """Work that is done when somebody waits for it."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work, self._given = work, list[Result]()

    def wait(self) -> Result:
        if not self._given:
            self._given.append(self._work())
        return self._given[0]


class LateWorkers:
    """The laziest there are."""

    def start(self, kind: str, nbytes: int, work: Callable[[], Result]) -> Task[Result]:
        return Task(work)


class Landed:
    """A transfer that was over when it began."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def wait(self) -> int:
        return self._nbytes


class EagerFiles(SimFiles):
    """A drive that fills a buffer the moment it is asked."""

    def start_read(self, handle: int, offset: int, into: memoryview) -> Any:
        return Landed(super().start_read(handle, offset, into).wait())


def comes_back(codecs: tuple[CodecConfig, ...]) -> list[str]:
    """Save turn after turn, each under its codec, and start anew; what is not as it was."""
    home = Home("witness", EagerFiles(), ports={"workers": LateWorkers()}, codec=codecs[0])
    home.turn("a", more=300)
    for codec in (*codecs[1:], codecs[0]):
        home.turn("a", more=150)
        before = home.state()
        line = home.restarts(codec=codec)
        if line is None:
            return [event.why for event in home.events if event.event in ("fail", "damage")]
        after = home.state()
        wrong = [name for name in after if not torch.equal(before[name], after[name])]
        if wrong:
            return wrong
    return []


@pytest.mark.parametrize(
    "codecs",
    [(PACKED,), (RAW,), (PACKED, RAW), (RAW, PACKED), (PACKED, RAW, PACKED, RAW)],
    ids=["packed", "raw", "packed then raw", "raw then packed", "in turn"],
)
def test_blocks_of_either_codec_in_any_order_come_back(codecs: tuple[CodecConfig, ...]) -> None:
    assert comes_back(codecs) == []


def test_workers_are_at_work_while_the_block_before_is_put_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    placed, arrived, wait = Reader._placed, Reader._arrived, Unpacking.wait

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*rest: Any) -> Any:
            calls.append(name)
            return call(*rest)

        return noting

    monkeypatch.setattr(Reader, "_arrived", noted("begin", arrived))
    monkeypatch.setattr(Unpacking, "wait", noted("wait", wait))
    monkeypatch.setattr(Reader, "_placed", noted("place", placed))
    assert comes_back((PACKED,)) == []
    blocks = calls.count("place")
    assert blocks > 5 and calls.count("begin") == blocks
    assert calls == ["begin", *["wait", "begin", "place"] * (blocks - 1), "wait", "place"]


def test_canary_a_buffer_given_to_the_drive_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked, waiting = Reader._unpacked, list[Any]()

    def late(self: Reader, arrived: Any) -> str:
        """Waits for the block before the one that it was asked about."""
        waiting.append(arrived)
        return unpacked(self, waiting[-2]) if len(waiting) > 1 else ""

    monkeypatch.setattr(Reader, "_unpacked", late)
    assert comes_back((PACKED,)) != []


def test_canary_one_buffer_for_the_planes_of_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived, slots = Reader._arrived, list[memoryview]()

    def same(self: Reader, block: Any, entry: Any, image: memoryview, slot: memoryview) -> Any:
        slots.append(slot)
        found = arrived(self, block, entry, image, slots[0])
        if not isinstance(found, str) and found.work is not None:
            found.work.wait()  # At once: the workers are quick.
        return found

    monkeypatch.setattr(Reader, "_arrived", same)
    assert comes_back((PACKED,)) != []
