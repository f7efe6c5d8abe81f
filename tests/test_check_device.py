"""`moorage check device`: gates, kernels and rates of a device, where the device is the processor.

Goal: one object with every figure; exit 1 for a gate or a kernel that failed, 2 in one line for a
device that isn't there; what there is no time for is named, and whatever a device refuses or can't
compile is a failure and not the end. No rate is judged.
Method: the check itself on a CPU, with the gates on a drive played (they have tests of their own),
and kernels made of the torch code they are held to. The canaries plant one fault each: in a graph,
in a block, in a kernel. Covers replay.check_device, replay.device_compare, replay.device_gates,
replay.device_kernels and replay.device_rates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cache.host import SystemClock
from engine.bad import BadInput
from engine.config import HybridConfig
from engine.device import CPU, Kernels
from engine.graphs import Again, Graphs, Made, Replay
from engine.hybrid import Hybrid
from engine.layers import delta_rule, e4m3
from engine.layers.attend import attend
from engine.layers.decoder import Decoder
from engine.weights import random_weights
from replay import check_device, device_gates
from replay.check_device import Found, check, run_check_device
from replay.device_compare import Case, Compared, Stopwatch, compared, difference
from replay.device_gates import block_gate, capture_gate, graph_gate
from replay.device_kernels import SMALL, cases
from replay.device_rates import BLOCKS, Rate, rates

DECODER = Decoder(random_weights(HybridConfig.tiny(), 0))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind of rows, the drive's gates hold, and one memory resume is looked at."""
    monkeypatch.setattr(device_gates, "KINDS", (("float32", "model"),))
    monkeypatch.setattr(device_gates, "STEPS", 16)
    monkeypatch.setattr(device_gates.disk_gate, "gate", lambda folder, case: "")
    monkeypatch.setattr(device_gates.spill_gate, "gate", lambda folder, case: "")


