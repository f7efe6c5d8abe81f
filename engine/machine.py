"""What of the machine decides bits: library versions, threads, instruction set, a probe."""

from __future__ import annotations

import hashlib
from functools import cache

import torch
import torch.nn.functional as F


def libraries() -> dict[str, str]:
    """Everything of the platform that changed a row's bits in some measurement, by name.

    Thread count: float32 products with more than about 1,000 terms split their sums over threads.
    Instruction set: AMX and AVX512_BF16 round bfloat16 products in another order.
    """
    threads = torch.get_num_threads()
    return {
        "torch": torch.__version__,
        "threads": str(threads),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "amx": str(torch.cpu._is_amx_tile_supported()),
        "avx512_bf16": str(torch.cpu._is_avx512_bf16_supported()),
        "onednn": str(torch.backends.mkldnn.enabled),
        "probe": probe(threads),
    }


@cache
def probe(threads: int) -> str:
    """Digest of a few products on fixed input, with the current number of threads.

    Settings that change bits but that no library reports (MKL_CBWR, oneDNN's instruction limit)
    show here.
    """
    generator = torch.Generator().manual_seed(0)
    total = hashlib.sha256()
    for dtype in (torch.float32, torch.bfloat16):
        x, weight = (torch.empty(n, 1536).normal_(generator=generator).to(dtype) for n in (64, 96))
        for rows in (1, 5, 64):
            y = F.linear(x[:rows], weight)
            total.update(F.silu(y).view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]
