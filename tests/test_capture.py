"""The capture lock: a graph capture is never spoiled by another thread's call.

Goal: any number of copiers and captures run beside each other, over several engines, and none
fails; a thread that holds the lock may take it again; a simulation may put its own in an engine.
Method: a made-up device with a global capture mode, as CUDA's: a call from another thread during a
capture fails and spoils it. A capture waits there until a copier has tried, so that the race
happens in every round and not by luck. Canaries leave the lock out on either side, or give each
engine its own, and must go red.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import pytest

from engine.adapter import Engine
from engine.capture import CAPTURE, Turns, capturing
from engine.config import HybridConfig
from engine.graphs import Made, Replay
from engine.hybrid import Hybrid
from engine.witness import Witness

ROUNDS = 150
Held = Callable[[], AbstractContextManager[object]]


class Device:
    """Calls from any thread, and captures during which only the capturing thread may call."""

    def __init__(self) -> None:
        self._by: int | None = None
        self._spoiled = False
        self._tried = threading.Event()
        self._calls = threading.Lock()
        """The device's own, around one call: what this test is about is who may make one."""

    def tries(self) -> None:
        """A copier is about to ask for its turn."""
        self._tried.set()

    def call(self) -> None:
        """One call; RuntimeError when a capture of another thread is under way."""
        with self._calls:
            if self._by not in (None, threading.get_ident()):
                self._spoiled = True
                raise RuntimeError("operation not permitted when stream is capturing")

    def capture(self) -> None:
        """A whole capture; RuntimeError when another thread called meanwhile."""
        self.call()
        with self._calls:
            assert self._by is None, "two captures at once"
            self._by, self._spoiled = threading.get_ident(), False
        self._tried.clear()
        # Long enough for a copier to come if nothing holds it; one that waits has tried already.
        self._tried.wait(0.01)
        self.call()
        with self._calls:
            self._by = None
            if self._spoiled:
                raise RuntimeError("capture invalidated")


def failures(captures: list[Held], copies: list[Held], rounds: int = ROUNDS) -> list[str]:
    """What went wrong while each of `captures` captured and each of `copies` copied in threads."""
    device, failed, done = Device(), list[str](), threading.Event()

    def captor(held: Held) -> None:
        for _ in range(rounds):
            try:
                with held():
                    device.capture()
            except (RuntimeError, AssertionError) as error:
                failed.append(f"capture: {error}")

    def copier(held: Held) -> None:
        while not done.is_set():
            device.tries()
            try:
                with held():
                    device.call()
                    device.call()
            except RuntimeError as error:
                failed.append(f"copy: {error}")

    threads = [threading.Thread(target=copier, args=(held,)) for held in copies]
    first = [threading.Thread(target=captor, args=(held,)) for held in captures]
    for thread in (*threads, *first):
        thread.start()
    for thread in first:
        thread.join()
    done.set()
    for thread in threads:
        thread.join()
    return failed


def engines(count: int) -> list[Engine]:
    main = Witness(4, 64)
    return [main, *(main.twin(32) for _ in range(count - 1))]


def free(lock: Turns) -> bool:
    """Whether another thread gets the lock within a second."""
    thread = threading.Thread(target=lambda: lock.__enter__() and lock.__exit__(), daemon=True)
    thread.start()
    thread.join(1.0)
    return not thread.is_alive()


def test_copies_and_captures_take_turns() -> None:
    main, side = engines(2)
    assert failures([capturing], [main.device_calls, side.device_calls]) == []


