"""The notebooks: every cell runs on results written by the very commands that make them need.

Covers notebooks.run, notebooks.shared and replay.colours.

Method: the commands of `make notebooks` write a small night's results, each notebook runs on them
in a kernel of its own, and every picture must be there and small. The committed notebooks are held
to what `run` lets through: outputs in every cell that draws, no warning, no path of a machine.
Canaries: a cell that fails, a result without a column, a warning, and a path must each be refused.
"""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nights import small_night

from experiments.registry import find
from replay.tracefile import write_trace
from sim import drive_fit
from sim.drive import Rates
from sim.profile import load

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))

from notebooks import run as runner  # noqa: E402
from notebooks import shared  # noqa: E402
from notebooks.shared import PICTURE_BYTES_MAX, Missing, Results, value  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SMALL = ("--set", "grid=64", "--set", "window=4096", "--set", "resident_bytes=1400000000")
Run = Callable[..., tuple[int, str, str]]


def small(needed: runner.Needed, trace: Path) -> list[object]:
    """The command on a small trace and board."""
    arguments: list[object] = [trace if word == "night" else word for word in needed.arguments]
    if arguments[0] == "experiment" and find(needed.arguments[1]).traces:
        arguments += ["--traces", trace]
    return [*arguments, *(SMALL if trace in arguments else ())]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results as `make notebooks` writes them, of a small night."""
    folder = tmp_path_factory.mktemp("results")
    # The fit is the subject of tests/test_drive_fit.py, and takes JAX ten seconds.
    rates = Rates.of(load("spark-27b"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drive_fit, "fitted", lambda: (rates, 0.0))
        write_results(folder)
    return folder


def write_results(folder: Path) -> None:
    """Every command's results."""
    from moorage import main

    trace = folder / "small.jsonl.zst"
    write_trace(small_night(1, 24), trace)
    for needed in runner.NEEDED:
        with pytest.raises(SystemExit) as ended:
            main([str(one) for one in (*small(needed, trace), "--out", folder / needed.name)])
        assert not ended.value.code, needed


def pictures(notebook: NotebookNode) -> list[tuple[int, bytes]]:
    """Cell and PNG of each picture."""
    return [
        (at, base64.b64decode(output.data["image/png"]))
        for at, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]


