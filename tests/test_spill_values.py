"""Values of spans in a manifest: told apart as before, and no text of them on the drive.

Method: hypothesis over texts and numbers; equality is compared with that of the values themselves.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.spill.values import Digested, plain, told

VALUES = st.one_of(st.integers(-(2**62), 2**62), st.text())


@given(VALUES, VALUES)
def test_what_comes_back_is_equal_to_what_it_was_and_to_nothing_else(a: object, b: object) -> None:
    back = told(json.loads(json.dumps(plain(a))))  # type: ignore[arg-type]
    assert back == a and a == back
    assert (back == b) == (a == b)
    assert told(plain(back)) == back


def test_no_text_is_written() -> None:
    assert "secret" not in json.dumps(plain("a secret"))
    assert plain(("a", "secret")) is None


@pytest.mark.parametrize("value", [None, 1.5, True, [], "short", "Z" * 64])
def test_what_was_never_written_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        told(value)


def test_equal_ones_have_equal_hashes() -> None:
    assert len({Digested.of("x"), Digested.of("x"), Digested.of("y")}) == 2
