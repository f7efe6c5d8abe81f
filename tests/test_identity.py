"""What computes an engine's rows, read from trees that are changed and moved.

Goal: a deploy that changes no arithmetic, and a tree in another folder, keep the files; a kernel, a
byte of the weights or the number of threads does not; a folder named by hand counts only where its
weights hold what these hold; and every manifest lists all that computes rows.
Method: a copy of this tree's engine with weights of its own in it, changed one thing at a time. The
imports of each engine are followed for its manifest; the canary leaves a file out.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from cache.fingerprint import apart, digest
from cache.types import Manifest
from engine.adapter import Engine
from engine.checkpoint.open import open_weights
from engine.checkpoint.save import save_checkpoint
from engine.config import HybridConfig
from engine.flash.config import FlashConfig
from engine.flash.engine import Flash
from engine.hybrid import Hybrid
from engine.identity import ROOT, identity_of, older_fingerprints, tree_inputs
from engine.layers.decoder import Decoder
from engine.third import Third
from engine.weights import random_weights
from engine.witness import Witness
from sim.files import SimFiles

CONFIG = HybridConfig.tiny()
NOT_ROWS = {
    "cache/types.py": "values that engines and caches hand each other",
    "cache/budget.py": "memory",
    "cache/keys.py": "ids, which are compared and never computed with",
    "cache/fingerprint.py": "this",
    "cache/checksum.py": "refuses a table's torn header",
    "cache/ports.py": "what a page is",
    "engine/bad.py": "refusals",
    "engine/capture.py": "a lock",
    "engine/device.py": "listed with its kernels where a device computes",
    "engine/machine.py": "says what the machine is",
}
"""What an engine imports and no row hangs on."""


class Tree:
    """A folder with the engine's code and weights in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def weights(self) -> Path:
        return self.root / "weights" / "model.safetensors"

    def manifest(self) -> Manifest:
        """Of the engine that this tree's weights make."""
        weights = open_weights(self.weights.parent)
        return Hybrid(Decoder(weights), grid=64, window=128).manifest()

    def present(self) -> str:
        return digest(tree_inputs(self.manifest(), self.root))

    def older(self, *adopt_from: Path) -> list[str]:
        folders = [str(folder) for folder in adopt_from]
        return older_fingerprints(self.manifest(), folders, self.root)["1"]

    def append(self, name: str) -> None:
        with (self.root / name).open("a") as file:
            file.write("\n# changed\n")

    def change_a_byte(self) -> None:
        data = bytearray(self.weights.read_bytes())
        data[-1] ^= 1
        self.weights.write_bytes(bytes(data))

    def copied(self, to: Path) -> Tree:
        shutil.copytree(self.root, to)
        return Tree(to)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path / "first")
    shutil.copytree(ROOT / "engine", made.root / "engine", ignore=shutil.ignore_patterns("__*"))
    save_checkpoint(random_weights(CONFIG, 3), made.weights.parent, kind="qwen3_5_text")
    return made


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_an_engine_has_an_identity_of_its_tree() -> None:
    engine = Witness(64, 128)
    identity = identity_of(engine)
    assert identity.fingerprint == digest(tree_inputs(engine.manifest()))
    files = SimFiles()
    older = older_fingerprints(engine.manifest())["1"]
    assert set(identity.accepts(files)) == {identity.fingerprint, *older}
    deployed = identity_of(engine, more={"deploy": "1"})
    assert deployed.fingerprint != identity.fingerprint
    assert set(deployed.accepts(files)) == {deployed.fingerprint}


def test_code_that_computes_no_row_keeps_the_files(tree: Tree) -> None:
    before = tree.present(), tree.older()
    for name in ("engine/sampling.py", "engine/lookup.py", "engine/turn.py", "engine/capture.py"):
        tree.append(name)
    assert tree.present() == before[0]
    assert tree.older() != before[1], "which the older formula did not"


@pytest.mark.parametrize("name", ["engine/layers/delta_rule.py", "engine/hybrid.py"])
def test_a_kernel_sweeps_them(tree: Tree, name: str) -> None:
    before = tree_inputs(tree.manifest(), tree.root)
    tree.append(name)
    after = tree_inputs(tree.manifest(), tree.root)
    assert [found[0] for found in apart(before, after)] == [f"file {name}"]


def test_a_byte_of_the_weights_sweeps_them(tree: Tree) -> None:
    before = tree_inputs(tree.manifest(), tree.root)
    older = tree.older()
    tree.change_a_byte()
    after = tree_inputs(tree.manifest(), tree.root)
    assert [found[0] for found in apart(before, after)] == ["weights model.safetensors"]
    assert tree.older() == older, "which the older formula did not see"


