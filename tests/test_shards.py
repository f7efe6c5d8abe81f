"""Shards of a checkpoint: mapped and not copied, in one file or many, or refused in one line

Goal: weights that are used as they are stored take no memory of the process, those that are made of
others take theirs once, and a file that is missing, torn or not where the index says is named.
Method: directories that engine.checkpoint.save wrote; pointers into the mapping, and what Linux
says of the process's own (anonymous) pages and of a mapping's. The canary keeps the pages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.bad import BadCheckpoint, BadInput
from engine.checkpoint.open import open_weights
from engine.checkpoint.save import save_checkpoint
from engine.checkpoint.shards import INDEX, SINGLE, Shards, open_shards
from engine.config import HybridConfig
from engine.layers.decoder import Decoder
from engine.weights import random_weights

CONFIG = HybridConfig.tiny()
MIB = 1 << 20


def saved(directory: Path, config: HybridConfig = CONFIG, **how: Any) -> Path:
    """A directory with random weights in it."""
    save_checkpoint(random_weights(config, 3), directory, kind="qwen3_5_text", **how)
    return directory


def mapped(directory: Path) -> list[dict[str, int]]:
    """What the process holds of each mapping of files in there: `smaps`, in bytes, with `start` and
    `stop`.
    """
    found: list[dict[str, int]] = []
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()
        if "-" in head[0] and not head[0].endswith(":"):
            ours = str(directory) in line
            if ours:
                start, stop = (int(part, 16) for part in head[0].split("-"))
                found.append({"start": start, "stop": stop})
        elif ours and head[-1] == "kB":
            found[-1][head[0].removesuffix(":")] = int(head[1]) * 1024
    return found


def own_bytes() -> int:
    """Pages of the process that no file holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


# one file or many


def test_many_files_are_the_same_as_one(tmp_path: Path) -> None:
    one, many = saved(tmp_path / "one"), saved(tmp_path / "many", shard_bytes=50_000)
    files = sorted(file.name for file in many.glob("*.safetensors"))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert [file.name for file in one.glob("*.safetensors")] == [SINGLE]
    assert not (one / INDEX).exists()
    a, b = open_shards(one), open_shards(many)
    assert a.names == b.names and [file.name for file in b.files] == files
    assert all(torch.equal(a.read(name), b.read(name)) for name in a.names)
    assert all(a.shape(name) == tuple(a.read(name).shape) for name in a.names)
    assert {a.dtype(name) for name in a.names} == {torch.float32}
    # Saving again leaves no shard of before.
    saved(many)
    assert [file.name for file in many.glob("*.safetensors")] == [SINGLE]
    assert not (many / INDEX).exists()


def test_dtypes_by_the_header(tmp_path: Path) -> None:
    tensors = {
        "a": torch.zeros(3, dtype=torch.bfloat16),
        "b": torch.zeros(3, dtype=torch.float8_e4m3fn),
        "c": torch.zeros(3, dtype=torch.int32),
    }
    save_file(tensors, tmp_path / SINGLE)
    shards = open_shards(tmp_path)
    assert [shards.dtype(name) for name in "abc"] == [torch.bfloat16, torch.float8_e4m3fn, "I32"]


# memory

BIG = HybridConfig.tiny(hidden=256, intermediate=1_024, vocab=8_000, tie_embeddings=False)


def test_a_tensor_used_as_it_is_stays_a_view_into_its_file(tmp_path: Path) -> None:
    weights = open_weights(saved(tmp_path))
    decoder = Decoder(weights)
    inside = [range(found["start"], found["stop"]) for found in mapped(tmp_path)]

    def lies_in(tensor: torch.Tensor) -> bool:
        return any(tensor.data_ptr() in part for part in inside)

    assert lies_in(decoder._embed) and decoder._head is decoder._embed
    for layer in decoder.layers:
        assert lies_in(layer.mlp._out) and not lies_in(layer.mlp._in)  # type: ignore[union-attr]
        assert lies_in(layer.mixer._out) and not lies_in(layer.mixer._in)
    cast = Decoder(open_weights(tmp_path, dtype="bfloat16"))
    assert not lies_in(cast._embed)


def fused_bytes(config: HybridConfig) -> int:
    """Of the weights that layers put together."""
    names = ("in_proj", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    tensors = random_weights(config, 3).tensors
    return sum(t.nbytes for n, t in tensors.items() if any(name in n for name in names))


FRESH = """
import sys
from pathlib import Path

import torch
from test_shards import mapped, own_bytes

from engine.checkpoint.open import open_weights
from engine.layers.decoder import Decoder

directory = Path(sys.argv[1])
torch.ones(64, 64) @ torch.ones(64, 64)
before = own_bytes()
decoder = Decoder(open_weights(directory))
held = mapped(directory)
print(own_bytes() - before, *(sum(part[of] for part in held) for of in ("Rss", "Anonymous")))
decoder._embed.sum(), decoder._head.sum()
print(sum(part["Rss"] for part in mapped(directory)))
"""


def test_a_model_takes_only_what_is_made_and_holds_no_page_of_the_rest(tmp_path: Path) -> None:
    """In a process of its own, where nothing was given back that could be taken again."""
    config = HybridConfig.tiny(hidden=256, intermediate=2_048, vocab=16_000, tie_embeddings=False)
    saved(tmp_path, config, shard_bytes=8 * MIB)
    whole = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    made, tests = fused_bytes(config), Path(__file__).parent
    told = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}"},
        capture_output=True,
        text=True,
        check=True,
    )
    grown, held, anonymous, used = map(int, told.stdout.split())
    assert made <= grown < made + 0.25 * (whole - made), (grown, made, whole)
    assert held < 0.05 * whole and anonymous == 0, (held, anonymous, whole)
    # What is used comes back, page by page, from the file.
    assert used >= 2 * 16_000 * 256 * 4, (used, whole)


