"""Safetensors files of a directory, mapped: a tensor is a view into its file until it is changed

Format: https://huggingface.co/docs/safetensors, and the index file that transformers writes beside
several shards. The library maps a file privately and reads nothing before a tensor is used.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.bad import BadCheckpoint
from engine.checkpoint.json_file import read_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}
"""What a weight is stored as, by the format's words; others have no use here."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Shards:
    """The tensors of some files by name. A file stays mapped as long as a view into it lives."""

    def __init__(self, files: Mapping[Path, Any], places: Mapping[str, Path]) -> None:
        """`files` are open ones, `places` says in which of them a tensor lies."""
        self._files, self._places = files, places
        self._slices = {name: files[path].get_slice(name) for name, path in places.items()}
        self._touched: list[tuple[int, int]] = []

    @property
    def files(self) -> list[Path]:
        """All of them, by name."""
        return sorted(self._files)

    @property
    def names(self) -> frozenset[str]:
        """Of all tensors."""
        return frozenset(self._places)

    def place(self, name: str) -> Path:
        """The file it lies in."""
        return self._places[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Read from the file's header."""
        return tuple(self._slices[name].get_shape())

    def dtype(self, name: str) -> torch.dtype | str:
        """Read from the file's header; the format's own word when it is none of DTYPES."""
        word = str(self._slices[name].get_dtype())
        return DTYPES.get(word, word)

    def read(self, name: str) -> torch.Tensor:
        """A view into the mapped file; nothing may write to it."""
        tensor: torch.Tensor = self._files[self._places[name]].get_tensor(name)
        self._touched.append((tensor.data_ptr(), tensor.nbytes))
        return tensor

    def release(self) -> None:
        """Hold no memory for what was read since the last call. Views stay good: what is used again
        comes from the page cache or the file.
        """
        for address, nbytes in self._touched:
            start = address - address % mmap.PAGESIZE
            if nbytes:
                # The pages are the file's own, never written to, so dropping them loses nothing.
                _libc.madvise(start, address + nbytes - start, mmap.MADV_DONTNEED)
        self._touched.clear()


def open_shards(directory: Path) -> Shards:
    """The weights of a directory: the shards that its index names, or else `model.safetensors`.

    Raises BadCheckpoint or BadInput in one line for what is missing, torn, not where it is said to
    be, or there twice: which of two is meant, programs that read such directories don't agree.
    """
    single, index = directory / SINGLE, directory / INDEX
    if not index.exists():
        if not single.exists():
            raise BadCheckpoint(f"{directory}: has neither {SINGLE} nor {INDEX}")
        file = _open(single)
        return Shards({single: file}, dict.fromkeys(file.keys(), single))
    places = _places(index)
    files = {path: _open(path) for path in sorted(set(places.values()))}
    if single not in files and single.exists():
        raise BadCheckpoint(f"{directory}: has {SINGLE} and an {INDEX} that does not name it")
    held = {path: frozenset(file.keys()) for path, file in files.items()}
    for name, path in places.items():
        if name not in held[path]:
            raise BadCheckpoint(f"{path}: lacks {name}, which {INDEX} puts there")
    for path, names in held.items():
        for name in names:
            if (place := places.get(name, path)) != path:
                raise BadCheckpoint(f"{path}: has {name}, which {INDEX} puts into {place.name}")
    return Shards(files, places)


def _places(index: Path) -> dict[str, Path]:
    """Tensor to file, of an index."""
    named = read_object(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise BadCheckpoint(f"{index}: has no weight_map")
    for file in named.values():
        if not isinstance(file, str) or Path(file).name != file:
            raise BadCheckpoint(f"{index}: {file!r} is no file beside it")
    return {name: index.parent / file for name, file in named.items()}


def _open(path: Path) -> Any:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # A pipe may wait for ever for somebody who writes into it.
            raise BadCheckpoint(f"{path}: is no file")
        return safe_open(path, "pt")
    except FileNotFoundError as error:
        # The library says so of a file that it may not read, too.
        what = "cannot be read" if path.exists() else "is missing"
        raise BadCheckpoint(f"{path}: {what}") from error
    except UnicodeEncodeError as error:
        raise BadCheckpoint(f"{path}: is no name of a file") from error
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{path}: {str(error).splitlines()[0]}") from error
