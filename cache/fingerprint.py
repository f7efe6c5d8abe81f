"""The fingerprint: one digest of all that decides a stored row's bits, and its inputs.

Two formulas. "2", the present one, reads a manifest: the files it lists, knobs, tables and weights
by content, grid, library versions, and what of the machine changes bits. No folder counts, nor does
code that only chooses which rows are computed. "1", the one before, read every module of the
engine, and tables and weights by where they lay, the tree's own folder with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256

from cache.types import Manifest

FORMULA = "2"
"""The present one."""

Inputs = dict[str, str]
"""What a fingerprint is made of, by names that people can read."""
Content = Callable[[str], bytes]
"""The bytes of a file of the tree, by its path in there; raises OSError."""

MIB = 1 << 20
WHOLE_BYTES = 64 * MIB
"""A weight file up to this size is read whole."""
SAMPLES = 16
"""Reads of a MiB each between the first MiB and the last, evenly spread."""


def inputs(manifest: Manifest, content: Content) -> Inputs:
    """What decides the rows of the engine with this manifest. Raises OSError for a lost file."""
    made = {f"file {name}": hexdigest(content(name)) for name in manifest.files}
    made |= {f"table {name}": hexdigest(content(path)) for name, path in manifest.tables.items()}
    made |= _shared(manifest)
    made["weights"] = manifest.weights
    # Two shards of one name in two folders are still two.
    for name in sorted({_base(path) for path in manifest.weight_files}):
        found = sorted(of for path, of in manifest.weight_files.items() if _base(path) == name)
        made[f"weights {name}"] = ", ".join(found)
    return made


def inputs_1(manifest: Manifest, content: Content, modules: Collection[str], folder: str) -> Inputs:
    """What formula "1" read, had the tree lain in `folder`; `modules` are all of the engine's."""
    made = {f"file {name}": hexdigest(content(name)) for name in modules}
    made |= {f"table {name}": _placed(folder, path) for name, path in manifest.tables.items()}
    made |= _shared(manifest)
    places = (_placed(folder, path) for path in manifest.weight_files)
    made |= {"weights": ", ".join(sorted(places)) or manifest.weights, "folder": folder}
    return made


def _shared(manifest: Manifest) -> Inputs:
    made = {f"knob {name}": value for name, value in manifest.knobs.items()}
    made |= {f"library {name}": version for name, version in manifest.libraries.items()}
    made |= manifest.machine
    made["grid"] = str(manifest.grid)
    return made


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _placed(folder: str, path: str) -> str:
    return path if path.startswith("/") else f"{folder}/{path}"


def hexdigest(data: bytes) -> str:
    """SHA-256, 64 hex digits."""
    return sha256(data).hexdigest()


def digest(of: Mapping[str, str]) -> str:
    """The fingerprint of these inputs, 64 hex digits; their order does not count."""
    return hexdigest(json.dumps(dict(of), sort_keys=True, separators=(",", ":")).encode())


def apart(a: Mapping[str, str], b: Mapping[str, str]) -> list[tuple[str, str | None, str | None]]:
    """Name and both values of every input in which two fingerprints differ; None where it lacks."""
    names = sorted(a.keys() | b.keys())
    return [(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)]


def weight_digest(size: int, read: Callable[[int, int], bytes]) -> str:
    """Size and content of a weight file; `read(offset, nbytes)` gives its bytes.

    Of a file over 64 MiB 18 MiB count: the first, the last and 16 spread between. Another training
    or rounding differs in all of them; a byte that somebody patched elsewhere is not seen.
    """
    total = sha256()
    for offset, nbytes in sampled(size):
        total.update(read(offset, nbytes))
    return f"{size} bytes, sha256 {total.hexdigest()}"


def sampled(size: int) -> Sequence[tuple[int, int]]:
    """(offset, bytes) of the reads that stand for a file of this size."""
    if size <= WHOLE_BYTES:
        return [(at, min(MIB, size - at)) for at in range(0, size, MIB)]
    last = size - MIB
    return [(last * at // (SAMPLES + 1), MIB) for at in range(SAMPLES + 2)]