def test_what_was_given_back_is_not_given_back_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views of it may be in use by now."""
    told = list[int]()

    class Told:
        def madvise(self, start: int, nbytes: int, advice: int) -> None:
            told.append(nbytes)

    shards = open_shards(saved(tmp_path))
    monkeypatch.setattr("engine.checkpoint.shards._libc", Told())
    first, second = sorted(shards.names)[:2]
    for name in (first, second):
        shards.read(name)
        shards.release()
    shards.release()
    assert len(told) == 2


def test_canary_pages_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shards, "release", lambda shards: None)
    saved(tmp_path, BIG)
    decoder = Decoder(open_weights(tmp_path))
    held = sum(found["Rss"] for found in mapped(tmp_path))
    assert held > fused_bytes(BIG) / 2, "what was put together is held twice"
    assert decoder.config == BIG


# what is refused


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=f"has neither {SINGLE} nor {INDEX}"):
        open_shards(tmp_path)
    saved(tmp_path, shard_bytes=50_000)
    gone = sorted(tmp_path.glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(BadCheckpoint, match=f"{gone.name}: is missing"):
        open_shards(tmp_path)


def test_a_shard_that_lacks_its_tensor_is_named(tmp_path: Path) -> None:
    saved(tmp_path, shard_bytes=50_000)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = (
        "model-00001-of-" + next(iter(index["weight_map"].values())).split("-of-")[1]
    )
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(BadCheckpoint, match=r"model-00001-of-\d+.*lacks model.norm.weight, which"):
        open_shards(tmp_path)


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    """Others take the one that comes last, whatever the index says."""
    saved(tmp_path, shard_bytes=50_000)
    here = open_shards(tmp_path).place("model.norm.weight")
    first = next(path for path in sorted(tmp_path.glob("model-*.safetensors")) if path != here)
    save_file(load_file(first) | {"model.norm.weight": torch.ones(48)}, first)
    with pytest.raises(BadCheckpoint, match=f"{first.name}: has model.norm.weight, which") as bad:
        open_shards(tmp_path)
    assert here.name in str(bad.value) and "\n" not in str(bad.value)


def test_an_index_and_the_one_file_must_agree(tmp_path: Path) -> None:
    """One program takes the file, another the shards: that is two models in a directory."""
    whole = saved(tmp_path / "whole") / SINGLE
    many = saved(tmp_path / "many", shard_bytes=50_000)
    shutil.copy(whole, many)
    with pytest.raises(BadCheckpoint, match=f"many: has {SINGLE} and an {INDEX} that does not"):
        open_shards(many)
    # Where the index names it, it is one of the shards.
    tensors = load_file(whole)
    norm = {"model.norm.weight": tensors.pop("model.norm.weight")}
    save_file(tensors, whole)
    save_file(norm, whole.with_name("norm.safetensors"))
    places = dict.fromkeys(tensors, SINGLE) | dict.fromkeys(norm, "norm.safetensors")
    (whole.parent / INDEX).write_text(json.dumps({"weight_map": places}))
    shards = open_shards(whole.parent)
    assert shards.names == set(places) and len(shards.files) == 2


@pytest.mark.parametrize(
    "text, says",
    [
        ("{", "is no JSON"),
        ("[]", "is no JSON object"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": 3}}', "3 is no file beside it"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "is no file beside it"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "is no file beside it"),
    ],
)
def test_an_index_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(BadInput, match=says) as caught:
        open_shards(tmp_path)
    assert "\n" not in str(caught.value) and INDEX in str(caught.value)


@pytest.mark.parametrize("name", ["..", "", "a\0b", "a" * 300, "a\nb", "\ud800"])
def test_a_name_that_no_file_can_have_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(BadCheckpoint) as caught:
        open_shards(tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SINGLE)
    with pytest.raises(BadCheckpoint, match=f"{SINGLE}: is no file"):
        open_shards(tmp_path)


@pytest.mark.parametrize("left", [0, 7, 8, 100, -1])
def test_a_torn_file_is_one_line(tmp_path: Path, left: int) -> None:
    path = saved(tmp_path) / SINGLE
    data = path.read_bytes()
    path.write_bytes(data[:left])
    with pytest.raises(BadCheckpoint, match=SINGLE) as caught:
        open_shards(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_directory_in_place_of_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / SINGLE).mkdir()
    with pytest.raises(BadCheckpoint, match=SINGLE):
        open_shards(tmp_path)


def test_a_file_that_may_not_be_read_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        """What safetensors raises where the system says EACCES."""
        raise FileNotFoundError

    monkeypatch.setattr("engine.checkpoint.shards.safe_open", refused)
    with pytest.raises(BadCheckpoint, match=f"{SINGLE}: cannot be read"):
        open_shards(saved(tmp_path))
