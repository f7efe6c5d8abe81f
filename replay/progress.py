"""A progress bar on standard error, for work of more than two seconds on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

Advance = Callable[[int], None]


@contextmanager
def progress(what: str, total: int | None, *, unit: str) -> Iterator[Advance]:
    """Shows how much of `total` is done while the block runs; call what it gives to advance."""
    columns = [
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}" + ("/{task.total:,.0f} " if total else " ") + unit),
        TimeRemainingColumn(),
    ]
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
