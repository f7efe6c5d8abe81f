"""Every field of a JSON object is taken with its type and range, or named in one line.

Method: each getter on values of every JSON type, at and beside its bounds; any JSON value at all
must be shown on one short line.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from traces import JSON

from replay.fields import COUNT_MAX, Fields, finite, shown, whole
from replay.open import Malformed

ROW = Fields({"n": 3, "f": 0.5, "s": "x", "l": [1], "o": {"a": 1}, "none": None, "b": True})


def test_values_of_the_right_type() -> None:
    assert (ROW.whole("n"), ROW.finite("n"), ROW.finite("f")) == (3, 3.0, 0.5)
    assert (ROW.text("s"), ROW.items("l"), ROW.object("o")) == ("x", [1], {"a": 1})
    assert ROW.has("b") and not ROW.has("none") and not ROW.has("missing")
    assert ROW.without(["n", "f", "s", "l", "o"]) == {"none": None, "b": True}


@pytest.mark.parametrize("key", ["none", "missing"])
def test_a_missing_value_and_null_are_the_same(key: str) -> None:
    assert ROW.text(key, "d") == "d" and ROW.items(key) == [] and ROW.object(key) == {}
    assert ROW.whole_or(key, None) is None and ROW.finite_or(key, 1.5) == 1.5
    for getter in (ROW.whole, ROW.finite, ROW.text, ROW.get):
        with pytest.raises(Malformed, match=f"^no '{key}'$"):
            getter(key)


@pytest.mark.parametrize(
    ("getter", "right"),
    [
        ("whole", "n"),
        ("finite", "nf"),
        ("text", "s"),
        ("items", "l"),
        ("object", "o"),
    ],
)
def test_every_other_type_is_refused(getter: str, right: str) -> None:
    for key in "nfslob":
        if key in right:
            continue
        with pytest.raises(Malformed, match=f"'{key}' is not"):
            getattr(ROW, getter)(key)


@pytest.mark.parametrize("value", [-1, 8, 2**80, -(2**80)])
def test_whole_numbers_have_bounds(value: int) -> None:
    assert whole(0, "it", 0, 7) == 0 and whole(7, "it", 0, 7) == 7
    with pytest.raises(Malformed, match=r"^it is not in 0\.\.7"):
        whole(value, "it", 0, 7)
    with pytest.raises(Malformed):
        whole(COUNT_MAX + 1, "it", 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 10**400])
def test_numbers_are_finite_and_have_a_least(value: float) -> None:
    assert finite(0, "it") == 0.0 and finite(-2.5, "it", -3) == -2.5
    with pytest.raises(Malformed, match=r"^it is not a finite number of at least 0: "):
        finite(value, "it")


def test_only_objects_have_fields() -> None:
    assert Fields.parse('{"a": 1}').values == {"a": 1}
    for text in ("[1]", "1", '"a"', "null"):
        with pytest.raises(Malformed, match="the line is not an object"):
            Fields.parse(text)


@given(JSON)
def test_any_value_is_shown_on_one_short_line(value: Any) -> None:
    assert len(shown(value)) <= 60 and "\n" not in shown(value)
    assert shown(10**5_000) == "a huge one"
