"""Counts of the crash suites, at the end of a run."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oracle import Tally

TALLY = "tally"


@pytest.fixture
def tallied(record_property: Callable[[str, object], None]) -> Callable[[Tally], Tally]:
    """Puts a tally among the test's properties and into the summary."""

    def told(tally: Tally) -> Tally:
        record_property(TALLY, tally.line())
        return tally

    return told


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line a tally. Properties come along from other processes, too."""
    lines = list(_lines(terminalreporter.stats))
    if lines:
        terminalreporter.section("states, checks and violations")
        for line in lines:
            terminalreporter.line(line)


def _lines(stats: dict[str, list[Any]]) -> Iterator[str]:
    for outcome in ("passed", "failed"):
        for report in stats.get(outcome, []):
            for name, value in getattr(report, "user_properties", ()):
                if name == TALLY:
                    yield str(value)
