"""The notebooks: every cell runs on results written by the very commands that make them need.

Covers notebooks.run, notebooks.shared and replay.colours.

Method: the commands of `make notebooks` write a small night's results, each notebook runs on them
in a kernel of its own, and every picture must be there and small. The committed notebooks are held
to what `run` lets through: outputs in every cell that draws, no warning, no path of a machine.
Canaries: a cell that fails, a result without a column, a warning, and a path must each be refused.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import nbformat
import numpy as np
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nights import small_night

from experiments import budget_settings, budget_sweep, drive_rested_and_not
from experiments.registry import find
from replay.ledger import to_frame
from replay.tracefile import write_trace
from sim.budget_days import Days
from sim.drive import Rates
from sim.profile import Profile, load
from sim.write_days import events

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))

from notebooks import run as runner  # noqa: E402
from notebooks import shared  # noqa: E402
from notebooks.shared import PICTURE_BYTES_MAX, Missing, Results, value  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SOME = {"drive", "reuse_and_reread"}
OTHERS = {path.stem for path in NOTEBOOKS} - SOME
"""A kernel takes seconds to start: these run with the slow tests."""
SMALL = (
    *("--set", "grid=64", "--set", "window=4096", "--set", "resident_bytes=1400000000"),
    *("--set", "spill_tokens_min=64", "--set", "spill_park_tokens_min=64"),
    *("--set", "park_bytes=600000000"),
)
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
    with pytest.MonkeyPatch.context() as patch:
        without_jax(patch)
        write_results(folder)
    return folder


def without_jax(patch: pytest.MonkeyPatch) -> None:
    """A fit and a sweep of ten thousand settings, which have tests of their own, in no time."""
    fit = ModuleType("sim.drive_fit")
    vars(fit).update(
        FITTED=drive_rested_and_not.UNITS,
        fitted=lambda: (Rates.of(load("spark-27b")), 0.0),
        standard_errors=lambda params: dict.fromkeys(drive_rested_and_not.UNITS, 0.0),
    )
    patch.setitem(sys.modules, "sim.drive_fit", fit)
    patch.setattr(budget_settings, "SETTINGS", 12)
    patch.setattr(budget_settings, "CHECKED", 12)
    patch.setattr(budget_sweep, "sweep", cache(a_few_settings))


def a_few_settings(board: Profile) -> budget_settings.Sweep:
    """What the sweep gives, by its plain loop."""
    sizes, settings = budget_settings.sizes_of(board), budget_settings.drawn(board)
    happened = events(sizes)
    plain = budget_settings.looped(settings, sizes, happened)
    slots = tuple(np.array(each) for each in zip(*(days.saved for days in plain), strict=True))
    rest = [np.array(each) for each in zip(*(days[2:] for days in plain), strict=True)]
    ends = Days(plain[0].drive, slots, *rest)
    return budget_settings.Sweep(settings, ends, len(happened), 1.0, 1.0, 1.0, 0.0)


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


@pytest.mark.parametrize(
    "names", [SOME, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=("some", "others")
)
def test_every_cell_runs_on_small_results(names: set[str], sample: Path) -> None:
    # In one test, so that no two workers write the results.
    for path in (one for one in NOTEBOOKS if one.stem in names):
        ran = runner.refresh(path, sample)
        assert [at for at, _ in pictures(ran)] == drawing(ran) != [], path
        code = [cell for cell in ran.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), path
        # The folder stood in for the committed one while the cells ran, and is not kept.
        committed = nbformat.read(path, as_version=4).cells
        assert [cell.source for cell in ran.cells] == [cell.source for cell in committed], path


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


def test_canary_a_result_without_a_column_breaks_its_notebook(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    ledger = to_frame([]).drop(columns="reread_replaced")
    ledger.to_parquet(tmp_path / "night" / "ledger.parquet")
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


def test_canary_a_command_that_fails_and_a_notebook_that_is_not_there_are_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = runner.Needed("night", ("nothing",))
    monkeypatch.setattr(runner, "NEEDED", (bad,))
    monkeypatch.setattr(runner, "RESULTS", str(tmp_path))
    assert runner.main(["--measure", "drive"]) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "notebooks: moorage nothing: exit status 2"
    with pytest.raises(SystemExit) as ended:
        runner.main(["nothing"])
    assert ended.value.code == 2 and "no notebook nothing" in capfd.readouterr().err


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
