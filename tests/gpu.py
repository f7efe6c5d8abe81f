"""What tests that need a CUDA device share: the device, or the reason why there is none."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from engine.device import device_of

WHY = "no CUDA device"


@cache
def device() -> torch.device:
    """The first one, set as it is for serving; skips the test without one."""
    if not torch.cuda.is_available():
        pytest.skip(WHY)
    return device_of("cuda")