def solve(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    inner = delta_rule.solve(*given)
    return inner.queries, inner.decay, inner.scores, inner.fresh, inner.reads


def sweep(*parts: torch.Tensor) -> torch.Tensor:
    return delta_rule._sweep(delta_rule.Inner(*parts[:-1]), parts[-1])


def attend_rows(
    q: torch.Tensor,
    start: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    if scales is not None:
        keys, values = (
            e4m3.dequantise(codes, scale, q.dtype)
            for codes, scale in zip((keys, values), scales, strict=True)
        )
    return attend(q, int(start), keys, values)


def of_torch(**others: Callable[..., object]) -> Kernels:
    """Kernels of the very code that they are held to, but for `others`."""
    made = {
        "solve": solve,
        "sweep": sweep,
        "attend_rows": attend_rows,
        "flash": torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        "quantise": e4m3.quantise,
        "dequantise": e4m3.dequantise,
    }
    return Kernels(**made | others, queries_max=8, files=())  # type: ignore[arg-type]


def test_everything_as_one_object(
    played: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_device, "kernels_for", lambda device: of_torch())
    assert run_check_device("cpu", True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["device"], found["gate"], found["skipped"]) == ("cpu", "ok", [])
    assert found["gates"] == dict.fromkeys(
        (
            "graph is eager, float32",
            "block is its tokens, float32",
            "captures beside copies",
            "memory, float32",
            "disk",
            "spill",
        ),
        "ok",
    )
    names = {one["kernel"] for one in found["kernels"]}
    assert names == {"solve", "sweep", "attend_rows", "chunk attention", "quantise", "dequantise"}
    assert all(one["held"] and one["ratio"] > 0 for one in found["kernels"])
    assert {one["what"] for one in found["rates"]} == {
        "prefill",
        *(f"blocks of {n}" for n in BLOCKS),
    }
    assert all(one["tokens_s"] > 0 for one in found["rates"])
    assert all((one["graph_ratio"] or 1) > 0 for one in found["rates"])
    assert "threads" in found["traits"] and "torch" in found["traits"]


def test_a_table_for_a_person(played: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Without time: what was left out has its names, and nothing is said to have held."""
    assert run_check_device("cpu", False, budget_s=0) == 0
    out = capsys.readouterr().out
    for said in ("no time was left for: graph is eager", "spill", "rates after a longer prompt"):
        assert said in out
    assert "kernels  none are written for this device" in out


def test_kernels_rates_and_failures_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = Found("cpu", {"torch": "2"}, {"memory": "a resume: logits differ", "disk": ""})
    found.kernels = [
        Compared("solve", "small", 1e-7, 1e-5, 2.5),
        Compared("sweep", "small", math.nan, 1e-5, None, "CompilationError: no"),
        Compared("quantise", "small", math.inf, 0.0, None),
    ]
    found.rates = [Rate("prefill", 64, 1234.5), Rate("blocks of 4", 64, 99.0, 1.5)]
    check_device.print_found(check_device.Console(width=140), found)
    out = capsys.readouterr().out
    for said in ("memory: a resume: logits differ", "CompilationError: no", "2.50", "1,23", "1.50"):
        assert said in out
    figures = json.loads(json.dumps(found.figures(), allow_nan=False))
    assert [one["difference"] for one in figures["kernels"]] == [1e-7, None, None]
    assert [one["held"] for one in figures["kernels"]] == [True, False, False]
    found.gates = {}
    assert found.why == "sweep, small: CompilationError: no"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_device_that_is_not_there_is_bad_input() -> None:
    with pytest.raises(BadInput, match="--device: cuda:"):
        run_check_device("cuda", True)


def test_what_a_gate_raises_is_why_it_failed(
    played: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*_: object) -> str:
        raise ValueError("a tile is too large\nfor this device")

    monkeypatch.setattr(check_device, "gates", lambda *_: iter([("one", refused)]))
    monkeypatch.setattr(check_device, "rates", refused)
    found = check(CPU, tmp_path, 0, 100, lambda steps: None)
    why = "ValueError: a tile is too large"
    assert found.gates == {"one": why, "rates": why} and found.why == f"one: {why}"


def test_rates_end_where_time_does() -> None:
    clock = SystemClock()
    asked: list[bool] = []

    def more() -> bool:
        asked.append(True)
        return len(asked) == 1

    found = list(rates(CPU, 0, Stopwatch(CPU, clock), more))
    assert {one.rows for one in found} == {64} and len(found) == 1 + len(BLOCKS)


# canaries


def seen(of: Kernels) -> list[str]:
    """Kernels that are not held."""
    watch = Stopwatch(CPU, SystemClock())
    watch.seconds = lambda run: 1.0  # type: ignore[method-assign]
    return [
        one.kernel for case in cases(of, CPU, SMALL, 0) if not (one := compared(case, watch)).held
    ]


def test_sound_kernels_are_held() -> None:
    assert seen(of_torch()) == []


def test_canary_kernels() -> None:
    def far_off(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(part * 1.001 for part in solve(*given))

    def keeps_the_state(*parts: torch.Tensor) -> torch.Tensor:
        return sweep(*parts[:-1], parts[-1].clone())

    def no_number(q: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return torch.full_like(q, torch.nan)

    def one_bit(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scale = e4m3.quantise(rows)
        codes.view(torch.uint8)[0, 0, 0] ^= 1
        return codes, scale

    def refuses(*_: object) -> torch.Tensor:
        raise NotImplementedError("out of shared memory")

    assert seen(of_torch(solve=far_off)) == ["solve"]
    assert seen(of_torch(sweep=keeps_the_state)) == ["sweep"]
    assert seen(of_torch(attend_rows=no_number)) == ["attend_rows"] * 4
    assert seen(of_torch(quantise=one_bit)) == ["quantise"] * 2
    assert seen(of_torch(dequantise=refuses)) == ["dequantise"] * 2


def test_a_difference_is_of_the_largest_value_and_bits_are_bits() -> None:
    zeros = torch.zeros(2)
    assert difference((zeros + 1,), (zeros + 1,), False) == 0.0
    assert difference((torch.tensor([4.0]),), (torch.tensor([8.0]),), False) == 0.5
    assert math.isnan(difference((zeros * math.nan, zeros), (zeros + 1, zeros), False))
    assert difference((zeros,), (-zeros,), True) == math.inf
    assert difference((zeros,), (-zeros,), False) == 0.0
    assert difference((zeros,), (zeros.half(),), False) == math.inf
    assert difference((zeros,), (torch.zeros(3),), False) == math.inf


class Stale:
    """Plays the first block again and again."""

    def capture(self, run: Callable[[], Made]) -> tuple[Made, Replay]:
        return run(), lambda: None


class Refuses:
    def capture(self, run: Callable[[], Made]) -> tuple[Made, Replay]:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_canary_graphs() -> None:
    assert graph_gate(DECODER, 0, Again()) == ""
    assert graph_gate(DECODER, 0, Stale()) == "block 8 of 1: logits differ"
    assert graph_gate(DECODER, 0, Refuses()).startswith("no graph was captured: operation not")


def test_canary_graphs_that_are_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graphs, "forward", lambda self, run, ids, start: None)
    assert graph_gate(DECODER, 0, Again()) == "graphs made 0 of 40 blocks"


def test_canary_a_block_that_is_not_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert block_gate(DECODER, 0) == ""
    sound = Hybrid._verify

    def last_off(self: Hybrid, ids: torch.Tensor, folded: int) -> torch.Tensor:
        logits = sound(self, ids, folded)  # type: ignore[arg-type]
        return logits + 0.01 if len(ids) > 1 else logits

    monkeypatch.setattr(Hybrid, "_verify", last_off)
    assert "logits are 0.01 apart" in block_gate(DECODER, 0)


def test_canary_a_copier_that_breaks() -> None:
    assert capture_gate(DECODER, 0, rounds=1) == ""

    lock = Hybrid.device_calls

    def breaks(self: Hybrid) -> object:
        raise RuntimeError("capture invalidated")

    Hybrid.device_calls = breaks  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(RuntimeError, match="job copier failed"):
            capture_gate(DECODER, 0, rounds=1)
    finally:
        Hybrid.device_calls = lock  # type: ignore[method-assign]


def test_a_case_names_its_kernel() -> None:
    case = Case("k", "c", 0.0, lambda: (torch.ones(1),), lambda: (torch.ones(1),), None)
    assert compared(case, Stopwatch(CPU, SystemClock())) == Compared("k", "c", 0.0, 0.0, None)
