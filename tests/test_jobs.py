"""Seeded jobs: one seed is one interleaving, other seeds are others, and nothing is lost.

Method: jobs that write down their steps.
"""

from collections.abc import Iterator

import pytest

from sim.jobs import SeededJobs


def run(seed: int) -> list[str]:
    jobs, seen = SeededJobs(seed), list[str]()

    def job(name: str) -> Iterator[None]:
        for step in range(4):
            seen.append(f"{name}{step}")
            yield

    for name in "abc":
        jobs.start(name, job(name))
        jobs.pump()
    jobs.drain()
    return seen


def test_a_seed_replays() -> None:
    assert run(7) == run(7)


def test_seeds_differ_and_every_job_keeps_its_own_order() -> None:
    runs = [run(seed) for seed in range(20)]
    assert len({tuple(steps) for steps in runs}) > 15
    for steps in runs:
        assert sorted(steps) == [f"{n}{i}" for n in "abc" for i in range(4)]
        for name in "abc":
            own = [step for step in steps if step[0] == name]
            assert own == sorted(own)


def test_a_broken_job_names_itself_and_is_gone() -> None:
    jobs = SeededJobs(0)

    def broken() -> Iterator[None]:
        raise ValueError("no")
        yield

    jobs.start("broken", broken())
    with pytest.raises(RuntimeError, match="job broken failed"):
        jobs.drain()
    jobs.drain()


@pytest.mark.parametrize("end", [SystemExit(143), KeyboardInterrupt()])
def test_what_ends_the_program_ends_it_from_a_job_too(end: BaseException) -> None:
    def ending() -> Iterator[None]:
        raise end
        yield

    jobs = SeededJobs(0)
    jobs.start("ending", ending())
    with pytest.raises(type(end)):
        jobs.drain()
    jobs.drain()