def test_threads_sweep_them(tree: Tree, threads: None) -> None:
    torch.set_num_threads(1)
    one = tree_inputs(tree.manifest(), tree.root)
    torch.set_num_threads(2)
    two = tree_inputs(tree.manifest(), tree.root)
    assert {"threads"} <= {found[0] for found in apart(one, two)} <= {"threads", "probe"}


def test_a_moved_tree_keeps_them(tree: Tree, tmp_path: Path) -> None:
    before = tree.present()
    tree.root.rename(tmp_path / "second")
    assert Tree(tmp_path / "second").present() == before


def test_weights_outside_the_tree_may_lie_anywhere(tree: Tree, tmp_path: Path) -> None:
    before, manifest = tree.present(), tree.manifest()
    assert list(manifest.weight_files) == [str(tree.weights)]
    elsewhere = tmp_path / "elsewhere"
    tree.weights.parent.rename(elsewhere)
    weights = open_weights(elsewhere)
    moved = Hybrid(Decoder(weights), grid=64, window=128).manifest()
    assert digest(tree_inputs(moved, tree.root)) == before


def test_a_folder_it_came_from_is_adopted_by_name(tree: Tree, tmp_path: Path) -> None:
    """The older formula counted the folder, so the tree must say where it was."""
    was = tree.older()
    second = tree.copied(tmp_path / "second")
    assert set(second.older()).isdisjoint(was)
    assert second.older(tree.root)[1:] == was


@pytest.mark.parametrize("how", ["other", "gone", "no folder"])
def test_a_folder_whose_weights_are_others_does_not_count(
    tree: Tree, tmp_path: Path, how: str
) -> None:
    second = tree.copied(tmp_path / "second")
    if how == "other":
        tree.change_a_byte()
    elif how == "gone":
        tree.weights.unlink()
    else:
        shutil.rmtree(tree.root)
    assert len(second.older(tree.root)) == 1
    assert len(second.older(tmp_path / "nowhere")) == 1


def test_a_lost_file_of_the_manifest_is_an_error(tree: Tree) -> None:
    manifest = tree.manifest()
    (tree.root / "engine/layers/norm.py").unlink()
    with pytest.raises(OSError, match=r"norm\.py"):
        tree_inputs(manifest, tree.root)


# manifests


@cache
def imported(path: str) -> frozenset[str]:
    """A module of the tree and all of engine/ and cache/ that it imports, itself or through them.

    What is listed as no row's is not followed.
    """
    found: set[str] = set()
    todo = [path]
    while todo:
        name = todo.pop()
        if name in found or name in NOT_ROWS:
            continue
        found.add(name)
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = node.module.replace(".", "/")
                names = [f"{module}.py", *(f"{module}/{alias.name}.py" for alias in node.names)]
                ours = [n for n in names if n.startswith(("engine/", "cache/"))]
                todo += [n for n in ours if (ROOT / n).exists()]
    return frozenset(found)


ENGINES: dict[str, Engine] = {
    "engine/flash/engine.py": Flash.random(FlashConfig.tiny(), 3, grid=64, window=128),
    "engine/hybrid.py": Hybrid.random(CONFIG, 3, grid=64, window=128),
    "engine/third.py": Third(64, 128),
    "engine/witness.py": Witness(64, 128),
}
PICTURES = {f"engine/pictures/{name}.py" for name in ("encoded", "picture", "places")}
"""Which every engine's base knows, and only one with a tower reads."""


def amiss(path: str, files: set[str]) -> frozenset[str]:
    """What computes rows of the engine and is not listed, and what is and does not."""
    own = imported(path)
    return (own if "engine/layers/vision.py" in own else own - PICTURES) ^ files


@pytest.mark.parametrize("path", ENGINES)
def test_a_manifest_lists_all_that_computes_rows(path: str) -> None:
    manifest = ENGINES[path].manifest()
    assert amiss(path, set(manifest.files)) == set()
    assert manifest.libraries["numpy"], "ids and positions go through it"


@pytest.mark.parametrize("path", ENGINES)
def test_canary_a_manifest_that_lacks_a_file_or_has_one_too_many(path: str) -> None:
    files = set(ENGINES[path].manifest().files)
    for name in files - {path}:
        assert amiss(path, files - {name}) == {name}
    assert amiss(path, files | {"engine/turn.py"}) == {"engine/turn.py"}


def test_every_engine_says_what_computes_it() -> None:
    engines = ENGINES.values()
    assert len({identity_of(engine).fingerprint for engine in engines}) == len(engines)
