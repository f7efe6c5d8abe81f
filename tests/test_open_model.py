"""Checkpoint directories as `--model DIR` of replay, check and serve.

Goal: a directory of every kind that `moorage model make` makes is what its seed's weights are, is
replayed with every request held to its gate, is brought back by every cache in memory, and serves a
conversation whose every turn resumes at the end of the one before; what is wrong with a directory
is one line and exit 2. Method: tiny directories of all kinds, through the command line and over
HTTP; files taken away, cut short and rewritten. Covers engine.loaded, engine.make_model,
engine.show_model, engine.chat.silent and replay.models.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nights import small_night
from photos import attached, data_url, photo
from safetensors import SafetensorError
from served import serving

from engine.bad import BadInput
from engine.chat.dialect import Bundled
from engine.chat.gallery import Gallery
from engine.chat.messages import Call, Message, Say, messages_of
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from engine.flash.engine import Flash
from engine.hybrid import Hybrid
from engine.knobs import Knobs
from engine.loaded import LoadedFlash
from engine.make_model import KINDS, make
from engine.open_model import load, shape_of
from engine.show_model import sizes_of
from replay.gate_case import Case
from replay.memory_gate import resumes
from replay.tracefile import write_trace
from serve.about import About
from serve.command import Flags, about_of, dialect_of, engine_of
from serve.house import House, Setup

Run = Callable[..., tuple[int, str, str]]
SMALL = ("--set", "grid=64", "--set", "window=4096", "--set", "resident_bytes=1400000000")
MADE = (*KINDS, "nvfp4")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a directory of each kind, named after it."""
    folder = tmp_path_factory.mktemp("models")
    for kind in KINDS:
        make(kind, folder / kind, size="tiny", shard_bytes=1 << 20)
    make("qwen3_5_text", folder / "nvfp4", size="tiny", nvfp4=True, dtype="bfloat16")
    return folder


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[None]:
    """A checkpoint takes every core; the other tests' engines do not."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", [kind for kind in MADE if kind != "qwen3_5"])
def test_every_way_back_in_memory(made: Path, kind: str) -> None:
    case = Case(str(made / kind), "spark-27b", (("grid", "64"),), 0, Knobs(threads=1))
    assert [one.why for one in resumes(case) if one.why] == []


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen3_next", ()),
        ("qwen3_5_text", ("--kv", "e4m3", "--dtype", "bfloat16")),
        ("flash", ("--dtype", "bfloat16", "--table", "cold", "--table-cache-mb", "1")),
    ],
)
def test_a_replay_holds_every_gate(
    run: Run, made: Path, tmp_path: Path, kind: str, more: tuple[str, ...]
) -> None:
    write_trace(small_night(2, 6), tmp_path / "night.jsonl")
    where = ("--model", str(made / kind), "--threads", "1", "--verify", "all", "--json")
    code, out, err = run("replay", tmp_path / "night.jsonl", *SMALL, *where, *more)
    assert code == 0, err
    said = json.loads(out)
    assert said["verified"]["failed"] == 0 and said["verified"]["checked"] >= 5
    assert said["by_source"].keys() - {"cold"}


def test_the_kinds_are_what_they_are_named(made: Path) -> None:
    for kind in MADE:
        model = load(str(made / kind), Knobs(threads=1)).engine(grid=64, window=256)
        assert isinstance(model, Flash if kind == "flash" else Hybrid)
        assert model.vocab == Tokenizer().vocab
        if isinstance(model, Hybrid):
            config = model.decoder.config
            assert (config.moe is not None) == (kind == "qwen3_next")
            assert (
                (config.vision is not None)
                == (kind == "qwen3_5")
                == shape_of(str(made / kind)).sees
            )
            assert config.draft, "the draft layer is among the files"
            assert config.dtype == ("bfloat16" if kind == "nvfp4" else "float32")


def test_a_directory_and_its_seed_compute_the_same(made: Path, tmp_path: Path) -> None:
    """Saved, cut into shards, read back: not a bit is another."""
    make("qwen3_next", tmp_path / "whole", size="tiny")
    ids = np.arange(64, dtype=np.int32)
    a, b = (
        load(str(of), Knobs(threads=1)).engine(grid=64, window=128)
        for of in (made / "qwen3_next", tmp_path / "whole")
    )
    assert len(list((made / "qwen3_next").glob("*.safetensors"))) > 1
    assert len(list((tmp_path / "whole").glob("*.safetensors"))) == 1
    assert torch.equal(a.prefill(ids), b.prefill(ids))


# the chat format


def test_the_published_template_says_what_the_bundled_one_says(made: Path) -> None:
    ours = Bundled(Template(Tokenizer()))
    theirs = dialect_of(Flags(model=str(made / "flash")))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    call = Call("look", '{"where": "here", "deep": 3}')
    talks = [
        [Message("user", (Say("content", "Hello"),))],
        [
            Message("system", (Say("content", "Be short."),)),
            Message("user", (Say("content", "Look!"),)),
            Message("assistant", (Say("reasoning", "I look."), Say("content", "Well."), call)),
            Message("tool", (Say("content", "nothing"),)),
            Message("tool", (Say("content", "at all"),)),
            Message("assistant", (Say("reasoning", "Hm."), Say("content", "Nothing."))),
            Message("user", (Say("content", "Again."),)),
        ],
    ]
    for talk in talks:
        for given in ((), tools):
            want, got = ours.render(talk, given), theirs.render(talk, given)
            assert ours.tokenizer.decode(want.ids) == theirs.tokenizer.decode(got.ids)
    assert ours.stop_ids == theirs.stop_ids and theirs.thinks and ours.gaps == theirs.gaps
    assert theirs.call_form == "xml"


def test_the_published_template_shows_images_where_the_bundled_one_does(made: Path) -> None:
    messages = messages_of(
        [attached("Look", ("a.png", data_url(photo(1)))), {"role": "user", "content": "and?"}],
        Gallery().see,
    )
    want = Bundled(Template(Tokenizer())).render(messages)
    got = dialect_of(Flags(model=str(made / "qwen3_5"))).render(messages)
    assert got.images == want.images > 0 and np.array_equal(got.ids, want.ids)


def test_an_image_is_read_by_a_directory_with_a_tower_and_comes_back(made: Path) -> None:
    flags = Flags(model=str(made / "qwen3_5"), window=16_384, knobs=Knobs(threads=1))
    dialect = dialect_of(flags)
    of = House(engine_of(flags, dialect), dialect, Setup(None, 0))
    messages: list[dict[str, Any]] = [attached("Look", ("a.png", data_url(photo(1))))]
    usages = []
    with serving(of, about=About("qwen3_5", 60, 20)) as served, served.client() as client:
        for text in ("and?", "so?"):
            given = {"messages": messages}
            answer = client.post("/v1/chat/completions", json=given).raise_for_status().json()
            usages.append(answer["usage"]["tandem"]["cache"])
            messages += [answer["choices"][0]["message"], {"role": "user", "content": text}]
    assert [usage["source"] for usage in usages] == ["cold", "end"]


@pytest.mark.parametrize("kind", ["qwen3_next", "flash"])
def test_a_served_conversation_resumes_at_its_ends(made: Path, kind: str) -> None:
    flags = Flags(model=str(made / kind), window=16_384, knobs=Knobs(threads=1))
    dialect = dialect_of(flags)
    of = House(engine_of(flags, dialect), dialect, Setup(None, 0))
    assert about_of(flags) == About(kind)
    messages: list[dict[str, Any]] = []
    sources = []
    with serving(of, about=About(kind, 60, 20)) as served, served.client() as client:
        for turn in range(3):
            messages.append({"role": "user", "content": f"number {turn}, please"})
            answer = client.post("/v1/chat/completions", json={"messages": messages}).json()
            sources.append(answer["usage"]["tandem"]["cache"]["source"])
            messages.append(answer["choices"][0]["message"])
    assert sources == ["cold", "end", "end"]


# figures


def test_the_sizes_are_the_seeds(made: Path, run: Run) -> None:
    code, out, _ = run("model", "show", "27b", "--draft-layers", 10, "--json")
    said = json.loads(out)
    assert code == 0
    assert said["sections"]["gdn.S"] == 144 << 20
    assert round(said["sections"]["gdn.conv"] / 2**20, 2) == 2.81
    assert (said["kv_row_bytes"], said["draft_row_bytes"]) == (64 << 10, 40_960)
    assert said["row_bytes"] == 106_496
    flash = sizes_of("flash-next")
    assert (flash.anchor_bytes, flash.row_bytes) == (115_662_864, 29_952)
    assert len(flash.section_bytes) == 75
    code, out, _ = run("model", "show", str(made / "flash"))
    assert code == 0 and "gdn.S (3 sections)" in out


@pytest.mark.parametrize("kind", KINDS)
def test_a_directorys_sizes_are_its_engines(made: Path, kind: str) -> None:
    engine = load(str(made / kind), Knobs(threads=1)).engine(grid=64, window=64)
    sizes, state = sizes_of(str(made / kind)), engine.cache_state()
    assert sizes.anchor_bytes == engine.cost().anchor_bytes
    assert sizes.row_bytes == sum(view.rows(0, 1).nbytes for view in state.views)


# bad input


def refused(run: Run, *arguments: object) -> str:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("moorage: ") and err.count("\n") == 1, err
    return err


def broken(made: Path, to: Path, kind: str = "qwen3_5_text") -> Path:
    return Path(shutil.copytree(made / kind, to / "model"))


def changed(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def first_shard(directory: Path) -> Path:
    return min(directory.glob("*.safetensors"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


WRONG: list[tuple[str, Callable[[Path], Any], str, str]] = [
    ("another type", lambda d: changed(d, model_type="llama"), "llama", "qwen3_5_text"),
    ("no config", lambda d: (d / "config.json").unlink(), "config.json: is missing", "flash"),
    ("no JSON", lambda d: (d / "config.json").write_text("{"), "is no JSON", "qwen3_next"),
    ("no shard", lambda d: first_shard(d).unlink(), ".safetensors", "qwen3_next"),
    ("a shard cut short", lambda d: cut(first_shard(d)), ".safetensors", "qwen3_5_text"),
    ("the only file cut short", lambda d: cut(first_shard(d)), ".safetensors", "flash"),
    ("no end of digits", lambda d: (d / "config.json").write_text("1" * 5_000), "JSON", "flash"),
    (
        "a pipe",
        lambda d: ((d / "config.json").unlink(), os.mkfifo(d / "config.json")),
        "config.json: is no file",
        "qwen3_5",
    ),
    ("no positions", lambda d: changed(d, max_position_embeddings=-1), "-1 is no", "qwen3_5_text"),
    ("another size", lambda d: changed(d, intermediate_size=96), "mlp", "qwen3_5_text"),
    ("a table cut short", lambda d: cut(d / "ngram.table"), "ngram.table", "flash"),
    ("no table", lambda d: (d / "ngram.table").unlink(), "ngram.table", "flash"),
    ("a table of other rows", lambda d: changed(d, ngram_rows=77), "ngram.table", "flash"),
]


@pytest.mark.parametrize(
    ("spoil", "said", "kind"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_what_is_wrong_with_a_directory_is_one_line(
    run: Run, made: Path, tmp_path: Path, spoil: Callable[[Path], Any], said: str, kind: str
) -> None:
    directory = broken(made, tmp_path, kind)
    spoil(directory)
    write_trace(small_night(2, 2), tmp_path / "night.jsonl")
    assert said in refused(
        run, "replay", tmp_path / "night.jsonl", *SMALL, "--model", str(directory)
    )
    if said != "-1 is no":  # a window's size is none of a model's
        assert said in refused(run, "model", "show", str(directory))


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "4096"])
def test_what_is_no_size_is_said(made: Path, tmp_path: Path, value: Any) -> None:
    directory = broken(made, tmp_path)
    for name in ("vocab_size", "max_position_embeddings"):
        changed(directory, vocab_size=16_384, max_position_embeddings=4_096)
        assert shape_of(str(directory)).window_max == 4_096
        changed(directory, **{name: value})
        with pytest.raises(BadInput, match=f"{name} {value!r} is no size"):
            shape_of(str(directory))


def test_a_table_whose_model_is_refused_is_closed_again(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(weights: Any) -> None:
        raise BadInput("model.safetensors", None, "has a NaN")

    def open_tables() -> int:
        links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
        return sum(
            os.readlink(link).endswith("ngram.table") for link in links if os.path.lexists(link)
        )

    before = open_tables()
    monkeypatch.setattr("engine.open_model.FlashDecoder", refusing)
    with pytest.raises(BadInput, match="has a NaN"):
        load(str(made / "flash"), Knobs(threads=1))
    assert open_tables() == before


def test_a_tokenizer_of_another_vocabulary(run: Run, made: Path, tmp_path: Path) -> None:
    directory = broken(made, tmp_path)
    changed(directory, vocab_size=16_000)
    said = refused(run, "serve", "--model", str(directory), "--port", 0)
    assert "16,384" in said and "16,000" in said


def test_bad_flags(run: Run, made: Path, tmp_path: Path) -> None:
    directory = str(made / "qwen3_5_text")
    write_trace(small_night(2, 2), tmp_path / "night.jsonl")
    night = ("replay", tmp_path / "night.jsonl", *SMALL)
    for flags, said in (
        (("--model", "nowhere"), "is none of witness, random, flash, third"),
        (("--model", ""), "'' is none of witness, random, flash, third"),
        (("--model", "a" * 300), "is none of witness, random, flash, third"),
        (("--model", directory, "--table", "cold"), "--table: the hybrid has no table"),
        (("--model", "flash", "--table", "cold"), "--table: the flash model has no table"),
        (("--model", directory, "--dtype", "float64"), "--dtype"),
        (("--model", directory, "--device", "cuda"), "--device"),
        (("--model", directory, "--device", "tpu"), "is none of cpu"),
        (("--model", "third", "--kv", "e4m3"), "--kv"),
        (("--model", str(made / "flash"), "--kv", "e4m3"), "--kv"),
        (("--model", "random", "--threads", "5000"), "--threads"),
        (("--kv", "e4m3"), "--kv: the witness"),
        (("--model", "witness", "--dtype", "bfloat16"), "--dtype: the witness"),
        (("--table", "cold"), "--table: the witness"),
        (("--device", "cuda"), "--device: the witness"),
    ):
        assert said in refused(run, *night, *flags)
    assert "--window" in refused(run, "serve", "--model", directory, "--window", 100)
    assert "is none of" in refused(run, "model", "make", "gpt", "--out", tmp_path / "x")
    assert "--size" in refused(run, "model", "make", "flash", "--out", tmp_path, "--size", "7b")
    flags = ("--size", "tiny", "--dtype", "float16", "--out", tmp_path / "x")
    assert "--dtype: 'float16'" in refused(run, "model", "make", "qwen3_5", *flags)
    for seed in (-1, 2**63):
        assert run("replay", "night", "--seed", seed)[0] == 2
        assert run("model", "make", "flash", "--seed", seed, "--out", tmp_path / "x")[0] == 2
    assert "there already" in refused(run, "model", "make", "flash", "--out", made / "flash")
    assert "cannot be looked into" in refused(run, "model", "make", "flash", "--out", "a" * 300)
    for name in ("nowhere", "", "a" * 300):
        assert "is none of" in refused(run, "model", "show", name)


@pytest.mark.parametrize("kind", ["qwen3_5_text", "flash"])
def test_a_drive_that_is_full_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def full(*_: object, **__: object) -> None:
        """What safetensors raises of every error of a write."""
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("engine.checkpoint.save.save_file", full)
    out = tmp_path / "x"
    assert "No space left" in refused(run, "model", "make", kind, "--size", "tiny", "--out", out)
    assert list(out.iterdir()) == []


def test_whoever_may_read_one_file_may_read_all(made: Path) -> None:
    for kind in MADE:
        files = list((made / kind).iterdir())
        modes = {file.name: file.stat().st_mode & 0o777 for file in files}
        assert set(modes.values()) == {modes["config.json"]}, modes


def test_a_flash_models_config_is_read_as_one(made: Path, tmp_path: Path) -> None:
    """Words of other programs in it change nothing."""
    directory = broken(made, tmp_path, "flash")
    changed(directory, text_config={}, vision_config={"depth": 3})
    model = load(str(directory), Knobs(threads=1))
    assert isinstance(model, LoadedFlash) and not shape_of(str(directory)).sees
    model.decoder.table.close()


def test_what_went_otherwise_than_asked_is_said(
    made: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drive without direct reads: a cold table is read another way, and the log says so."""
    flags = Flags(model=str(made / "flash"), window=16_384, knobs=Knobs(threads=1, table="cold"))
    dialect = dialect_of(flags)
    monkeypatch.setattr("engine.flash.table_cold._takes", lambda handle, unit: False)
    engine_of(flags, dialect)
    assert "refuses O_DIRECT" in caplog.text
    assert load(str(made / "flash"), Knobs(threads=1)).said == ""
