"""What of the machine decides bits, as the fingerprint will see it.

Goal: every setting that was measured to change bits changes the answer, and nothing else does.
Method: ask twice, at two thread counts, and with oneDNN off.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.machine import libraries, probe


@pytest.fixture
def settings() -> Iterator[None]:
    """Put the thread count and oneDNN back."""
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    yield
    torch.set_num_threads(threads)
    torch._C._set_mkldnn_enabled(onednn)
    probe.cache_clear()


def test_the_same_machine_gives_the_same_answer(settings: None) -> None:
    before = libraries()
    probe.cache_clear()
    assert libraries() == before
    assert before["torch"] == torch.__version__


def test_thread_count_is_part_of_it(settings: None) -> None:
    torch.set_num_threads(1)
    one = libraries()
    torch.set_num_threads(2)
    two = libraries()
    assert (one["threads"], two["threads"]) == ("1", "2")


def test_probe_sees_a_kernel_that_no_version_names(settings: None) -> None:
    """Without oneDNN bfloat16 products round otherwise; the probe is there for such switches."""
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("this processor's bfloat16 products are the fallback already")
    before = probe(torch.get_num_threads())
    torch._C._set_mkldnn_enabled(False)
    probe.cache_clear()
    assert probe(torch.get_num_threads()) != before
