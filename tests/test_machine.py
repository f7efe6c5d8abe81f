"""What of the machine decides bits, as the fingerprint will see it.

Goal: every setting that was measured to change bits changes the answer, and nothing else does.
Method: ask twice, at two thread counts, and with oneDNN off.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from engine.machine import libraries, probe, traits


@pytest.fixture
def settings() -> Iterator[None]:
    """Put the thread count and oneDNN back."""
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    yield
    torch.set_num_threads(threads)
    torch._C._set_mkldnn_enabled(onednn)
    probe.cache_clear()


def test_the_same_machine_gives_the_same_answer(settings: None) -> None:
    before = traits()
    probe.cache_clear()
    assert traits() == before
    assert libraries() == {"torch": torch.__version__, "numpy": np.__version__}


def test_thread_count_is_part_of_it(settings: None) -> None:
    torch.set_num_threads(1)
    one = traits()
    torch.set_num_threads(2)
    two = traits()
    assert (one["threads"], two["threads"]) == ("1", "2")


def test_matmul_precision_and_onednn_are_part_of_it(settings: None) -> None:
    before = traits()
    torch.set_float32_matmul_precision("medium")
    torch._C._set_mkldnn_enabled(False)
    after = traits()
    torch.set_float32_matmul_precision(before["matmul precision"])
    assert before["matmul precision"] != after["matmul precision"] == "medium"
    assert (before["onednn"], after["onednn"]) == ("True", "False")


def test_probe_sees_a_kernel_that_no_version_names(settings: None) -> None:
    """Without oneDNN bfloat16 products round otherwise; the probe is there for such switches."""
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("this processor's bfloat16 products are the fallback already")
    before = probe(torch.get_num_threads())
    torch._C._set_mkldnn_enabled(False)
    probe.cache_clear()
    assert probe(torch.get_num_threads()) != before
