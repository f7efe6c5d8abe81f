"""Our tensors, read from shards when they are asked for: views, cuts, casts, unpacked ones"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from engine.bad import BadCheckpoint
from engine.checkpoint.names import Source
from engine.checkpoint.nvfp4 import GROUP, Packed, Quantisation, dequantise
from engine.checkpoint.shards import Shards
from engine.weights import as_stored

_PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
PARTS = ("weight_packed", "weight_scale", "weight_global_scale")


class Tensors(Mapping[str, torch.Tensor]):
    """By our names. Asking twice reads twice: nothing is kept.

    A tensor that is stored as it is used is a view into its file; one that is cut apart, cast or
    unpacked is made when it is asked for. Raises BadCheckpoint for one that, as it is used, has a
    NaN or an infinity: no row that such a weight computes could be held to another.
    """

    def __init__(
        self,
        shards: Shards,
        sources: Mapping[str, Source],
        dtype: torch.dtype,
        quantisation: Quantisation | None,
    ) -> None:
        """Check that every source has its shape; raises BadCheckpoint for the first that hasn't."""
        self._shards, self._sources, self._dtype = shards, sources, dtype
        for source in {source.name: source for source in sources.values()}.values():
            if source.name in shards.names:
                _check_plain(shards, source)
            else:
                _check_packed(shards, source, quantisation)

    def __getitem__(self, name: str) -> torch.Tensor:
        source = self._sources[name]
        if source.name in self._shards.names:
            tensor = self._cut(source, self._shards.read(source.name))
            made = tensor if as_stored(name) else tensor.to(self._dtype)
        else:
            made = self._unpacked(source)
        # Either is NaN where any value is; a fifth of the time that a mask of all values takes.
        if not all(bound.isfinite() for bound in made.aminmax()):
            place, what = self._shards.place(self._stored(source)), "a NaN or an infinity"
            raise BadCheckpoint(f"{place}: {source.name} has {what} as {made.dtype}")
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def _stored(self, source: Source) -> str:
        """The name of the stored tensor that holds its values."""
        return source.name if source.name in self._shards.names else parts_of(source.name)[0]

    def _unpacked(self, source: Source) -> torch.Tensor:
        packed, scale, whole = (self._shards.read(name) for name in parts_of(source.name))
        cut = Packed(self._cut(source, packed), self._cut(source, scale), whole)
        return dequantise(cut, self._dtype)

    def _cut(self, source: Source, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if source.cut is None else source.cut(tensor)


def parts_of(name: str) -> tuple[str, str, str]:
    """The three tensors in place of a packed one, which is `*.weight`."""
    packed, scale, whole = (f"{name.removesuffix('weight')}{part}" for part in PARTS)
    return packed, scale, whole


def unpacked_names(stored: frozenset[str]) -> frozenset[str]:
    """The names of stored tensors, a packed one's as if it were not."""
    packed = {name for name in stored if name.endswith(f".{PARTS[0]}")}
    return stored | {name.removesuffix("_packed") for name in packed}


def _check_plain(shards: Shards, source: Source) -> None:
    place, name = shards.place(source.name), source.name
    _check_shape(shards, name, source.shape)
    if (packed := parts_of(name)[0]) in shards.names:
        raise BadCheckpoint(f"{shards.place(packed)}: has {packed}, and there is a {name} as well")
    if (dtype := shards.dtype(name)) not in _PLAIN:
        raise BadCheckpoint(f"{place}: {name} is {dtype}, not a plain floating-point type")


def _check_packed(shards: Shards, source: Source, quantisation: Quantisation | None) -> None:
    packed, scale, whole = parts_of(source.name)
    place, module = shards.place(packed), source.name.removesuffix(".weight")
    if quantisation is None:
        raise BadCheckpoint(f"{place}: {packed} is packed, and config.json does not say how")
    if quantisation.ignores(module):
        raise BadCheckpoint(f"{place}: {packed} is packed, and config.json has it ignored")
    for name in (scale, whole):
        if name not in shards.names:
            raise BadCheckpoint(f"{place}: {name} is missing")
    out, width = source.shape
    if width % GROUP:
        raise BadCheckpoint(f"{place}: {module} has {width} columns, no groups of {GROUP}")
    _check_shape(shards, packed, (out, width // 2))
    _check_shape(shards, scale, (out, width // GROUP))
    wanted = {packed: torch.uint8, scale: torch.float8_e4m3fn, whole: torch.float32}
    for name, dtype in wanted.items():
        if shards.dtype(name) != dtype:
            raise BadCheckpoint(f"{place}: {name} is {shards.dtype(name)}, not {dtype}")
    value = shards.read(whole)
    if value.numel() != 1 or not (value.isfinite().all() and (value > 0).all()):
        raise BadCheckpoint(f"{place}: {whole} is no single positive number")


def _check_shape(shards: Shards, name: str, shape: tuple[int, ...]) -> None:
    if (got := shards.shape(name)) != shape:
        raise BadCheckpoint(f"{shards.place(name)}: {name} is {got}, not {shape}")