class ByGraphs:
    """Captures as a hybrid's graphs do, on the made-up device: two engines, every size once."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def capture(self, run: Callable[[], Made]) -> tuple[Made, Replay]:
        with capturing():
            self._device.capture()
            made = run()
            self._device.call()
        return made, lambda: None


def graphs_beside_copies(held: Callable[[Engine], AbstractContextManager[object]]) -> list[str]:
    """What goes wrong while two engines capture their blocks and a thread copies."""
    device, failed, done = Device(), list[str](), threading.Event()
    first = Hybrid.random(HybridConfig.tiny(), 1, grid=16, window=64)
    first = Hybrid(first.decoder, grid=16, window=64, graphs=ByGraphs(device))
    made = [first, first.twin(32)]

    def copier() -> None:
        while not done.is_set():
            device.tries()
            try:
                with held(first):
                    device.call()
            except RuntimeError as error:
                failed.append(f"copy: {error}")

    thread = threading.Thread(target=copier)
    thread.start()
    for n in range(1, 9):
        for of in made:
            of.verify(np.arange(n, dtype=np.int32))
            of.accept(0)
    done.set()
    thread.join()
    for of in made:
        assert of.graphs is not None
        failed += [f"capture: {why}" for why in of.graphs.refused.values()]
    return failed


def test_a_hybrids_captures_and_copies_take_turns() -> None:
    assert graphs_beside_copies(lambda of: of.device_calls()) == []


def test_canary_a_copy_beside_a_hybrids_captures_without_the_lock() -> None:
    failed = graphs_beside_copies(lambda of: nullcontext())
    assert any(said.startswith("copy") for said in failed)
    assert any(said.startswith("capture") for said in failed)


def test_captures_of_several_engines_take_turns() -> None:
    assert failures([capturing, capturing], [engines(1)[0].device_calls], ROUNDS // 3) == []


def test_who_holds_it_may_take_it_again() -> None:
    engine = engines(1)[0]
    with capturing(), engine.device_calls(), engine.device_calls(), capturing():
        pass
    assert free(CAPTURE), "all of it was given back"


def visits(turns: Turns, done: list[str], name: str) -> None:
    """Three turns, each asked for at once after the one before."""
    for _ in range(3):
        with turns:
            done.append(name)
            # Let go only when the other stands in the line again, so that luck decides nothing.
            until(lambda: turns._waiting or done.count("a") == 3 or done.count("b") == 3)


def until(holds: Callable[[], object]) -> None:
    for _ in range(2_000):
        if holds():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came to that")


def served(turns: Turns) -> str:
    """In which order two who each ask three times, again at once, are served."""
    done: list[str] = []
    with turns:
        threads = [threading.Thread(target=visits, args=(turns, done, n)) for n in ("a", "b")]
        for n, thread in enumerate(threads, 1):
            thread.start()
            until(lambda n=n: len(turns._waiting) == n)
    for thread in threads:
        thread.join()
    return "".join(done)


def test_a_capture_waits_for_one_copy_at_most() -> None:
    """Who lets go and asks again at once does not come before one who waited meanwhile."""
    assert {served(Turns()) for _ in range(20)} == {"ababab"}


def test_a_wait_that_is_interrupted_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(turns._changed, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt), turns:
        pass
    monkeypatch.undo()
    assert free(turns)


def test_a_failed_capture_gives_the_lock_back() -> None:
    with pytest.raises(RuntimeError, match="spoiled"), capturing():
        raise RuntimeError("spoiled")
    test_who_holds_it_may_take_it_again()


def test_all_engines_share_one_until_a_simulation_puts_its_own() -> None:
    main, side = engines(2)
    assert main.device_calls() is side.device_calls() is CAPTURE
    held: list[str] = []

    @contextmanager
    def own():  # type: ignore[no-untyped-def]
        held.append("held")
        yield

    main.device_lock = own()
    with main.device_calls():
        assert held == ["held"]
    assert side.device_calls() is CAPTURE


def test_canary_a_copier_without_the_lock() -> None:
    failed = failures([capturing], [nullcontext], rounds=3)
    assert any(said.startswith("copy") for said in failed)
    assert any("invalidated" in said for said in failed)


def test_canary_a_capture_without_the_lock() -> None:
    assert failures([nullcontext], [engines(1)[0].device_calls], rounds=3)


class Barging(Turns):
    """Goes to whoever asks while it is free, whoever waits."""

    def __enter__(self) -> Turns:
        with self._changed:
            self._waiting.append(ticket := object())
            self._changed.wait_for(lambda: self._owner is None)
            self._waiting.remove(ticket)
            self._owner, self._depth = threading.get_ident(), 1
        return self


def test_canary_a_lock_that_may_be_taken_again_at_once() -> None:
    assert {served(Barging()) for _ in range(20)} != {"ababab"}


def test_canary_a_lock_for_each_engine() -> None:
    main = engines(1)[0]
    main.device_lock = threading.RLock()
    assert failures([capturing], [main.device_calls], rounds=3)
