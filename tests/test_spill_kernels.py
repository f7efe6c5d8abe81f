"""The Triton kernels, under Triton's interpreter on a CPU, beside what they are held to.

Method: a process of its own, since the interpreter has to be asked for before Triton is loaded;
it runs every case against the torch path and the bytes in Python, prints what differs, and plants
faults that must differ. Where a kernel is started is noted by stand-ins. Without Triton, or on
tensors in the host's memory, torch does the work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from cache.spill import planes, sums

LARGE = 1 << 13
"""Elements a program of the grid works on here: the interpreter is slow at starting them."""
SIZES = (0, 5, LARGE, 3 * LARGE - 7)
INTEGERS = (torch.uint8, torch.int16, torch.int32, torch.int64)


def noise(dtype: torch.dtype, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    data = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return data.view(dtype)


def needs_triton() -> list[str]:
    """What breaks where Triton is missing: torch does a device's work too then. Goes first."""
    assert "cache.spill.kernels" not in sys.modules, "imported with no tensor on a device"

    class OnDevice:
        is_cuda = True

    sys.modules["triton"] = None  # type: ignore[assignment]
    found = sums.kernels_for(OnDevice())  # type: ignore[arg-type]
    del sys.modules["triton"]
    bad = [] if found is None else ["found without it"]
    found = sums.kernels_for(OnDevice())  # type: ignore[arg-type]
    return bad if found is sys.modules["cache.spill.kernels"] else [*bad, "not found with it"]


def pairs_differ() -> list[str]:
    from cache.spill import kernels

    bad = []
    for count in SIZES:
        words = noise(torch.int32, count)
        if not torch.equal(kernels.pair(words, LARGE), sums.torch_pair(words)):
            bad.append(f"pair of {count}")
    return bad


