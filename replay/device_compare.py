"""A kernel beside the torch code it is held to: how far apart, and how much faster"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch

from cache.ports import Clock
from engine import device as devices

Tensors = tuple[torch.Tensor, ...]
FULL, CARRIED, HALF, BITS = 2e-5, 1e-4, 2**-6, 0.0
"""Bounds, on the largest value: float32 sums in another order; the same, carried through chunks;
bfloat16, whose products and weights are rounded; and no difference in any bit."""
_ROUNDS, _BATCH_S, _CALLS_MAX = 3, 0.05, 200


@dataclass(frozen=True, slots=True)
class Compared:
    """A kernel on one input."""

    kernel: str
    case: str
    difference: float
    """The largest one, of the largest value; NaN where something is no number."""
    bound: float
    ratio: float | None
    """Seconds of the torch code on the same device over the kernel's; None where none is there."""
    why: str = ""
    """What went wrong before anything could be compared."""

    @property
    def held(self) -> bool:
        """Whether it is near enough."""
        return self.difference <= self.bound


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel on one input, and how torch makes the same."""

    kernel: str
    case: str
    bound: float
    ours: Callable[[], Tensors]
    wanted: Callable[[], Tensors]
    """On the host, by the torch code that a CPU runs."""
    plain: Callable[[], object] | None
    """Torch on the device."""


class Stopwatch:
    """Seconds that a device takes."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self._device, self._clock = device, clock

    def done(self) -> float:
        """The clock, once all that was asked for is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock.mono_s()

    def seconds(self, run: Callable[[], object]) -> float:
        """Of one call: the median of a few batches, after calls that compile and warm up."""
        run()
        begun_s = self.done()
        run()
        once_s = self.done() - begun_s
        calls = max(1, min(_CALLS_MAX, int(_BATCH_S / max(once_s, 1e-9))))
        taken = []
        for _ in range(_ROUNDS):
            begun_s = self.done()
            for _ in range(calls):
                run()
            taken.append((self.done() - begun_s) / calls)
        return median(taken)


def compared(case: Case, watch: Stopwatch) -> Compared:
    """The case looked at and timed; a kernel that a device can't compile or run is not held."""
    try:
        return _compared(case, watch)
    except Exception as error:
        return Compared(case.kernel, case.case, math.nan, case.bound, None, one_line(error))


def one_line(error: Exception) -> str:
    """What an error says, and of which kind it is."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0] if said else ''}"


def _compared(case: Case, watch: Stopwatch) -> Compared:
    ours = tuple(tensor.cpu() for tensor in case.ours())
    apart = difference(ours, case.wanted(), case.bound == BITS)
    ratio = None
    if case.plain is not None:
        with plainly():
            plain_s = watch.seconds(case.plain)
        ratio = plain_s / watch.seconds(case.ours)
    return Compared(case.kernel, case.case, apart, case.bound, ratio)


def difference(ours: Tensors, wanted: Tensors, bits: bool) -> float:
    """The largest one, of the largest value; infinite where bits are asked for and one differs."""
    apart = [0.0]
    for a, b in zip(ours, wanted, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return math.inf
        if bits:
            same = torch.equal(*(x.contiguous().view(torch.uint8) for x in (a, b)))
            apart.append(0.0 if same else math.inf)
        elif a.numel():
            largest = b.double().abs().max().clamp_min(1e-30)
            apart.append(float((a.double() - b.double()).abs().max() / largest))
    return worst(apart)


def worst(apart: Sequence[float]) -> float:
    """The largest; no number when one of them is none."""
    return math.nan if any(map(math.isnan, apart)) else max(apart)


@contextmanager
def plainly() -> Iterator[None]:
    """Meanwhile torch's own code computes on devices too."""
    kept, devices.WITH_KERNELS = devices.WITH_KERNELS, frozenset()
    try:
        yield
    finally:
        devices.WITH_KERNELS = kept


class Draw:
    """Random tensors, the same on every device."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device, self._generator = device, torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normal noise."""
        return torch.empty(shape).normal_(generator=self._generator).to(dtype).to(self._device)

    def words(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Integers of any bits."""
        nbytes = count * dtype.itemsize
        data = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=self._generator)
        return data.view(dtype).to(self._device)

    def count(self, number: int) -> torch.Tensor:
        """A number on the device, [1]."""
        return torch.full((1,), number, device=self._device)
