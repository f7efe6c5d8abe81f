"""A CPU's stand-in for a graph capture: the calls are taped, and played again as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.capture import capturing
from engine.graphs import Made, Replay
from engine.layers.attend import attend

NOT_CAPTURED = "operation not permitted when stream is capturing"
_WAITS = ("item", "_local_scalar_dense", "nonzero", "_unique2", "is_nonzero", "equal")


@torch.library.custom_op("moorage_tests::attend_counted", mutates_args=())
def attend_counted(
    q: torch.Tensor, start: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """One call of the tape, as it is one kernel on a device: the count is read when it plays."""
    return attend(q, int(start), keys, values).clone()


class Taped(TorchDispatchMode):
    """Notes every call; refuses those for which a device's host would wait."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.__name__.split(".")[0] in _WAITS:
            raise RuntimeError(f"{func}: {NOT_CAPTURED}")
        out = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, out))
        return out

    def play(self) -> None:
        """The same calls on the same memory, with every number of the host's as it was."""
        for func, args, kwargs, out in self._calls:
            again = func(*args, **kwargs)
            olds = out if isinstance(out, tuple | list) else (out,)
            news = again if isinstance(again, tuple | list) else (again,)
            for into, tensor in zip(olds, news, strict=True):
                if isinstance(tensor, torch.Tensor) and tensor.data_ptr() != into.data_ptr():
                    into.copy_(tensor)


class Tapes:
    """Captures by tape."""

    def capture(self, run: Callable[[], Made]) -> tuple[Made, Replay]:
        tape = Taped()
        with capturing(), tape:
            made = run()
        return made, tape.play
