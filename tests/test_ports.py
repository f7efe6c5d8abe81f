"""The ports: every adapter, real and simulated, has every call with the same parameters.

Method: signatures by inspection, so that a port can't grow a call that one world lacks.
"""

import inspect

import pytest

from cache.host import OsFiles, SystemClock, ThreadJobs
from cache.ports import Clock, Files, Jobs, Model
from engine.adapter import Engine
from sim.clock import VirtualClock
from sim.jobs import SeededJobs


@pytest.mark.parametrize(
    ("port", "adapter"),
    [
        (Clock, SystemClock),
        (Clock, VirtualClock),
        (Files, OsFiles),
        (Jobs, ThreadJobs),
        (Jobs, SeededJobs),
        (Model, Engine),
    ],
)
def test_an_adapter_has_every_call_of_its_port(port: type, adapter: type) -> None:
    calls = {n: m for n, m in vars(port).items() if callable(m) and not n.startswith("_")}
    assert calls
    for name, call in calls.items():
        wanted = list(inspect.signature(call).parameters)
        assert list(inspect.signature(getattr(adapter, name)).parameters) == wanted, name
