"""A flash model's directory (engine.flash.checkpoint): written, opened, and refused in one line.

Goal: what is opened computes the bits of what was saved, with the table warm or cold; every file
that is missing, torn or misshapen is bad input that names it. Method: one small directory, copied
and spoiled a way a test; texts compared over both policies of the table.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tabled import write_table

from engine.bad import BadInput
from engine.decode import decode
from engine.flash.checkpoint import open_flash, read_config, save_flash
from engine.flash.config import FlashConfig
from engine.flash.decoder import FlashDecoder
from engine.flash.engine import Flash
from engine.flash.weights import FlashWeights, random_weights
from engine.sampling import Greedy

CONFIG = FlashConfig.tiny()
IDS = np.random.default_rng(0).integers(0, 499, 120).astype(np.int32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory, whose table holds another seed's rows than the weights'."""
    folder = tmp_path_factory.mktemp("flash") / "model"
    save_flash(folder, random_weights(CONFIG, 3))
    return folder


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """One to spoil."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def flash(weights: FlashWeights) -> Flash:
    return Flash(FlashDecoder(weights), grid=64, window=256)


def logits(of: Flash) -> torch.Tensor:
    of.prefill(IDS[:64])
    return of.prefill(IDS[64:])


@pytest.mark.parametrize("policy", ["warm", "cold"])
def test_what_is_opened_computes_the_bits_of_what_was_saved(saved: Path, policy: str) -> None:
    weights = open_flash(saved, table_policy=policy, table_cache_bytes=1 << 16)
    assert weights.config == CONFIG
    assert torch.equal(logits(flash(weights)), logits(flash(random_weights(CONFIG, 3))))
    weights.table.close()


def test_the_same_text_warm_and_cold(saved: Path) -> None:
    """Greedy, with the model's own drafts; through a hot-row cache of a few rows alone too."""
    texts = []
    for policy, room in (("warm", 0), ("cold", 1 << 20), ("cold", 1 << 12)):
        weights = open_flash(saved, table_policy=policy, table_cache_bytes=room)
        of = flash(weights)
        rounds = decode(of, logits(of), Greedy(3), 30, frozenset())
        texts.append([token for new in rounds for token in new])
        weights.table.close()
    assert texts[0] == texts[1] == texts[2] and len(texts[0]) == 30


def test_canary_a_table_of_other_rows_is_another_text(copied: Path) -> None:
    write_table(str(copied / "ngram.table"), rows=1_009, width=18, dtype=torch.float32, seed=4)
    weights = open_flash(copied)
    assert not torch.equal(logits(flash(weights)), logits(flash(random_weights(CONFIG, 3))))
    weights.table.close()


def test_another_dtype_than_the_files(saved: Path) -> None:
    """The table stays as it is stored; its rows are rounded when they are read."""
    weights = open_flash(saved, dtype="bfloat16")
    assert weights.config.dtype == "bfloat16" and weights.table.header.dtype == torch.float32
    of, want = flash(weights), flash(random_weights(FlashConfig.tiny(dtype="bfloat16"), 3))
    assert torch.equal(logits(of), logits(want))
    assert read_config(saved).dtype == "float32"
    weights.table.close()


def test_the_manifest_names_every_file_and_the_tables_content(saved: Path, copied: Path) -> None:
    weights = open_flash(saved)
    manifest = flash(weights).manifest()
    names = {Path(path).name for path in manifest.weight_files}
    assert names == {"model.safetensors", "ngram.table"}
    assert "engine/flash/checkpoint.py" in manifest.files and manifest.weights == "files"
    write_table(str(copied / "ngram.table"), rows=1_009, width=18, dtype=torch.float32, seed=4)
    other = open_flash(copied)
    digests = [{Path(p).name: d for p, d in w.files.items()} for w in (weights, other)]
    assert digests[0]["model.safetensors"] == digests[1]["model.safetensors"]
    assert digests[0]["ngram.table"] != digests[1]["ngram.table"]
    for each in (weights, other):
        each.table.close()


def test_weights_are_views_into_the_file(saved: Path) -> None:
    """Asked for twice they lie in the same place: nothing of them was copied."""
    weights = open_flash(saved)
    name = "model.embed_tokens.weight"
    assert weights.tensors[name].data_ptr() == weights.tensors[name].data_ptr()
    weights.table.close()


# bad input


def edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def drop_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["mtp.fc.weight"]
    save_file(tensors, folder / "model.safetensors")


def cut(name: str, count: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-count])

    return spoil


def other_table(rows: int, width: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = str(folder / "ngram.table")
        write_table(path, rows=rows, width=width, dtype=torch.float32, seed=1)

    return spoil


BAD: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: shutil.rmtree(folder), "model: is no directory"),
    (lambda folder: (folder / "config.json").unlink(), "config.json: is missing"),
    (lambda folder: (folder / "config.json").write_text("{"), "config.json:1: is no JSON: "),
    (lambda folder: edit(folder, model_type="qwen3_5"), "config.json: model_type is 'qwen3_5'"),
    (lambda folder: edit(folder, quantization_config={}), "quantization_config is not supported"),
    (lambda folder: edit(folder, hidden=None), "config.json: hidden is None, not of type int"),
    (lambda folder: edit(folder, hidden=64), "is (499, 48), not (499, 64)"),
    (lambda folder: (folder / "model.safetensors").unlink(), "model: has neither "),
    (cut("model.safetensors", 100), "model.safetensors: "),
    (drop_a_tensor, "model: mtp.fc.weight is missing"),
    (lambda folder: (folder / "ngram.table").unlink(), "ngram.table: cannot be opened: "),
    (cut("ngram.table", 4_096), "ngram.table: "),
    (other_table(1_010, 18), "ngram.table: the n-gram table's rows: 1010, the model's: 1009"),
    (other_table(1_009, 20), "ngram.table: the n-gram table's width: 20, the model's: 18"),
    (lambda folder: (folder / "ngram.table").write_bytes(b"x" * 9_000), "not an n-gram table"),
]


@pytest.mark.parametrize("policy", ["warm", "cold"])
@pytest.mark.parametrize("spoil, said", BAD, ids=[said for _, said in BAD])
def test_bad_input_is_one_line(
    copied: Path, spoil: Callable[[Path], object], said: str, policy: str
) -> None:
    spoil(copied)
    with pytest.raises(BadInput) as bad:
        open_flash(copied, table_policy=policy)
    assert said in str(bad.value) and "\n" not in str(bad.value)
    assert str(copied) in str(bad.value)


def test_shards_hold_what_they_may_and_are_opened_all_the_same(saved: Path, tmp_path: Path) -> None:
    save_flash(tmp_path / "model", random_weights(CONFIG, 3), shard_bytes=1 << 16)
    shards = sorted((tmp_path / "model").glob("model-*.safetensors"))
    assert len(shards) > 2
    for shard in shards:
        held = load_file(shard)
        size = sum(tensor.nbytes for tensor in held.values())
        assert size <= 1 << 16 or len(held) == 1
    one, other = (flash(open_flash(folder)) for folder in (saved, tmp_path / "model"))
    assert torch.equal(logits(one), logits(other))


def test_a_directory_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("a file")
    with pytest.raises(BadInput, match="cannot be written"):
        save_flash(tmp_path / "model", random_weights(CONFIG, 3))