def largest_words_differ() -> list[str]:
    """Sums that wrap, over programs of two sizes."""
    from cache.spill import kernels

    words = torch.full((150_001,), -1, dtype=torch.int32)
    n = len(words)
    want = [(2**32 - 1) * n, (2**32 - 1) * n * (n + 1) // 2 % 2**64 - 2**64]
    assert want[1] == int(sums.torch_pair(words)[1])
    return [
        f"block {block}"
        for block in (LARGE, 2 * LARGE)
        if kernels.pair(words, block).tolist() != want
    ]


def planes_differ() -> list[str]:
    from cache.spill import kernels

    bad = []
    for dtype in INTEGERS:
        for count in SIZES:
            ints = noise(dtype, count)
            want = torch.empty(dtype.itemsize, count, dtype=torch.uint8)
            planes.torch_split(ints, want)
            # A store with room between its planes, which must stay.
            store = torch.full((dtype.itemsize, count + 9), 0xA5, dtype=torch.uint8)
            kernels.split(ints, store[:, 4 : 4 + count], LARGE)
            if not torch.equal(store[:, 4 : 4 + count], want):
                bad.append(f"split of {count} {dtype}")
            if not (store[:, :4].eq(0xA5).all() and store[:, 4 + count :].eq(0xA5).all()):
                bad.append(f"split of {count} {dtype}: outside")
            back = torch.zeros(count, dtype=dtype)
            kernels.join(store[:, 4 : 4 + count], back, LARGE)
            if not torch.equal(back, ints):
                bad.append(f"join of {count} {dtype}")
    return bad


def whole_path_differs() -> list[str]:
    """split, join and sums_of as they are on a device: by the kernels."""
    from cache.spill import kernels

    bad = []
    kernels.BLOCK = LARGE
    kernels.pair.__defaults__ = kernels.split.__defaults__ = kernels.join.__defaults__ = (LARGE,)
    for dtype in (torch.bfloat16, torch.float32, torch.complex128, torch.float8_e4m3fn):
        rows = noise(dtype, 3 * 40 * 6).view(3, 40, 6)[:, 5:30]
        by_torch = torch.empty(dtype.itemsize, rows.numel(), dtype=torch.uint8)
        planes.split(rows, by_torch)
        want = sums.sums_of([rows, rows[0, 0, :1]])
        before = (planes.kernels_for, sums.kernels_for)
        planes.kernels_for = sums.kernels_for = lambda tensor: kernels  # type: ignore[assignment]
        try:
            cut, back = torch.empty_like(by_torch), noise(dtype, 3 * 40 * 6).view(3, 40, 6).clone()
            planes.split(rows, cut)
            planes.join(cut, back[:, :25])
            got = sums.sums_of([rows, rows[0, 0, :1]])
        finally:
            planes.kernels_for, sums.kernels_for = before
        if not torch.equal(cut, by_torch):
            bad.append(f"planes of {dtype}")
        if sums.sums_of([back[:, :25]]) != want[:1]:
            bad.append(f"rows of {dtype}")
        if got != want:
            bad.append(f"sums of {dtype}")
    return bad


class Elsewhere:
    """A kernel that is only looked at: how its starts were asked for."""

    def __init__(self, entered: list[int]) -> None:
        self._entered, self.starts = entered, list[int | None]()

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def start(*given: object, **named: object) -> None:
            self.starts.append(self._entered[-1] if self._entered else None)

        return start


def started_elsewhere() -> list[str]:
    """Kernels that are not started where their tensors lie; None is wherever the thread is."""
    from cache.spill import kernels

    entered = list[int]()

    @contextmanager
    def on(number: int) -> Iterator[None]:
        entered.append(number)
        yield
        entered.pop()

    names = ("_pair_kernel", "_split_kernel", "_join_kernel")
    sound = [getattr(kernels, name) for name in names]
    stand_ins = [Elsewhere(entered) for _ in names]
    words, cut = noise(torch.int32, 9), torch.empty(4, 9, dtype=torch.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device", on)
        for name, stand_in in zip(names, stand_ins, strict=True):
            patch.setattr(kernels, name, stand_in)
        kernels.pair(words)
        kernels.split(words, cut)
        kernels.join(cut, words)
    assert [getattr(kernels, name) for name in names] == sound
    pairs = zip(names, stand_ins, strict=True)
    # The host's memory has the number -1.
    return [name for name, one in pairs if one.starts != [words.get_device()]]


def planted() -> list[str]:
    """Kernels with a fault each; gives those that nothing was seen of."""
    from cache.spill import kernels

    unseen = []
    sound = (kernels.pair, kernels.split, kernels.join)

    def signed(words: torch.Tensor, block: int) -> torch.Tensor:
        return torch.stack([words.sum(), sound[0](words, block)[1]])

    def from_zero(words: torch.Tensor, block: int) -> torch.Tensor:
        plain, weighted = sound[0](words, block)
        return torch.stack([plain, weighted - plain])

    def first_program_only(words: torch.Tensor, block: int) -> torch.Tensor:
        return sound[0](words[:block], block)

    for fault in (signed, from_zero, first_program_only):
        kernels.pair = fault
        unseen += [] if pairs_differ() else [fault.__name__]
    kernels.pair = sound[0]

    def reversed_planes(ints: torch.Tensor, into: torch.Tensor, block: int) -> None:
        sound[1](ints, into, block)
        into.copy_(into.flip(0))

    def without_the_last(planes: torch.Tensor, into: torch.Tensor, block: int) -> None:
        sound[2](planes[:, :-1], into[:-1], block)

    kernels.split = reversed_planes
    unseen += [] if planes_differ() else ["reversed_planes"]
    kernels.split, kernels.join = sound[1], without_the_last
    unseen += [] if planes_differ() else ["without_the_last"]
    kernels.join = sound[2]
    return unseen


CASES: tuple[Callable[[], list[str]], ...] = (
    needs_triton,
    pairs_differ,
    largest_words_differ,
    planes_differ,
    started_elsewhere,
    planted,
    whole_path_differs,
)


@pytest.fixture(scope="module")
def interpreted() -> dict[str, list[str]]:
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_the_kernels_give_what_torch_gives(case: str, interpreted: dict[str, list[str]]) -> None:
    assert interpreted[case] == []


if __name__ == "__main__":
    print(json.dumps({case.__name__: case() for case in CASES}))
