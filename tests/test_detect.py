"""Every format is told by its first object, and each file goes to its reader.

Method: a small file of each format, told from its whole and from its head cut at every length; then
files and folders are read through the one entry, with bad ones among them.
"""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bad import BadInput
from replay.readers import detect as detect_module
from replay.readers.detect import FORMATS, detect, read_traces, reader, top_keys

WEKA = {
    "id": "w",
    "models": ["m"],
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [{"t": 0.0, "type": "n", "in": 100, "out": 5, "hash_ids": [1], "kind": "x"}],
}
HEADER = {"format": "moorage.trace", "version": 1}
LINE = {"id": "a", "t": 0, "prompt": [[-1, 0, 3]], "output": []}
MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
BAILIAN = {"chat_id": 1, "timestamp": 0.5, "input_length": 20, "output_length": 5}
EXAMPLES = {
    "moorage": [HEADER, LINE],
    "weka": [WEKA],
    "mooncake": [MOONCAKE],
    "bailian": [BAILIAN],
    "raw": [{"n": 1, "kind": "request", "t": 2.0, "body": {"messages": []}}],
    "raw of the recorder": [{"format": "moorage.raw", "version": 1, "t": 1.0}],
    "mooncake of text": [{"messages": [{"role": "user", "content": "chat_id"}]}],
    "moorage of the future": [{"version": 9, "format": "moorage.trace"}],
    "weka without a scope": [{"requests": [], "block_size": 64}],
}


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_format_is_told(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.jsonl", EXAMPLES[name])
    assert detect(path) == name.split()[0]
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert detect(path) == name.split()[0]


def test_a_document_of_many_lines_or_of_one_huge_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(WEKA, indent=2))
    assert detect(path) == "weka"
    huge = WEKA | {"requests": WEKA["requests"] * 5_000}
    path.write_text(json.dumps(huge))
    assert path.stat().st_size > 200_000 and detect(path) == "weka"


@pytest.mark.parametrize("text", ["", "  \n", "[1]", "nonsense", "{}", '{"a": 1}', '{"a'])
def test_what_is_none_of_them_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"the format is none of|the file is empty"):
        detect(path)


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=5), st.data())
def test_top_keys_of_a_head_cut_anywhere(row: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(row, ensure_ascii=data.draw(st.booleans()))
    strings = {key: value if isinstance(value, str) else None for key, value in row.items()}
    assert top_keys(text + "\n" + '{"next": 1}') == strings
    cut = top_keys(text[: data.draw(st.integers(0, len(text)))])
    assert list(cut) == list(row)[: len(cut)]
    assert all(value in (None, strings[key]) for key, value in cut.items())


def test_every_format_has_its_reader() -> None:
    for name in FORMATS:
        module = "replay.tracefile" if name == "moorage" else f"replay.readers.{name}"
        found = reader(name)
        found = found.func if isinstance(found, partial) else found
        assert found.__module__ == module


def test_files_and_folders_of_any_format(tmp_path: Path) -> None:
    for name in ("moorage", "weka", "mooncake", "bailian"):
        write(tmp_path / f"{name}.jsonl", EXAMPLES[name])
    (tmp_path / "README.md").write_text("not data")
    traces = read_traces([tmp_path])
    assert [trace.name for trace in traces] == ["bailian", "mooncake", "moorage", "weka"]
    assert [len(trace.requests) for trace in traces] == [1, 1, 1, 1]
    # A format that is named is not guessed.
    with pytest.raises(BadInput, match=r"mooncake\.jsonl:1: 2 hash ids for 600"):
        read_traces([tmp_path / "mooncake.jsonl"], name="bailian")


def test_unreadable_files_are_passed_over_when_bad_lines_are(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [MOONCAKE, {"timestamp": 1}])
    (tmp_path / "b.jsonl").write_text("nonsense")
    write(tmp_path / "c.jsonl", [{"format": "moorage.trace", "version": 2}])
    bad: list[BadInput] = []
    assert [trace.name for trace in read_traces([tmp_path], bad.append)] == ["a"]
    assert [(b.source.rsplit("/")[-1], b.line) for b in bad] == [
        ("a.jsonl", 2),
        ("b.jsonl", 1),
        ("c.jsonl", 1),
    ]
    with pytest.raises(BadInput, match=r"a\.jsonl:2"):
        read_traces([tmp_path])
    with pytest.raises(BadInput, match="is not known"):
        read_traces([tmp_path / "c.jsonl"], bad.append)
    with pytest.raises(BadInput, match="no file was named"):
        read_traces([])


def test_the_head_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.json", [WEKA])
    monkeypatch.setattr(detect_module, "_HEAD_BYTES", 80)
    assert detect(path) == "weka"
