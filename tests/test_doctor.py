"""The doctor: partings found where they were planted, with what they cost.

Method: traces with one known parting each; causes against the ledger's own sums.
"""

import io

import pytest
from nights import Builder, small_night
from rich.console import Console

from cache.types import Region
from replay.doctor import cause_table, parting_table, partings, print_diagnosis
from replay.driver import Options, Replay
from replay.ledger import to_frame
from replay.trace import Image, Run, Trace
from sim.compute import PrefillTime
from sim.profile import load, with_settings

BOARD = with_settings(load("spark-27b"), {"grid": "64", "window": "4096"})
SECONDS = PrefillTime.fit(BOARD).seconds


@pytest.mark.parametrize(
    ("at", "region"),
    [(50, Region.TOOLS), (150, Region.SYSTEM), (300, Region.HISTORY), (405, Region.REASONING)],
)
def test_a_parting_lies_where_it_was_planted(at: int, region: Region) -> None:
    build = Builder()
    first = build.fresh(400, 60, tools=120, system=60)
    first = build.change(think_end=20)
    build.part(first, at, 100, 9)
    (found,) = partings(build.trace())
    assert (found.region, found.at, found.back, found.number) == (region, at, 0, 1)


def test_reasoning_that_is_left_out_costs_the_answer_that_comes_back() -> None:
    build = Builder()
    first = build.fresh(400, 60)
    first = build.change(think_end=20)
    build.drop(first, 400, 420, 30, 9)
    (found,) = partings(build.trace())
    assert (found.region, found.at, found.back) == (Region.REASONING, 400, 40)


def test_rows_of_images_that_come_back_are_counted_apart() -> None:
    """The first 100 tokens changed, with a picture among them; another one came back."""
    build = Builder()
    first = build.fresh(400, 60)
    kept = Image(150, 64, "a" * 64)
    build.change(images=(Image(20, 9, "b" * 64), kept))
    build.drop(first, 0, 100, 30, 9)
    runs = (Run(-1, 0, 90), Run(0, 100, 360), Run(-1, 0, 30))
    build.change(prompt=runs, images=(Image(40, 9, "b" * 64), kept._replace(offset=140)))
    (found,) = partings(build.trace())
    assert (found.at, found.back, found.images) == (0, 360, 64)
    table = parting_table([build.trace()], SECONDS)
    assert table["image_tokens"].tolist() == [64]
    text = io.StringIO()
    print_diagnosis(
        Console(file=text, width=160), table, table.assign(cause="x", tokens=0, requests=0)
    )
    assert " 64 " in text.getvalue()


def test_a_conversation_that_only_grows_has_none() -> None:
    build = Builder()
    last = build.fresh(400, 60)
    for _ in range(3):
        last = build.extend(last, 30, 20)
    assert list(partings(build.trace())) == []


def test_sessions_and_kinds_are_kept_apart() -> None:
    build = Builder()
    first = build.fresh(400, 60, "a")
    build.fresh(300, 20, "b")
    build.fresh(50, 5, "a")
    build.change(kind="title")
    build.extend(first, 10, 9, "a")
    assert list(partings(build.trace())) == []


def test_tables_add_up_and_print() -> None:
    trace: Trace = small_night(3, 60)
    ledger = to_frame(Replay([trace], Options(BOARD, verify=0.0)))
    causes, parted = cause_table(ledger, SECONDS), parting_table([trace], SECONDS)
    assert causes["tokens"].sum() == ledger["reread"].sum()
    assert (causes["seconds"] > 0).all() and causes["seconds"].is_monotonic_decreasing
    assert parted["partings"].sum() == len(list(partings(trace)))
    text = io.StringIO()
    print_diagnosis(Console(file=text, width=160), parted, causes)
    assert "replaced" in text.getvalue() and "history" in text.getvalue()


def test_nothing_to_say_is_said() -> None:
    build = Builder()
    build.fresh(10, 1)
    ledger = to_frame(Replay([build.trace()], Options(BOARD)))
    assert parting_table([build.trace()], SECONDS).empty
    assert cause_table(ledger, SECONDS).empty
    print_diagnosis(
        Console(file=io.StringIO()),
        parting_table([build.trace()], SECONDS),
        cause_table(ledger, SECONDS),
    )
