"""The device's kernels become machine code of Hopper and Ampere, with no such device in reach.

Goal: every kernel compiles for every way it is asked for; at the 27B's shapes none needs more
shared memory than a block has, nor keeps more than a little of its registers in memory.
Method: Triton's compiler and the assembler that comes with it, from signatures written down here;
the resources are read off the code. What the code computes, the interpreter says (test_kernels.py)
and a device (test_gpu_kernels.py). A canary takes too many terms at a time, and its
registers run over.
Covers engine.kernels.delta_scan, engine.kernels.decode_attention and engine.kernels.rows_e4m3.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cache.spill import kernels as spill_kernels
from engine.kernels import decode_attention, delta_scan, rows_e4m3

SHARED_MAX = {90: 227 << 10, 80: 163 << 10}
"""Bytes of a block, by the compute capability times ten: CUDA's programming guide, 2025."""
SPILLED_MAX = 1 << 10
"""Bytes a thread keeps in memory for want of registers."""
F, I = "*fp32", "i32"  # noqa: E741


def of(names: str, kind: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


def rule(size: int, keys: int, columns: int, piece: int = 16) -> dict[str, tuple[Any, ...]]:
    """The delta rule's kernels for inner chunks of `size` tokens."""
    inner = of("q k v g beta grown_q decay scores fresh reads", F) | of("C K V", I)
    swept = of("grown_q k decay scores fresh reads state us out", F) | of("chunks heads C K V", I)
    sides = {"CB": size, "PIECE": piece}
    return {
        "solve": (delta_scan._solve_kernel, inner, sides | {"WB": columns}, 8, 1),
        "sweep": (delta_scan._sweep_kernel, swept, sides | {"KB": keys, "VB": columns}, 8, 1),
    }


def attention(side: int, channels: int) -> dict[str, tuple[Any, ...]]:
    """A block's attention over rows as floats and as codes, in float32 and bfloat16."""
    shared = {"SHARES": decode_attention.SHARES, "TILE": decode_attention.TILE, "DB": channels}
    numbers = of("key_scales value_scales sums tops totals", F) | {"start": "*i64", "scale": "fp32"}
    numbers |= of("n queries channels head_stride scale_stride", I)
    found: dict[str, tuple[Any, ...]] = {}
    for coded in (False, True):
        for narrow in (False, True):
            q = "*bf16" if narrow else F
            rows = "*u8" if coded else q
            how = {"CODED": coded, "NARROW": narrow, "QB": side if narrow else 16}
            given = numbers | {"q": q, "keys": rows, "values": rows}
            kernel = decode_attention._shares_kernel
            found[f"shares coded={coded} narrow={narrow}"] = (kernel, given, shared | how, 8, 2)
    for half in (False, True):
        given = of("sums tops totals", F) | {"start": "*i64", "out": "*i16" if half else F}
        given |= of("n queries channels padded", I)
        how = shared | {"HALF": half}
        found[f"weigh half={half}"] = (decode_attention._weigh_kernel, given, how, 4, 3)
    return found


def codes(channels: int) -> dict[str, tuple[Any, ...]]:
    """Rows to e4m3 and back."""
    found: dict[str, tuple[Any, ...]] = {}
    for half in (False, True):
        how = {"HALF": half, "ROWS": rows_e4m3.ROWS, "WIDTH": channels}
        limits = {"LARGEST": rows_e4m3.LARGEST, "SMALLEST": rows_e4m3.SMALLEST_SCALE}
        rows = {"rows": "*i16" if half else "*i32", "codes": "*u8", "scales": F}
        given = rows | of("n channels", I)
        found[f"quantise half={half}"] = (rows_e4m3._quantise_kernel, given, how | limits, 4, 3)
        out = {"codes": "*u8", "scales": F, "out": "*i16" if half else F}
        given = out | of("n channels code_outer code_row scale_outer", I)
        found[f"dequantise half={half}"] = (rows_e4m3._dequantise_kernel, given, how, 4, 3)
    return found


def spill() -> dict[str, tuple[Any, ...]]:
    """Sums and planes, of elements of 2 and of 8 bytes."""
    pair = {"words": "*i32", "pair": "*i64", "n": I}
    block = {"BLOCK": spill_kernels.BLOCK}
    found: dict[str, tuple[Any, ...]] = {"pair": (spill_kernels._pair_kernel, pair, block, 4, 3)}
    for size, ints in ((2, "*i16"), (8, "*i64")):
        given = {"ints": ints, "planes": "*u8", "n": I, "stride": I}
        how = block | {"SIZE": size}
        found[f"split {size}"] = (spill_kernels._split_kernel, given, how, 4, 3)
        found[f"join {size}"] = (spill_kernels._join_kernel, given, how, 4, 3)
    return found


SMALL = rule(16, 16, 16) | attention(16, 16) | codes(16) | spill()
LARGE = rule(64, 128, delta_scan.COLUMNS, delta_scan.PIECE) | attention(64, 256) | codes(256)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken from another run."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))


def compiled(
    kernel: Any,
    given: dict[str, str],
    how: dict[str, Any],
    warps: int,
    stages: int,
    capability: int,
) -> Any:
    names = kernel.arg_names
    signature = {name: given.get(name, "constexpr") for name in names}
    fixed = {(names.index(name),): value for name, value in how.items()}
    assert sorted([*given, *how]) == sorted(names), "an argument that nobody gives"
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def spilled(code: bytes, folder: Path) -> int:
    """Bytes a thread keeps in memory."""
    path = folder / "kernel.cubin"
    path.write_bytes(code)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    said = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True)
    found = re.search(r"STACK:(\d+)", said.stdout)
    assert found, said.stdout
    return int(found[1])


@pytest.mark.parametrize("name", SMALL)
def test_a_kernel_compiles_for_hopper(name: str) -> None:
    made = compiled(*SMALL[name], 90)
    assert made.asm["cubin"] and made.metadata.shared <= SHARED_MAX[90]


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_MAX)
@pytest.mark.parametrize("name", LARGE)
def test_a_kernel_fits_at_the_27bs_shapes(name: str, capability: int, tmp_path: Path) -> None:
    made = compiled(*LARGE[name], capability)
    assert made.metadata.shared <= SHARED_MAX[capability]
    assert spilled(made.asm["cubin"], tmp_path) <= SPILLED_MAX


def test_sums_are_read_again_past_a_barrier() -> None:
    """A sweep's u and its state go through memory: whoever writes them and whoever reads them are
    other threads of a block."""
    ir = compiled(*SMALL["sweep"], 90).asm["ttgir"]
    steps = re.findall(r"tt\.load|tt\.store|ttg\.barrier|gpu\.barrier|scf\.for", ir)
    places = [at for at, step in enumerate(steps) if "barrier" in step]
    stores = [at for at, step in enumerate(steps) if step == "tt.store"]
    assert len(places) == 2 and len(stores) == 3
    assert stores[0] < places[0] < stores[1] < stores[2] < places[1]
    assert "tt.load" in steps[places[0] : stores[1]]


@pytest.mark.slow
def test_canary_too_much_of_a_product_at_a_time(tmp_path: Path) -> None:
    made = compiled(*rule(64, 128, 64, piece=64)["sweep"], 90)
    assert spilled(made.asm["cubin"], tmp_path) > SPILLED_MAX
