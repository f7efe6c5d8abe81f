"""What computes an engine's rows, read from the tree it runs from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cache.adopt import accepted
from cache.disk.open import Identity
from cache.fingerprint import Content, Inputs, digest, inputs, inputs_1
from cache.types import Manifest
from engine.adapter import Engine
from engine.weights import file_digest

ROOT = Path(__file__).parents[1]
"""The tree's folder, where a manifest's paths begin."""


def identity_of(
    engine: Engine,
    adopt_from: Sequence[str] = (),
    more: Mapping[str, str] | None = None,
    root: Path = ROOT,
) -> Identity:
    """The engine's fingerprint, and whose files it reads beside its own.

    `adopt_from` are folders that this tree lay in before: files say so whose fingerprint counted
    the folder. `more` are inputs beside the tree's (a replay's deploys). Raises OSError for a file
    of the manifest that can't be read.
    """
    manifest = engine.manifest()
    present = tree_inputs(manifest, root) | dict(more or {})
    # With inputs of its own it is not what an older formula would have meant.
    older = {} if more else older_fingerprints(manifest, adopt_from, root)
    return Identity(digest(present), lambda files: accepted(files, present, older))


def tree_inputs(manifest: Manifest, root: Path = ROOT) -> Inputs:
    """What the present formula reads of a tree. Raises OSError."""
    return inputs(_placed(manifest, root), _content(root))


def older_fingerprints(
    manifest: Manifest, adopt_from: Sequence[str] = (), root: Path = ROOT
) -> dict[str, list[str]]:
    """What each older formula gives on this tree: as it lies, and as if it lay where it came from.

    A folder where the weights are gone, or hold something else than these, does not count.
    """
    here, content = _placed(manifest, root), _content(root)
    modules = sorted(path.relative_to(root).as_posix() for path in (root / "engine").rglob("*.py"))
    came_from = (Path(folder).expanduser().absolute() for folder in adopt_from)
    folders = [root, *(folder for folder in came_from if _holds(folder, here.weight_files))]
    return {"1": [digest(inputs_1(here, content, modules, str(folder))) for folder in folders]}


def _content(root: Path) -> Content:
    return lambda name: (root / name).read_bytes()


def _placed(manifest: Manifest, root: Path) -> Manifest:
    """The manifest with the paths of weights inside the tree as the tree has them."""
    files = {}
    for path, of in manifest.weight_files.items():
        place = Path(path).absolute()
        inside = place.is_relative_to(root)
        files[place.relative_to(root).as_posix() if inside else str(place)] = of
    return replace(manifest, weight_files=files)


def _holds(folder: Path, weights: Mapping[str, str]) -> bool:
    """Whether the weights of a folder hold what these hold."""
    try:
        return all(file_digest(str(folder / path)) == of for path, of in weights.items())
    except (OSError, ValueError):
        return False
