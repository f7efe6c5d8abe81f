"""Input files are read whatever packs them, and a damaged one says so.

Method: the same bytes are written plain, gzip and zstd, under endings that say nothing, then cut
and damaged at every place that matters; folders are listed by ending.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from engine.bad import BadInput
from replay.open import (
    Malformed,
    find_files,
    parse_json,
    read_document,
    read_head,
    read_lines,
    stem,
    write_lines,
)

PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}
TEXT = "".join(f'{{"n": {n}, "é": "{"x" * (n % 97)}"}}\n' for n in range(40_000))
"""More than two of the chunks that files are read in."""


@pytest.mark.parametrize("packing", PACKINGS)
def test_lines_of_any_packing_whatever_the_ending(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "input.txt"
    path.write_bytes(PACKINGS[packing](TEXT.encode()))
    lines = list(read_lines(path))
    assert [number for number, _ in lines] == list(range(1, 40_001))
    assert "".join(f"{text}\n" for _, text in lines) == TEXT
    assert read_head(path, 1_000) == TEXT.encode()[:1_000].decode(errors="ignore")


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_frames_one_after_another_are_one_file(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"".join(PACKINGS[packing](part) for part in (b"a\nb", b"c\n", b"d")))
    assert list(read_lines(path)) == [(1, "a"), (2, "bc"), (3, "d")]


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_packed_file_cut_anywhere_is_refused(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "input"
    whole = PACKINGS[packing](TEXT.encode()[:3_000])
    for length in (5, len(whole) // 2, len(whole) - 5, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(BadInput, match="cannot be unpacked: the file is cut off"):
            list(read_lines(path))


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_damaged_packed_file_is_refused(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "input"
    whole = bytearray(PACKINGS[packing](TEXT.encode()[:3_000]))
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(BadInput, match="cannot be unpacked"):
        list(read_lines(path))
    path.write_bytes(PACKINGS[packing](b"a\n") + b"more")
    with pytest.raises(BadInput, match="cannot be unpacked"):
        list(read_lines(path))


def test_blank_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\n a\r\n\n  \nb\n\n")
    assert list(read_lines(path)) == [(2, " a\r"), (5, "b")]


def test_bytes_that_are_no_text_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\nb\n\xff\xfe\n")
    with pytest.raises(BadInput, match=r"input:3: not UTF-8 at byte 0$"):
        list(read_lines(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none: No such file or directory$"):
        list(read_lines(tmp_path / "none"))
    with pytest.raises(BadInput, match=r"Is a directory$"):
        list(read_lines(tmp_path))
    with pytest.raises(BadInput, match=r"cannot be read: File name too long$"):
        find_files([tmp_path / ("a" * 300)])


def test_a_document(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text('{\n"a":\n [1]}')
    assert read_document(path) == {"a": [1]}
    for text, line, words in (
        ("", None, "the file is empty"),
        ('{\n"a":\n [1', 3, "not JSON"),
        ("[NaN]", None, "NaN is no number"),
        ("\ufeff{}", 1, "not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(BadInput, match=words) as caught:
            read_document(path)
        assert caught.value.line == line


def test_json_says_when_it_looks_cut() -> None:
    with pytest.raises(Malformed, match=r"cut off\?"):
        parse_json('{"a": ')
    with pytest.raises(Malformed) as caught:
        parse_json('{"a": ] }')
    assert "cut off" not in str(caught.value)


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.json.gz", "c.jsonl.zst", "README.md", "d.jsonl.partial"):
        (tmp_path / name).write_text("x")
    (tmp_path / "deeper.json").mkdir()
    single = tmp_path / "README.md"
    found = find_files([single, tmp_path])
    assert [path.name for path in found] == ["README.md", "a.json.gz", "b.jsonl", "c.jsonl.zst"]
    assert [stem(path) for path in found] == ["README.md", "a", "b", "c"]
    with pytest.raises(BadInput, match="no file in it ends in one of"):
        find_files([tmp_path / "deeper.json"])


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out{ending}"
    write_lines(path, ["1", "2"])
    assert [text for _, text in read_lines(path)] == ["1", "2"]

    def lines() -> object:
        yield json.dumps("3")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(path, lines())
    assert [text for _, text in read_lines(path)] == ["1", "2"]


def test_a_refusal_is_one_line_whatever_the_name() -> None:
    bad = BadInput("/tmp/a\nb\x1b[0m", 3, "is no\ttrace")
    assert str(bad) == "/tmp/a\\nb\\x1b[0m:3: is no\\ttrace" and bad.source == "/tmp/a\nb\x1b[0m"
