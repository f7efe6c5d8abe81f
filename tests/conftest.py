"""Profiles of the property tests: `ci` repeats itself, `night` looks further with fresh seeds."""

import functools
import os
import ssl
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, settings

from moorage import main

# Workers share the cores, and small products are slower on two threads than on one.
torch.set_num_threads(1)
# Every HTTP client reads the system's certificates, 30 ms at a time, and none here needs them.
ssl.create_default_context = functools.cache(ssl.create_default_context)

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    # A busy machine makes a generator slow, not wrong.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("night", max_examples=2_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line: arguments to (exit status, standard output, standard error)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call
