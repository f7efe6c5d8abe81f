"""When requests arrive: open and closed loop, one user and several.

Method: small traces by hand; the caller serves each arrival in a fixed time.
"""

import pytest
from nights import Builder, small_night

from replay.schedule import Arrival, Arrivals, Schedule
from replay.trace import Trace


def chain(turns: int, name: str = "chain") -> Trace:
    build = Builder(name)
    last = build.fresh(100, 5)
    for _ in range(turns - 1):
        last = build.extend(last, 10, 5)
    return build.trace()


def played(
    traces: list[Trace], arrivals: Arrivals, users: int = 1, serve_s: float = 7.0
) -> list[tuple[Arrival, float]]:
    schedule, now, seen = Schedule(traces, users, arrivals), 0.0, []
    for arrival in schedule:
        now = max(now, arrival.at_s) + serve_s
        seen.append((arrival, now))
        schedule.ended(arrival, now)
    return seen


def test_open_loop_keeps_the_recorded_times() -> None:
    seen = played([chain(4)], Arrivals.RECORDED, serve_s=25.0)
    assert [a.at_s for a, _ in seen] == [0, 10, 20, 30]
    assert [end for _, end in seen] == [25, 50, 75, 100]


def test_closed_loop_thinks_after_each_end() -> None:
    seen = played([chain(4)], Arrivals.CLOSED)
    assert [a.at_s for a, _ in seen] == [0, 9, 18, 27]


def test_one_user_takes_traces_one_after_another() -> None:
    seen = played([chain(2, "x"), chain(2, "y")], Arrivals.RECORDED)
    assert [(a.trace, a.number, a.at_s) for a, _ in seen] == [
        (0, 0, 0),
        (0, 1, 10),
        (1, 0, 17),
        (1, 1, 27),
    ]


def test_several_users_share_the_box_and_take_the_next_trace_when_done() -> None:
    traces = [chain(3, "x"), chain(1, "y"), chain(2, "z")]
    seen = played(traces, Arrivals.CLOSED, users=2)
    assert {a.user for a, _ in seen} == {0, 1}
    by_trace = {a.trace: a.user for a, _ in seen}
    # The user whose first trace was short takes the third.
    assert by_trace == {0: 0, 1: 1, 2: 1}
    assert [a.at_s for a, _ in seen] == sorted(a.at_s for a, _ in seen)


@pytest.mark.parametrize("arrivals", list(Arrivals))
@pytest.mark.parametrize("users", [1, 2, 5])
def test_every_request_arrives_exactly_once(arrivals: Arrivals, users: int) -> None:
    traces = [small_night(seed, 15, f"n{seed}") for seed in range(4)]
    seen = [(a.trace, a.number) for a, _ in played(traces, arrivals, users)]
    assert sorted(seen) == [
        (at, request.number) for at, trace in enumerate(traces) for request in trace.requests
    ]


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_nothing_arrives_before_what_it_waited_for(arrivals: Arrivals) -> None:
    trace = small_night(3)
    done: set[int] = set()
    for arrival, _ in played([trace], arrivals, serve_s=60.0):
        after = trace.requests[arrival.number].after
        assert after is None or after in done
        done.add(arrival.number)


def test_a_request_whose_forerunner_is_missing_comes_at_its_own_time() -> None:
    trace = chain(3)
    holed = Trace(trace.name, trace.header, (trace.requests[0], trace.requests[2]))
    assert [a.at_s for a, _ in played([holed], Arrivals.CLOSED)] == [0, 20]


def test_an_empty_trace_is_passed_over() -> None:
    empty = Trace("empty", chain(1).header, ())
    assert len(played([empty, chain(2), empty], Arrivals.CLOSED, users=2)) == 2
