"""Runs what the notebooks read, then the notebooks themselves, and keeps their outputs quiet."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
RESULTS = "../out/notebooks"
"""Where the notebooks look for results, from their own folder."""
PARAMETERS = "parameters"
"""Tag of the cell that names the folder of results."""
CELL_S_MAX = 120


@dataclass(frozen=True, slots=True)
class Needed:
    """A command whose results some notebook reads, and the folder it writes."""

    name: str
    arguments: tuple[str, ...]


NEEDED = (
    Needed("night", ("replay", "night")),
    Needed("night-heads", ("replay", "night", "--set", "spill=off")),
    Needed("night-no-drive", ("replay", "night", "--set", "disk=off", "--set", "spill=off")),
    Needed("anchor-rules", ("experiment", "anchor-rules")),
    Needed("restart", ("experiment", "restart")),
    Needed("end-resumes", ("experiment", "end-resumes")),
    Needed("drive-rested-and-not", ("experiment", "drive-rested-and-not")),
    Needed("pacing", ("experiment", "pacing")),
    Needed("slow-drive", ("experiment", "slow-drive")),
    Needed("budget-sweep", ("experiment", "budget-sweep")),
)


class Broken(Exception):
    """A notebook that does not run, whose outputs may not be kept, or no results; one line."""


class ThisPython(KernelSpecManager):
    """Knows one kernel: the Python that runs this, whatever is installed for its user."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Its command line, whatever the name."""
        run = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=[*run, "--HistoryManager.enabled=False"], language="python")


@contextmanager
def kernel() -> Iterator[tuple[AsyncKernelManager, str]]:
    """A kernel that is not started, and a folder for all it keeps. It speaks over local sockets."""
    with tempfile.TemporaryDirectory(prefix="nb") as folder:
        manager = AsyncKernelManager(
            kernel_spec_manager=ThisPython(),
            transport="ipc",
            connection_file=f"{folder}/kernel.json",
        )
        yield manager, folder


def measure(results: Path) -> None:
    """Run every command that the notebooks need; raises Broken when one fails."""
    for needed in NEEDED:
        print(f"{needed.name}: moorage {' '.join(needed.arguments)}", flush=True)
        call = "from moorage import main; main()"
        run = [sys.executable, "-c", call, *needed.arguments, "--out", str(results / needed.name)]
        status = subprocess.run(run, stdout=subprocess.DEVNULL).returncode
        if status:
            raise Broken(f"moorage {' '.join(needed.arguments)}: exit status {status}")


def executed(notebook: NotebookNode, results: Path | None = None) -> NotebookNode:
    """The notebook with fresh outputs, its cells run in order from its own folder.

    `results` stands in for the folder named in the parameters cell while it runs; the cell is kept
    as it was. Raises Broken for the first cell that fails.
    """
    ran = nbformat.from_dict(notebook)
    given = [cell for cell in ran.cells if PARAMETERS in cell.metadata.get("tags", [])]
    if len(given) != 1:
        raise Broken(f"{len(given)} cells are tagged {PARAMETERS!r}, not one")
    source = given[0].source
    if results is not None:
        given[0].source = f"RESULTS = {str(results.resolve())!r}"
    with kernel() as (manager, folder):
        where = {"metadata": {"path": str(HERE)}}
        client = NotebookClient(
            ran, km=manager, timeout=CELL_S_MAX, resources=where, record_timing=False
        )
        try:
            client.execute(env=_environment(folder), cleanup_kc=True)
        except (CellExecutionError, DeadKernelError) as error:
            raise Broken(_where(ran, error)) from None
    given[0].source = source
    return cleaned(ran)


def _environment(folder: str) -> dict[str, str]:
    """The caller's, with nothing of its own IPython and one thread."""
    import os

    own = {"IPYTHONDIR": folder, "JUPYTER_RUNTIME_DIR": folder, "MPLCONFIGDIR": folder}
    quiet = {"OMP_NUM_THREADS": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    return dict(os.environ) | own | quiet


def _where(notebook: NotebookNode, error: Exception) -> str:
    for at, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                return f"cell {at}: {output.ename}: {output.evalue}"
    return f"{type(error).__name__}: {error}"


def cleaned(notebook: NotebookNode) -> NotebookNode:
    """Without what differs from one run to the next: times, versions, a kernel's messages."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        for output in cell.get("outputs", []):
            output.pop("transient", None)
    return notebook


def complaints(notebook: NotebookNode, paths: Sequence[str]) -> list[str]:
    """What may not stand in a notebook's outputs: warnings, and paths of a machine."""
    found = []
    for at, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                found.append(f"cell {at} wrote to standard error: {output.text.strip()[:200]}")
            text = nbformat.writes(nbformat.v4.new_notebook(cells=[_only(output)]))
            found += [f"cell {at} shows the path {path}" for path in paths if path in text]
    return found


def _only(output: Any) -> NotebookNode:
    """A cell of the output's text; a picture is no text."""
    kept = nbformat.from_dict(output)
    if "data" in kept:
        kept.data = {kind: text for kind, text in kept.data.items() if kind != "image/png"}
    return nbformat.v4.new_code_cell(outputs=[kept])


def machine_paths(*more: Path) -> list[str]:
    """Paths that belong to this machine alone."""
    places = (HERE.parent, Path(sys.prefix), Path.home(), Path(tempfile.gettempdir()), *more)
    return sorted({str(place) for place in places if len(place.parts) > 1})


def refresh(path: Path, results: Path | None = None) -> NotebookNode:
    """Execute a notebook of this folder; raises Broken, naming it."""
    notebook = nbformat.read(path, as_version=4)
    try:
        ran = executed(notebook, results)
    except Broken as error:
        raise Broken(f"{path.name}: {error}") from None
    wrong = complaints(ran, machine_paths(*([] if results is None else [results])))
    if wrong:
        raise Broken(f"{path.name}: {'; '.join(wrong)}")
    return ran


def main(arguments: Sequence[str] | None = None) -> int:
    """`python notebooks/run.py`; returns the exit status, 1 when a notebook is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks; all of them when none is named")
    parser.add_argument("--measure", action="store_true", help="run replays and experiments first")
    asked = parser.parse_args(arguments)
    names = asked.names or sorted(path.stem for path in HERE.glob("*.ipynb"))
    paths = [HERE / f"{Path(name).stem}.ipynb" for name in names]
    for path in paths:
        if not path.exists():
            parser.error(f"no notebook {path.stem}")
    try:
        if asked.measure:
            measure((HERE / RESULTS).resolve())
        for path in paths:
            nbformat.write(refresh(path), path)
            print(f"{path.name}: executed", flush=True)
    except Broken as error:
        print(f"notebooks: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
