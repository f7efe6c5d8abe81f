"""Where a replay's process ends: numbers and shares of requests, and what is refused.

Method: values as a person writes them; every refusal is one line that names the flag.
"""

from __future__ import annotations

import pytest

from engine.bad import BadInput
from replay.restarts import Restart, restarts_of


@pytest.mark.parametrize(
    ("texts", "requests", "after"),
    [
        ([], 10, []),
        (["3"], 10, [3]),
        (["50%", "1", "9", "5"], 10, [1, 5, 9]),
        (["1_0"], 20, [10]),
        (["33.3%"], 20, [7]),
    ],
)
def test_numbers_and_shares(texts: list[str], requests: int, after: list[int]) -> None:
    assert restarts_of(texts, requests) == tuple(map(Restart, after))


@pytest.mark.parametrize("text", ["", "half", "2.5", "nan", "nan%", "%", "--3", "inf"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(
        BadInput, match=r"^--restart: .*is neither a number of requests nor a share"
    ):
        restarts_of([text], 10)


@pytest.mark.parametrize("text", ["0", "10", "-1", "0%", "100%", "1%", "1e400%", "-5%"])
def test_one_that_leaves_nothing_on_a_side_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="leaves no request before or after it: there are 10"):
        restarts_of([text], 10)
