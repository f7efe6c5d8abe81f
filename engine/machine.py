"""What of the machine decides bits: library versions, threads, instruction set, a probe."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F

from engine.device import CPU, device_traits


def libraries() -> dict[str, str]:
    """Versions of the libraries that compute rows: products, and positions and casts of ids."""
    return {"torch": torch.__version__, "numpy": np.__version__}


def traits(device: torch.device = CPU) -> dict[str, str]:
    """Everything else of the platform that changed a row's bits in some measurement, by name.

    Of a device: what it is and how its products are set. Of a CPU:

    Thread count: float32 products with more than about 1,000 terms split their sums over threads.
    Instruction set: AMX and AVX512_BF16 round bfloat16 products in another order.
    """
    if device != CPU:
        return device_traits(device)
    threads, capability = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    more = {
        "amx": torch.cpu._is_amx_tile_supported(),
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
    }
    return {
        "threads": str(threads),
        "instruction set": " ".join([capability, *(name for name, has in more.items() if has)]),
        "onednn": str(torch.backends.mkldnn.enabled),
        "matmul precision": torch.get_float32_matmul_precision(),
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
