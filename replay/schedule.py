"""When requests arrive: by the recorded clock, or each after the one it waited for."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from replay.trace import Request, Trace


class Arrivals(StrEnum):
    """How a replay spaces requests."""

    RECORDED = "recorded"
    """Open loop: at the recorded times, however long the box takes."""
    CLOSED = "closed"
    """Closed loop: think time after the end of the request each one waited for."""


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """A request at the door. Ordered by time, then by user and place in the trace."""

    at_s: float
    user: int
    number: int
    trace: int


class Schedule:
    """Users of one box: each replays the next trace when it is done with its last one.

    The caller serves one arrival at a time and says when it ended; what waited for it comes then.
    """

    def __init__(self, traces: Sequence[Trace], users: int, arrivals: Arrivals) -> None:
        assert users > 0
        self._traces = traces
        self._arrivals = arrivals
        self._requests = [{r.number: r for r in trace.requests} for trace in traces]
        self._waiting: dict[tuple[int, int], list[Request]] = {}
        self._open: dict[int, int] = {}
        self._heap: list[Arrival] = []
        self._next_trace = 0
        for user in range(users):
            self._take_trace(user, 0.0)

    def __iter__(self) -> Iterator[Arrival]:
        while self._heap:
            yield heapq.heappop(self._heap)

    def request(self, arrival: Arrival) -> Request:
        """The request that arrived."""
        return self._requests[arrival.trace][arrival.number]

    def ended(self, arrival: Arrival, end_s: float) -> bool:
        """The request is done with, served or refused, at `end_s`; True for its trace's last."""
        for request in self._waiting.pop((arrival.trace, arrival.number), ()):
            self._push(arrival.user, arrival.trace, request, end_s + request.think_s)
        self._open[arrival.user] -= 1
        if self._open[arrival.user]:
            return False
        self._take_trace(arrival.user, end_s)
        return True

    def _take_trace(self, user: int, base_s: float) -> None:
        while self._next_trace < len(self._traces):
            index = self._next_trace
            self._next_trace += 1
            if self._start(user, index, base_s):
                return

    def _start(self, user: int, index: int, base_s: float) -> bool:
        """Put a trace's requests on the calendar; False for an empty one."""
        requests = self._requests[index]
        self._open[user] = len(requests)
        for request in requests.values():
            waits = self._arrivals is Arrivals.CLOSED and request.after in requests
            if waits and request.after is not None:
                self._waiting.setdefault((index, request.after), []).append(request)
            else:
                self._push(user, index, request, base_s + request.t_s)
        return bool(requests)

    def _push(self, user: int, index: int, request: Request, at_s: float) -> None:
        heapq.heappush(self._heap, Arrival(at_s, user, request.number, index))
