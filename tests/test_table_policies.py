"""One model over its n-gram table warm, cold and in memory: the same text, and who pays for it.

Method: greedy turns of 200 tokens over a table on the drive, mincore afterwards; drives that fail
under a turn, on a box and behind the server, whose next turn must be as any other; a served model's
resident files in its stats, metrics and budget. Canaries: a table that gives a neighbour's row, a
fault that is passed over. Goal: ST4's table of per-layer embeddings, ST1's
resident_files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashed import ids_of
from served import DIALECT, serving, usual
from support import box
from tabled import write_table

from cache.types import Ids
from engine.box import Box
from engine.flash.checkpoint import save_flash
from engine.flash.config import FlashConfig
from engine.flash.decoder import FlashDecoder
from engine.flash.engine import Flash
from engine.flash.table import Policy, Table, open_table
from engine.flash.table_cold import ColdTable
from engine.flash.table_file import TableUnreadable
from engine.flash.table_handle import page_cache_bytes
from engine.flash.table_lane import Lane
from engine.flash.weights import random_weights
from engine.identity import identity_of
from engine.prompt import Prompt
from engine.sampling import Greedy
from engine.turn import turn
from serve.house import House, Setup

CONFIG = FlashConfig.tiny(layers=2, attention_interval=2)
GRID, WINDOW, SEED = 64, 640, 7
ANSWER, SHORT = 200, 24
PROMPT = ids_of(300)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "t"
    write(path, CONFIG)
    return path


def write(path: Path, config: FlashConfig) -> None:
    size = {"rows": config.ngram_rows, "width": config.ngram_width}
    write_table(str(path), **size, dtype=config.torch_dtype, seed=SEED)


def opened(path: Path, policy: Policy, cache_bytes: int = 20_000) -> Table:
    return open_table(str(path), policy=policy, cache_bytes=cache_bytes)


def engine(table: Table | None) -> Flash:
    return Flash.random(CONFIG, SEED, grid=GRID, window=WINDOW, table=table)


def written(of: Flash, count: int = ANSWER) -> list[int]:
    """The greedy answer of a turn."""
    on = box(of)
    run(on, PROMPT, count)
    assert on.journal.rows[-1].output == count
    return on.stack.resident.account.ids[len(PROMPT) :].tolist()


def run(on: Box, ids: Ids, count: int) -> None:
    for _ in turn(on, Prompt(ids), Greedy(1), count):
        pass


def resident(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY)
    try:
        return page_cache_bytes(handle, path.stat().st_size)
    finally:
        os.close(handle)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    """Of the table in memory."""
    return written(engine(None))


def check_text(
    path: Path, expected: list[int], policy: Policy, cache_bytes: int, count: int = ANSWER
) -> Flash:
    of = engine(opened(path, policy, cache_bytes))
    said = written(of, count)
    assert said == expected[: len(said)] and len(said) >= count - 1
    return of


@pytest.mark.parametrize("cache_bytes, count", [(0, SHORT), (20_000, ANSWER)])
def test_a_cold_table_gives_the_same_text_and_keeps_no_page(
    path: Path, expected: list[int], cache_bytes: int, count: int
) -> None:
    path.read_bytes()
    of = check_text(path, expected, "cold", cache_bytes, count)
    assert len(set(expected)) > 20, "a text that says nothing"
    assert resident(path) == of.resident_files() == 0
    of.decoder.table.close()


def test_a_warm_table_gives_the_same_text_and_says_what_it_keeps(
    path: Path, expected: list[int]
) -> None:
    of = check_text(path, expected, "warm", 0)
    assert of.resident_files() == resident(path) > 100_000
    assert of.twin(WINDOW).resident_files() == of.resident_files(), "twins keep the same pages"
    of.decoder.table.close()


def test_policies_are_one_identity(path: Path) -> None:
    both = [engine(opened(path, policy)) for policy in ("warm", "cold")]
    one, other = (identity_of(of, ()).fingerprint for of in both)
    assert one == other != identity_of(engine(None), ()).fingerprint
    for of in both:
        of.decoder.table.close()


# a drive that fails


def fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Lane, handle: int, offsets: Any, sizes: Any) -> Any:
        return np.full(len(sizes), -errno.EIO)

    monkeypatch.setattr(Lane, "read", read)


def check_fault_in_the_middle(path: Path, expected: list[int], at: int) -> None:
    """The drive fails after so many events of a second turn; the third is as it always was."""
    of = engine(opened(path, "cold", 0))
    on = box(of)
    run(on, PROMPT[:200], 9)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TableUnreadable, match="output err"):
        for number, _ in enumerate(turn(on, Prompt(PROMPT[::-1]), Greedy(1), SHORT)):
            if number == at:
                fail(patch)
    assert on.journal.rows[-1].finish == "failed" and on.journal.rows[-1].end == "none"
    on.stack.check()
    run(on, PROMPT, SHORT)
    assert on.journal.rows[-1].cached == 0
    said = on.stack.resident.account.ids[len(PROMPT) :].tolist()
    assert said == expected[: len(said)] and len(said) >= SHORT - 1
    of.decoder.table.close()


@pytest.mark.parametrize("at", [0, 3, 8])
def test_a_drive_that_fails_fails_its_turn_alone(path: Path, expected: list[int], at: int) -> None:
    check_fault_in_the_middle(path, expected, at)


def test_a_drive_that_fails_under_a_command_is_one_line(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_flash(tmp_path, random_weights(CONFIG, SEED))
    monkeypatch.setattr(ColdTable, "digest", lambda self: "was read while the drive was sound")
    fail(monkeypatch)
    where = ("--model", tmp_path, "--table", "cold", "--set", "grid=64")
    code, out, told = run("check", "gates", *where)
    assert code == 2 and not out, out
    (line,) = told.splitlines()
    assert line.endswith("rows of the n-gram table can't be read: Input/output error")
    assert line.startswith(f"moorage: {tmp_path / 'ngram.table'}: ")


# behind the server


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FlashConfig, Path]]:
    path = tmp_path_factory.mktemp("table") / "t"
    config = FlashConfig.tiny(vocab=DIALECT.tokenizer.vocab, tie_embeddings=False, layers=4)
    write(path, config)
    yield config, path


def house(config: FlashConfig, table: Table) -> House:
    of = Flash(FlashDecoder(random_weights(config, 1, table)), grid=GRID, window=4_096)
    return House(of, DIALECT, Setup(None, 1, 2_048), usual())


def body(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0}


def test_a_drive_that_fails_fails_its_request_alone(
    small: tuple[FlashConfig, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config, path = small
    with serving(house(config, opened(path, "cold", 0))) as served, served.client() as client:
        first = client.post("/v1/chat/completions", json=body("hello " * 60))
        assert first.status_code == 200, first.text
        with monkeypatch.context() as patch:
            fail(patch)
            broken = client.post("/v1/chat/completions", json=body("goodbye"))
        assert broken.status_code == 500 and "output error" in caplog.text
        again = client.post("/v1/chat/completions", json=body("hello " * 60))
        assert again.status_code == 200
        assert again.json()["choices"] == first.json()["choices"]
        assert client.get("/v1/cache/stats").json()["memory"]["resident_files"] == 0


def test_a_served_model_says_what_page_cache_it_keeps(small: tuple[FlashConfig, Path]) -> None:
    config, path = small
    table = opened(path, "warm")
    with serving(house(config, table)) as served, served.client() as client:
        assert client.post("/v1/chat/completions", json=body("word " * 300)).status_code == 200
        memory = client.get("/v1/cache/stats").json()["memory"]
        assert memory["resident_files"] == table.resident_bytes() == resident(path) > 0
        told = client.get("/metrics").text
        assert f"moorage_resident_files_bytes {float(resident(path))}" in told
        counter = served.house.budget._memory
        assert counter.allocated_bytes() - counter.own_bytes() == memory["resident_files"]


# canaries


def test_canary_a_neighbours_row(
    path: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ColdTable.rows

    def next_to(self: ColdTable, keys: torch.Tensor) -> torch.Tensor:
        return whole(self, (keys + 1) % self.header.rows)

    monkeypatch.setattr(ColdTable, "rows", next_to)
    with pytest.raises(AssertionError):
        check_text(path, expected, "cold", 0, SHORT)


def test_canary_a_fault_that_is_passed_over(
    path: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ColdTable._read

    def zeros(self: ColdTable, keys: np.ndarray) -> np.ndarray:
        try:
            return whole(self, keys)
        except TableUnreadable:
            return np.zeros((len(keys), self.header.row_bytes), np.uint8)

    monkeypatch.setattr(ColdTable, "_read", zeros)
    with pytest.raises(pytest.fail.Exception):
        check_fault_in_the_middle(path, expected, 3)
