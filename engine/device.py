"""The device a model computes on: by name, its settings, its kernels, its traits, moved weights."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, wraps
from importlib.metadata import version
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch

from engine.bad import BadInput

if TYPE_CHECKING:
    from engine.weights import Weights

CPU = torch.device("cpu")
WITH_KERNELS = frozenset({"cuda"})
"""Types of devices that kernels are written for."""
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Names the workspace of the library of products, whose choice of an algorithm hangs on it."""
_WORKSPACE = ":4096:8"
P = ParamSpec("P")
R = TypeVar("R")
One = torch.Tensor
Two = tuple[torch.Tensor, torch.Tensor]
Five = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Kernels:
    """What computes on a device instead of the torch code of a CPU; each names its reference."""

    solve: Callable[..., Five]
    """`delta_rule.solve`, all but the keys, which stay."""
    sweep: Callable[..., One]
    """`delta_rule._sweep`."""
    attend_rows: Callable[..., One]
    """`attend` for at most `queries_max` tokens after a count of rows that lies on the device."""
    flash: Callable[..., Two]
    """Attention with its log-sum-exp, of the parts that `attend` weighs."""
    quantise: Callable[..., Two]
    """`e4m3.quantise`."""
    dequantise: Callable[..., One]
    """`e4m3.dequantise`."""
    queries_max: int
    files: tuple[str, ...]
    """Where they are written down, for the manifest."""


def device_of(name: str) -> torch.device:
    """The device of this name: `cpu`, `cuda` (the first one) or `cuda:N`, ready to compute on.

    Raises BadInput for any other name, and where torch, Triton or the machine has no such device.
    """
    if name == "cpu":
        return CPU
    found = re.fullmatch(r"cuda(?::(\d{1,4}))?", name)
    if not found:
        raise BadInput("--device", None, f"{name!r} is none of cpu, cuda, cuda:N")
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "no CUDA device is in reach" if built else "this torch was built without CUDA"
        raise BadInput("--device", None, f"{name}: {why}")
    index, count = int(found[1] or 0), torch.cuda.device_count()
    if index >= count:
        raise BadInput("--device", None, f"{name}: this machine has {count}, from cuda:0")
    if torch.cuda.get_device_capability(index) < (8, 0):
        raise BadInput("--device", None, f"{name}: its compute capability is below 8.0")
    try:
        _triton_kernels()
    except ImportError as error:
        raise BadInput("--device", None, f"{name}: {error}") from error
    settle()
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def settle() -> None:
    """Let products on a device be the same at every run, in full precision.

    Each stream has a workspace of one size, float32 is not cut to TF32, and bfloat16 sums stay in
    float32 where a product is split. Before the first product: the workspace is made with it.
    """
    os.environ.setdefault(WORKSPACE, _WORKSPACE)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def kernels_for(device: torch.device) -> Kernels | None:
    """The kernels that compute on a device; None where the torch code does, as on every CPU."""
    return _triton_kernels() if device.type in WITH_KERNELS else None


def kernel_files(device: torch.device) -> tuple[str, ...]:
    """What computes on a device beside the modules that ask for its kernels, for the manifest."""
    kernels = kernels_for(device)
    return () if kernels is None else ("engine/device.py", *kernels.files)


@cache
def _triton_kernels() -> Kernels:
    """Raises ImportError where Triton is missing."""
    from engine.kernels import attend_device, decode_attention, delta_scan, rows_e4m3

    modules = attend_device, decode_attention, delta_scan, rows_e4m3
    return Kernels(
        solve=_where_the_first_lies(delta_scan.solve),
        sweep=_where_the_first_lies(delta_scan.sweep),
        attend_rows=_where_the_first_lies(decode_attention.attend_rows),
        flash=attend_device.flash,
        quantise=_where_the_first_lies(rows_e4m3.quantise),
        dequantise=_where_the_first_lies(rows_e4m3.dequantise),
        queries_max=decode_attention.QUERIES_MAX,
        files=tuple(f"{module.__name__.replace('.', '/')}.py" for module in modules),
    )


def _where_the_first_lies(kernel: Callable[P, R]) -> Callable[P, R]:
    """Triton starts kernels on the thread's current device, which may be another."""

    @wraps(kernel)
    def started(*arguments: P.args, **named: P.kwargs) -> R:
        first = arguments[0]
        assert isinstance(first, torch.Tensor)
        with torch.cuda.device(first.device):
            return kernel(*arguments, **named)

    return started


class Moved(Mapping[str, torch.Tensor]):
    """Tensors of another mapping on a device, each taken there when it is asked for."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self._tensors, self._device = tensors, device

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name].to(self._device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def moved(weights: Weights, device: torch.device) -> Weights:
    """The same weights on `device`, for a decoder to take: each tensor goes there as it is read.

    What a recipe or a digest says of them stays true: a move changes no bit.
    """
    if device == CPU:
        return weights
    return replace(weights, tensors=Moved(weights.tensors, device))


def device_traits(device: torch.device) -> dict[str, str]:
    """What of a device decides bits, by name: what it is, what drives it, how products are set."""
    major, minor = torch.cuda.get_device_capability(device)
    matmul = torch.backends.cuda.matmul
    return {
        "device": torch.cuda.get_device_name(device),
        "capability": f"{major}.{minor}",
        "multiprocessors": str(torch.cuda.get_device_properties(device).multi_processor_count),
        "driver": str(torch._C._cuda_getDriverVersion()),
        "runtime": str(torch.version.cuda),
        "triton": version("triton"),
        "workspace": os.environ.get(WORKSPACE, ""),
        "matmul precision": torch.get_float32_matmul_precision(),
        "bfloat16 split sums": str(matmul.allow_bf16_reduced_precision_reduction),
    }
