"""The gates on a CUDA device: resumes, graphs, blocks, and captures beside real copiers.

Goal: a resume through memory and the drive is a cold prefill bit for bit, a captured block an eager
one, and a capture is never spoiled by a thread that copies rows to the host under the lock.
Method: the gates of `moorage check device`, each in a test of its own; CUDA's own capture and its
global mode. The canary copies without the lock, and the device must refuse. Skipped without one.
"""

from __future__ import annotations

import threading
from pathlib import Path

import gpu
import numpy as np
import pytest
import torch

from engine.capture import capturing
from engine.config import HybridConfig
from engine.device import moved
from engine.graphs import CudaGraphs, Made
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.weights import random_weights
from replay.device_gates import GRID, gates, graph_gate, same

pytestmark = pytest.mark.gpu
NAMES = (
    *(f"graph is eager, {kind}" for kind in ("float32", "bfloat16", "bfloat16, e4m3")),
    *(f"block is its tokens, {kind}" for kind in ("float32", "bfloat16", "bfloat16, e4m3")),
    "captures beside copies",
    *(f"memory, {kind}" for kind in ("float32", "bfloat16", "bfloat16, e4m3")),
    *("disk", "spill"),
)


def decoder(**changes: object) -> Decoder:
    return Decoder(moved(random_weights(HybridConfig.tiny(**changes), 0), gpu.device()))


@pytest.mark.parametrize("name", NAMES)
def test_a_gate_holds(name: str, tmp_path: Path) -> None:
    found = dict(gates(gpu.device(), tmp_path, 0))
    assert set(found) == set(NAMES)
    # The drive's are about the last kind of rows.
    assert found[name]() == ""


def test_graphs_are_what_a_device_does_by_itself() -> None:
    of = Hybrid(decoder(), grid=GRID, window=256)
    of.verify(np.arange(4, dtype=np.int32))
    assert of.graphs is not None and of.graphs.replays == 1 and not of.graphs.refused
    assert Hybrid(decoder(), grid=GRID, window=256, graphs=False).graphs is None


def test_a_window_and_junk_rows_change_nothing() -> None:
    found = []
    for window in (GRID + 8, 4 * GRID):
        of = Hybrid(decoder(), grid=GRID, window=window)
        for view in of.cache_state().views:
            view.tensor.fill_(torch.nan)
        of.prefill(np.arange(GRID, dtype=np.int32))
        found.append(of.verify(np.arange(5, dtype=np.int32)))
    assert found[0].isfinite().all() and same(*found)


def copier(of: Hybrid, locked: bool, done: threading.Event, failed: list[str]) -> None:
    while not done.is_set():
        try:
            if locked:
                with of.device_calls():
                    of.cache_state().views[0].rows(0, GRID).cpu()
            else:
                of.cache_state().views[0].rows(0, GRID).cpu()
        except RuntimeError as error:
            failed.append(str(error))


def beside_copiers(locked: bool) -> list[str]:
    """What copiers and captures said while they ran beside each other."""
    of, done, failed = Hybrid(decoder(), grid=GRID, window=256), threading.Event(), list[str]()
    threads = [threading.Thread(target=copier, args=(of, locked, done, failed)) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for seed in range(2):
            why = graph_gate(decoder(), seed, CudaGraphs(gpu.device()))
            failed += [why] if why else []
    except RuntimeError as error:
        failed.append(str(error))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    return failed


def test_captures_and_copiers_take_turns() -> None:
    assert beside_copiers(locked=True) == []


def test_canary_a_copy_without_the_lock() -> None:
    """Another thread's copy while a capture is under way: one of the two must fail."""
    device, failed = gpu.device(), list[str]()
    numbers, copied = torch.zeros(1 << 20, device=device), threading.Event()

    def copies() -> None:
        try:
            numbers.cpu()
        except RuntimeError as error:
            failed.append(str(error))
        copied.set()

    def run() -> Made:
        if torch.cuda.is_current_stream_capturing():
            thread = threading.Thread(target=copies)
            thread.start()
            copied.wait(5)
            thread.join()
        return (numbers + 1,)

    try:
        CudaGraphs(device).capture(run)
    except RuntimeError as error:
        failed.append(str(error))
    assert failed
    torch.cuda.synchronize()


def test_a_capture_waits_for_who_copies() -> None:
    of, order = Hybrid(decoder(), grid=GRID, window=256), list[str]()
    held, asked = threading.Event(), threading.Event()

    def copies() -> None:
        with of.device_calls():
            held.set()
            asked.wait(1)
            of.cache_state().views[0].rows(0, GRID).cpu()
            order.append("copied")

    thread = threading.Thread(target=copies)
    thread.start()
    held.wait(5)
    asked.set()
    with capturing():
        order.append("captured")
    thread.join()
    assert order == ["copied", "captured"]
