"""What an experiment writes beside its table: CSV that is read back the same.

Covers experiments.results, and the tables of experiments.registry.

Method: figures, tables and curves with the values that break a CSV (commas, quotes, line ends, no
value, numpy's numbers) are read back by pandas and compared; through the command line, a made-up
experiment's tables and a real one's curve lie beside its figures. Canaries: a row with other
columns, a table in the place of a file that is always there, and one that names no file.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bad import BadInput
from experiments import registry
from experiments.figure import Curve, Figure
from experiments.results import Rows, csv_text, data_of
from sim.profile import Profile, load

FIGURES = [Figure("a.tokens", 3, 4, "tokens", 'a note, with "quotes"'), Figure("b", None, 0.1, "s")]
CURVE = Curve("A title", "tokens", "s", {"one": [(1, 2.5), (2, 3)], "two": [(1, 1e-9)]})


def read(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text), keep_default_na=False)


def test_figures_are_read_back_with_their_notes_and_without_a_measurement() -> None:
    frame = read(data_of("x", FIGURES, {}, [])["figures.csv"])
    assert list(frame.columns) == ["key", "seed", "ours", "unit", "note"]
    assert frame["note"].tolist() == ['a note, with "quotes"', ""]
    assert frame["seed"].tolist() == ["3", ""]
    assert frame["ours"].tolist() == [4.0, 0.1]


def test_a_curve_has_a_file_and_a_line_in_the_index() -> None:
    one = data_of("x", [], {}, [CURVE])
    points = read(one["x.csv"])
    assert list(points.itertuples(index=False, name=None)) == [
        ("one", 1, 2.5),
        ("one", 2, 3.0),
        ("two", 1, 1e-9),
    ]
    index = read(one["curves.csv"])
    assert index.to_dict("records") == [
        {"file": "x.csv", "title": "A title", "x": "tokens", "y": "s"}
    ]
    two = data_of("x", [], {}, [CURVE, CURVE])
    assert read(two["curves.csv"])["file"].tolist() == ["x-1.csv", "x-2.csv"]
    assert {"x-1.csv", "x-2.csv"} < set(two)


VALUES = st.one_of(
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False).map(np.float64),
    st.integers(0, 2**40).map(np.int64),
)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8))
def test_numbers_are_read_back_the_same(points: list[tuple[float, float]]) -> None:
    text = csv_text(("x", "y"), [{"x": x, "y": y} for x, y in points])
    lines = [line.split(",") for line in text.splitlines()[1:]]
    assert [(float(x), float(y)) for x, y in lines] == [(float(x), float(y)) for x, y in points]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r")), min_size=1))
def test_texts_are_read_back_the_same(texts: list[str]) -> None:
    text = csv_text(("at", "text"), [{"at": at, "text": one} for at, one in enumerate(texts)])
    assert [row[1] for row in csv.reader(io.StringIO(text, newline=""))][1:] == texts


def made_up(tables: Mapping[str, Rows]) -> ModuleType:
    module = ModuleType("made_up_experiment")

    def run(board: Profile) -> list[Figure]:
        return [Figure("disk", None, int(board.disk), "")]

    def rows(board: Profile) -> Mapping[str, Sequence[Mapping[str, float | str]]]:
        assert not board.disk, "the board that `run` gets"
        return tables

    vars(module).update(NAME="made-up", ABOUT="about", run=run, tables=rows)
    return module


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], None]:
    """A made-up experiment among the others."""

    def call(module: ModuleType) -> None:
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(registry.MODULES, "made-up", module.__name__)

    return call


def test_the_command_writes_tables_beside_the_figures(
    offer: Callable[[ModuleType], None], run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    rows = [{"day": 1, "level": "ok"}, {"day": 2, "level": "hard, at noon"}]
    offer(made_up({"days": rows}))
    assert run("experiment", "made-up", "--out", tmp_path)[0] == 0
    assert read((tmp_path / "days.csv").read_text()).to_dict("records") == rows
    assert read((tmp_path / "figures.csv").read_text())["key"].tolist() == ["disk"]
    page = (tmp_path / "index.html").read_text()
    assert 'href="days.csv"' in page and 'href="figures.csv"' in page


def test_a_real_experiments_csv_has_what_its_json_has(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    assert run("experiment", "pacing", "--out", tmp_path)[0] == 0
    data = json.loads((tmp_path / "figures.json").read_text())["figures"]
    frame = pd.read_csv(tmp_path / "figures.csv").set_index("key")
    assert frame["ours"].to_dict() == {key: figure["ours"] for key, figure in data.items()}
    index = pd.read_csv(tmp_path / "curves.csv")
    for file in index["file"]:
        assert (tmp_path / file).with_suffix(".png").exists()
        assert not pd.read_csv(tmp_path / file).empty


def test_tables_take_what_the_figures_take(offer: Callable[[ModuleType], None]) -> None:
    module = made_up({})

    def replaying(board: Profile, names: Sequence[str], skip_bad: bool) -> dict[str, Rows]:
        return {"asked": [{"names": " ".join(names), "skip_bad": str(skip_bad)}]}

    vars(module).update(TRACES=("night",), tables=replaying)
    offer(module)
    tables = registry.find("made-up").tables
    assert tables is not None
    board = load("spark-27b")
    assert tables(board)["asked"] == [{"names": "night", "skip_bad": "False"}]
    assert tables(board, ["a", "b"], True)["asked"] == [{"names": "a b", "skip_bad": "True"}]
    with pytest.raises(BadInput, match="suffix store"):
        tables(board, (), False, Path("x"))


# canaries: data that could not be read back


@pytest.mark.parametrize(
    "tables",
    [
        {"days": [{"a": 1, "b": 2}, {"a": 1}]},
        {"days": [{"a": 1, "b": 2}, {"b": 1, "a": 2}]},
        {"days": []},
        {"figures": [{"a": 1}]},
        {"curves": [{"a": 1}]},
        {"x": [{"a": 1}]},
        {"../days": [{"a": 1}]},
    ],
)
def test_canary_a_table_that_is_none(tables: Mapping[str, Rows]) -> None:
    with pytest.raises(AssertionError):
        data_of("x", FIGURES, tables, [CURVE])