def drawing(notebook: NotebookNode) -> list[int]:
    """Cells that draw."""
    return [at for at, cell in enumerate(notebook.cells) if "shared.show(" in cell.source]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_on_small_results(path: Path, sample: Path) -> None:
    ran = runner.refresh(path, sample)
    assert [at for at, _ in pictures(ran)] == drawing(ran) != []
    code = [cell for cell in ran.cells if cell.cell_type == "code" and cell.source.strip()]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    # The folder stood in for the committed one while the cells ran, and is not kept.
    assert [cell.source for cell in ran.cells] == [
        cell.source for cell in nbformat.read(path, as_version=4).cells
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_has_its_pictures_and_nothing_of_a_machine(path: Path) -> None:
    text = path.read_text()
    kept = nbformat.reads(text, as_version=4)
    nbformat.validate(kept)
    drawn = pictures(kept)
    assert [at for at, _ in drawn] == drawing(kept) != []
    assert all(0 < len(data) <= PICTURE_BYTES_MAX for _, data in drawn)
    assert runner.complaints(kept, ["/work", "/home", "/root", "/tmp", "site-packages"]) == []
    assert nbformat.writes(runner.cleaned(nbformat.reads(text, as_version=4))) == text.rstrip("\n")
    first = next(cell for cell in kept.cells if cell.cell_type == "code")
    assert first.source == f'RESULTS = "{runner.RESULTS}"'
    assert first.metadata.tags == [runner.PARAMETERS]


def test_the_notebooks_simulate_nothing() -> None:
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                lines = [line.split() for line in cell.source.splitlines()]
                taken = {line[1] for line in lines if line[:1] in (["import"], ["from"])}
                assert taken <= {"pandas", "numpy", "shared"}, path


def test_every_result_that_is_made_is_read() -> None:
    sources = "".join(path.read_text() for path in NOTEBOOKS)
    assert [one.name for one in runner.NEEDED if f'\\"{one.name}\\"' not in sources] == []


def test_a_picture_is_the_same_file_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[bytes] = []
    monkeypatch.setattr(shared, "display", lambda image: shown.append(image.data))
    for _ in range(2):
        figure, (one,) = shared.axes()
        one.plot([1, 2], [3, 4])
        shared.show(figure, "a line")
    assert shown[0] == shown[1] and shown[0].startswith(b"\x89PNG")


# canaries: what must not pass


def made(*sources: str, before: str = "pass") -> NotebookNode:
    """A notebook of these cells after the one that names the results."""
    given = new_code_cell("RESULTS = 'x'", id="given", metadata={"tags": [runner.PARAMETERS]})
    cells = [new_code_cell(source, id=f"c{at}") for at, source in enumerate((before, *sources))]
    return new_notebook(cells=[given, *cells])


def test_canary_a_cell_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(runner.Broken, match=r"^cell 3: ZeroDivisionError: division by zero$"):
        runner.executed(made("x = 1", "x / 0", "x"), tmp_path)


def test_canary_a_result_without_a_column_breaks_its_notebook(sample: Path, tmp_path: Path) -> None:
    for needed in runner.NEEDED:
        shutil.copytree(sample / needed.name, tmp_path / needed.name)
    ledger = tmp_path / "night" / "ledger.parquet"
    pd.read_parquet(ledger).drop(columns="reread_replaced").to_parquet(ledger)
    with pytest.raises(runner.Broken, match=r"Missing: night has no column reread_replaced$"):
        runner.refresh(ROOT / "notebooks" / "reuse_and_reread.ipynb", tmp_path)


def test_canary_warnings_and_paths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.ipynb"
    sources = {
        "import warnings; warnings.warn('old')": "wrote to standard error",
        "import os; os.getcwd()": "shows the path",
        "RESULTS": "shows the path",
        "import sys; print(sys.executable)": "shows the path",
        "1 + 1": "",
    }
    nbformat.write(made(*sources), path)
    with pytest.raises(runner.Broken, match=r"^some.ipynb: cell 2 wrote") as broken:
        runner.refresh(path, tmp_path)
    for at, says in enumerate(sources.values(), start=2):
        assert (f"cell {at} {says}" in str(broken.value)) == bool(says)


def test_canary_a_path_in_html_is_seen_and_one_in_a_picture_is_not() -> None:
    place = tempfile.gettempdir()
    html = new_output("display_data", data={"text/html": f"<b>{place}/x</b>"})
    picture = new_output("display_data", data={"image/png": place})
    for output, found in ((html, 1), (picture, 0)):
        notebook = new_notebook(cells=[new_code_cell(outputs=[output])])
        assert len(runner.complaints(notebook, [place])) == found


def test_canary_a_notebook_that_names_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(runner.Broken, match="0 cells are tagged 'parameters'"):
        runner.executed(new_notebook(cells=[new_code_cell("1")]), tmp_path)


def test_canary_results_that_are_not_there(tmp_path: Path) -> None:
    results = Results(tmp_path)
    with pytest.raises(
        Missing, match=r"^no night/ledger.parquet among the results: run `make notebooks`$"
    ):
        results.ledger("night", ())
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "figures.csv").write_text("key,seed,ours,unit\nx,,1,s\n")
    with pytest.raises(Missing, match=r"^a/figures.csv has no column note$"):
        results.figures("a")
    (tmp_path / "a" / "figures.csv").write_text("key,seed,ours,unit,note\nx,,1,s,\n")
    assert value(results.figures("a"), "x") == 1.0
    with pytest.raises(Missing, match="no figure y"):
        value(results.figures("a"), "y")
