"""Fingerprints: everything that decides a row's bits counts, and nothing else does.

Goal: a kernel, a table's content, a knob, a weight's byte, a thread, a library or the grid gives
another fingerprint; a folder, the order of things and code that computes no row do not.
Method: a made-up manifest over files in a dictionary, one change at a time; the sampled digest of
weights against one that reads all. Canaries are the older formula, which is blind to a table's
content and moved by a folder, and a digest that reads too little.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache import fingerprint
from cache.fingerprint import (
    MIB,
    SAMPLES,
    WHOLE_BYTES,
    apart,
    digest,
    hexdigest,
    inputs,
    inputs_1,
    sampled,
    weight_digest,
)
from cache.types import Manifest

TREE = {
    "engine/rows.py": b"rows = 1",
    "engine/kernel.py": b"kernel = 1",
    "engine/sampling.py": b"method = 1",
    "ops/tiles.json": b"[64, 32]",
}
MODULES = [name for name in TREE if name.startswith("engine/")]
MANIFEST = Manifest(
    files=("engine/rows.py", "engine/kernel.py"),
    knobs={"eps": "1e-6"},
    weights="files",
    grid=64,
    libraries={"torch": "2.13.0"},
    machine={"threads": "2", "instruction set": "AVX512"},
    tables={"tiles": "ops/tiles.json"},
    weight_files={"weights/a.safetensors": "9 bytes, sha256 aa"},
)


def of(manifest: Manifest = MANIFEST, **files: bytes) -> dict[str, str]:
    """The inputs of a manifest over the tree, with some files changed."""
    tree = TREE | {name.replace("__", "/").replace("_dot_", "."): d for name, d in files.items()}
    return inputs(manifest, tree.__getitem__)


def old(manifest: Manifest = MANIFEST, folder: str = "/home/a", tree: Any = TREE) -> str:
    """The fingerprint by the older formula."""
    return digest(inputs_1(manifest, tree.__getitem__, MODULES, folder))


def test_inputs_have_readable_names() -> None:
    assert of() == {
        "file engine/rows.py": hexdigest(b"rows = 1"),
        "file engine/kernel.py": hexdigest(b"kernel = 1"),
        "table tiles": hexdigest(b"[64, 32]"),
        "knob eps": "1e-6",
        "library torch": "2.13.0",
        "threads": "2",
        "instruction set": "AVX512",
        "grid": "64",
        "weights": "files",
        "weights a.safetensors": "9 bytes, sha256 aa",
    }
    assert len(digest(of())) == 64


def changes() -> dict[str, dict[str, str]]:
    """Each a change of how rows are computed."""
    return {
        "file engine/kernel.py": of(engine__kernel_dot_py=b"kernel = 2"),
        "table tiles": of(ops__tiles_dot_json=b"[32, 32]"),
        "knob eps": of(replace(MANIFEST, knobs={"eps": "1e-5"})),
        "library torch": of(replace(MANIFEST, libraries={"torch": "2.14.0"})),
        "threads": of(replace(MANIFEST, machine=MANIFEST.machine | {"threads": "1"})),
        "instruction set": of(
            replace(MANIFEST, machine=MANIFEST.machine | {"instruction set": ""})
        ),
        "grid": of(replace(MANIFEST, grid=128)),
        "weights": of(replace(MANIFEST, weights="random seed=3")),
        "weights a.safetensors": of(
            replace(MANIFEST, weight_files={"weights/a.safetensors": "9 bytes, sha256 ab"})
        ),
    }


@pytest.mark.parametrize("name", changes())
def test_what_computes_a_row_counts_and_is_named(name: str) -> None:
    changed = changes()[name]
    assert digest(changed) != digest(of())
    assert [found[0] for found in apart(of(), changed)] == [name]


def test_a_file_more_or_less_counts() -> None:
    fewer = of(replace(MANIFEST, files=("engine/rows.py",)))
    assert apart(of(), fewer) == [("file engine/kernel.py", hexdigest(b"kernel = 1"), None)]
    assert apart(fewer, of()) == [("file engine/kernel.py", None, hexdigest(b"kernel = 1"))]
    assert digest(fewer) != digest(of()) and apart(of(), of()) == []


def test_code_that_computes_no_row_does_not_count() -> None:
    assert of(engine__sampling_dot_py=b"method = 2") == of()
    assert old(tree=TREE | {"engine/sampling.py": b"method = 2"}) != old(), "by the older it did"


def test_folders_and_order_do_not_count() -> None:
    moved = replace(
        MANIFEST,
        files=MANIFEST.files[::-1],
        weight_files={"/elsewhere/a.safetensors": "9 bytes, sha256 aa"},
        tables={"tiles": "moved/tiles.json"},
    )
    tree = TREE | {"moved/tiles.json": TREE["ops/tiles.json"]}
    assert digest(inputs(moved, tree.__getitem__)) == digest(of())


def test_two_weights_of_one_name_are_two() -> None:
    both = {"x/a.safetensors": "1", "y/a.safetensors": "2"}
    assert of(replace(MANIFEST, weight_files=both))["weights a.safetensors"] == "1, 2"


@given(st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
def test_equal_digests_mean_equal_inputs(a: dict[str, str], b: dict[str, str]) -> None:
    assert (digest(a) == digest(b)) == (a == b) == (not apart(a, b))
    assert digest(dict(reversed(a.items()))) == digest(a)
    restored = {name: value for name, value in a.items() if b.get(name) == value}
    restored |= {name: was for name, was, _ in apart(a, b) if was is not None}
    assert restored == a


def test_canary_the_older_formula() -> None:
    """It reads a table's name alone, and the tree's own folder."""
    assert old(tree=TREE | {"ops/tiles.json": b"[32, 32]"}) == old()
    assert old(folder="/home/b") != old()
    same_bytes = replace(MANIFEST, weight_files={"weights/b.safetensors": "9 bytes, sha256 aa"})
    assert old(same_bytes) != old()
    other_bytes = replace(MANIFEST, weight_files={"weights/a.safetensors": "9 bytes, sha256 ab"})
    assert old(other_bytes) == old()


# weights


@given(st.integers(0, 300 * MIB))
def test_samples_cover_first_and_last_and_stay_inside(size: int) -> None:
    reads = list(sampled(size))
    assert all(at >= 0 and at + nbytes <= size and 0 < nbytes <= MIB for at, nbytes in reads)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(reads))
    if size <= WHOLE_BYTES:
        assert sum(nbytes for _, nbytes in reads) == size
        return
    assert len(reads) == SAMPLES + 2 and {0, size - MIB} <= {at for at, _ in reads}
    gaps = [b - a for (a, _), (b, _) in pairwise(reads)]
    assert max(gaps) - min(gaps) <= 1


class Sparse:
    """A large file of zeros with a few bytes in it."""

    def __init__(self, size: int, marks: dict[int, int]) -> None:
        self.size, self.marks = size, marks

    def digest(self) -> str:
        def read(offset: int, nbytes: int) -> bytes:
            data = bytearray(nbytes)
            for at, value in self.marks.items():
                if offset <= at < offset + nbytes:
                    data[at - offset] = value
            return bytes(data)

        return weight_digest(self.size, read)


@pytest.mark.parametrize("at", [0, MIB - 1, 3 * MIB, WHOLE_BYTES - 1])
def test_any_byte_of_a_small_file_counts(at: int) -> None:
    assert Sparse(WHOLE_BYTES, {at: 1}).digest() != Sparse(WHOLE_BYTES, {}).digest()


def test_of_a_large_file_size_ends_and_samples_count() -> None:
    size = 5 * WHOLE_BYTES
    plain = Sparse(size, {}).digest()
    marks = [0, MIB - 1, size - MIB, size - 1, *(at for at, _ in sampled(size))]
    found = {Sparse(size, {at: 1}).digest() for at in marks}
    assert plain not in found and len(found) == len(set(marks))
    assert Sparse(size + 1, {}).digest() != plain
    assert plain.startswith(f"{size} bytes, sha256 ")


def test_canary_a_digest_of_the_first_mib_misses_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fingerprint, "sampled", lambda size: [(0, MIB)])
    size = 5 * WHOLE_BYTES
    assert Sparse(size, {size - 1: 1}).digest() == Sparse(size, {}).digest()
