"""Workers on threads, and the right of way: what runs at once, what is raised, and who waits.

Method: real threads that meet at barriers and events; nothing is timed. A way of no patience and
one that nobody holds are each other's canary.
"""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from cache.ports import Pending, Way, Workers
from cache.workers import ThreadWay, ThreadWorkers

LONG_S = 60.0
"""No test waits so long, unless it fails."""


def test_they_are_the_ports() -> None:
    workers: Workers = ThreadWorkers(1)
    way: Way = ThreadWay()
    pending: Pending[str] = workers.start("any", 3, lambda: "done")
    assert pending.wait() == "done" and pending.wait() == "done"
    with way.first():
        pass
    way.give()


def test_as_many_run_at_once_as_there_are_threads() -> None:
    workers, meeting = ThreadWorkers(3), threading.Barrier(3)
    # Each waits for the other two: with fewer threads it would break.
    work = [workers.start("any", 1, lambda: meeting.wait(LONG_S)) for _ in range(3)]
    assert sorted(one.wait() for one in work) == [0, 1, 2]
    assert all(thread.daemon for thread in threading.enumerate() if thread.name[:8] == "transfer")
    workers.close()


def test_one_thread_takes_work_in_order_and_close_lets_it_end() -> None:
    workers, seen, begin = ThreadWorkers(1), list[int](), threading.Event()
    workers.start("any", 0, lambda: begin.wait(LONG_S))
    work = [workers.start("any", 0, lambda i=i: seen.append(i)) for i in range(20)]
    assert seen == []
    begin.set()
    workers.close()
    assert seen == list(range(20)) and all(one.wait() is None for one in work)
    with pytest.raises(AssertionError):
        workers.start("any", 0, lambda: 1)


def test_threads_are_made_by_the_first_work() -> None:
    before = threading.active_count()
    workers = ThreadWorkers(5)
    assert threading.active_count() == before
    workers.start("any", 0, lambda: 1).wait()
    assert threading.active_count() == before + 5
    workers.close()
    assert threading.active_count() == before


def test_what_work_raises_is_raised_where_it_is_waited_for_and_the_thread_goes_on() -> None:
    workers = ThreadWorkers(1)

    def breaks() -> int:
        raise ValueError("no such plane")

    broken, sound = workers.start("any", 0, breaks), workers.start("any", 0, lambda: 7)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such plane"):
            broken.wait()
    assert sound.wait() == 7
    workers.close()


def test_what_work_had_in_hand_is_let_go_when_it_is_done() -> None:
    class Plane:
        pass

    workers, plane = ThreadWorkers(1), Plane()
    seen = weakref.ref(plane)
    pending = workers.start("any", 0, lambda plane=plane: plane is not None)
    assert pending.wait()
    workers.close()
    del plane
    gc.collect()
    assert seen() is None, "the pending work holds it"


# the right of way


def given_way(way: ThreadWay) -> tuple[threading.Thread, threading.Event]:
    """A thread that gives way, and whether it was let through."""
    through = threading.Event()

    def background() -> None:
        way.give()
        through.set()

    thread = threading.Thread(target=background, daemon=True)
    thread.start()
    return thread, through


def test_the_background_goes_on_when_the_last_of_them_is_through() -> None:
    way = ThreadWay(LONG_S)
    with way.first():
        thread, through = given_way(way)
        with way.first(), way.first():
            pass
        # It cannot be through: somebody goes first from before it began.
        assert not through.is_set()
    thread.join(LONG_S)
    assert through.is_set()


def test_an_error_gives_the_way_back() -> None:
    way = ThreadWay(LONG_S)
    with pytest.raises(OSError), way.first():
        raise OSError
    thread, through = given_way(way)
    thread.join(LONG_S)
    assert through.is_set()


def test_canary_no_patience_is_no_way() -> None:
    way = ThreadWay(0.0)
    with way.first():
        thread, through = given_way(way)
        thread.join(LONG_S)
        assert through.is_set(), "what was not given way would have run here"
