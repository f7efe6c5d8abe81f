"""The device: named, set, and all of a model on it.

Goal: a name becomes a device or one line of what is wrong; weights move without a change; on a
device every tensor of the hybrid lies there, from prefill to drafts, nothing on the way through a
captured block asks the host, and byte planes cross between host and device.
Method: torch without CUDA refuses by itself, a made-up torch.cuda answers otherwise. A process of
its own registers a device on which nothing is computed (FakeTensorMode): torch then refuses tensors
of two devices in one call, and any answer the host waits for. Canaries put one tensor on the CPU
and one question to the device, and are refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cache.spill import planes
from engine import device as device_module
from engine.bad import BadInput
from engine.config import HybridConfig
from engine.device import CPU, Kernels, device_of, device_traits, kernel_files, kernels_for, moved
from engine.graphs import Again, Made, Replay
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.layers.sight import Sight
from engine.machine import traits
from engine.pictures.picture import Picture
from engine.sampling import Sampled, Sampling
from engine.vision_config import VisionConfig
from engine.weights import Weights, random_weights

FAKE = "accel"
KINDS = {
    "float32": {},
    "e4m3": {"kv": "e4m3", "dtype": "bfloat16"},
    "sees": {"vision": VisionConfig.small()},
}


# by name


def test_the_processor_is_always_there() -> None:
    assert device_of("cpu") == CPU and kernels_for(CPU) is None and kernel_files(CPU) == ()


@pytest.mark.parametrize(
    "name", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "cuda:12345", "mps"]
)
def test_another_name_is_one_line(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        device_of(name)
    assert str(refused.value) == f"--device: {name!r} is none of cpu, cuda, cuda:N"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_cuda_without_any_is_one_line() -> None:
    with pytest.raises(BadInput, match=r"--device: cuda:3: (this torch was built without|no) CUDA"):
        device_of("cuda:3")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A made-up torch.cuda with two devices."""
    here = SimpleNamespace(capability=(9, 0), current=None)
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setenv(device_module.WORKSPACE, ":16:8")
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "get_device_capability": lambda device: here.capability,
        "get_device_name": lambda device: "MADE UP",
        "get_device_properties": lambda device: properties,
        "set_device": lambda device: setattr(here, "current", device),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13000, raising=False)
    monkeypatch.setattr(device_module, "_triton_kernels", lambda: here)
    return here


def test_a_device_is_named_with_its_number_and_made_current(cuda: SimpleNamespace) -> None:
    assert device_of("cuda") == torch.device("cuda", 0)
    assert device_of("cuda:1") == cuda.current == torch.device("cuda", 1)
    assert kernels_for(torch.device("cuda", 1)) is cuda


def test_what_a_device_lacks_is_one_line(
    cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match=r"^--device: cuda:2: this machine has 2, from cuda:0$"):
        device_of("cuda:2")
    cuda.capability = (7, 5)
    with pytest.raises(BadInput, match=r"compute capability is below 8\.0"):
        device_of("cuda")
    cuda.capability = (9, 0)

    def missing() -> Kernels:
        raise ImportError("No module named 'triton'")

    monkeypatch.setattr(device_module, "_triton_kernels", missing)
    with pytest.raises(BadInput, match=r"^--device: cuda: No module named 'triton'$"):
        device_of("cuda")


def test_products_are_set_before_the_first(
    cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(device_module.WORKSPACE)
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    try:
        device_of("cuda")
        assert os.environ[device_module.WORKSPACE] == ":4096:8"
        assert torch.get_float32_matmul_precision() == "highest"
        assert not matmul.allow_bf16_reduced_precision_reduction
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before


def test_a_devices_traits_are_in_the_fingerprint_and_the_processors_are_not(
    cuda: SimpleNamespace,
) -> None:
    found = traits(torch.device("cuda", 0))
    assert found == device_traits(torch.device("cuda", 0))
    assert found["device"] == "MADE UP" and found["capability"] == "9.0"
    assert found["driver"] == "13000" and found["triton"] and found["workspace"] == ":16:8"
    assert "threads" not in found and "threads" in traits()


def test_the_kernels_files_are_there() -> None:
    """Triton's modules can be imported without a device."""
    kernels = device_module._triton_kernels()
    root = Path(__file__).parent.parent
    assert len(kernels.files) == 4 and all((root / path).is_file() for path in kernels.files)


def test_weights_stay_as_they_are_on_the_processor() -> None:
    weights = random_weights(HybridConfig.tiny(), 3)
    assert moved(weights, CPU) is weights
    on_meta = moved(weights, torch.device("meta"))
    assert list(on_meta.tensors) == list(weights.tensors) and on_meta.recipe == weights.recipe
    assert len(on_meta.tensors) == len(weights.tensors)
    assert all(tensor.is_meta for tensor in on_meta.tensors.values())


# all of a model on a device where nothing is computed


def stand_ins() -> Kernels:
    """Kernels that make the right shapes, and hold their arguments to be on one device."""

    def solve(q, k, v, g, beta):  # type: ignore[no-untyped-def]
        together(q, k, v, g, beta)
        scores = q.new_empty(*q.shape[:2], q.shape[1])
        return (*(torch.empty_like(x) for x in (q, g)), scores, torch.empty_like(v), k.clone())

    def sweep(queries, keys, decay, scores, fresh, reads, state):  # type: ignore[no-untyped-def]
        together(queries, keys, decay, scores, fresh, reads, state)
        heads = len(state)
        return fresh.new_empty(len(fresh) // heads * fresh.shape[1], heads, fresh.shape[2])

    def attend_rows(q, start, keys, values, scales=None):  # type: ignore[no-untyped-def]
        together(q, start, keys, values, *(scales or ()))
        return torch.empty_like(q)

    def flash(q, k, v, causal):  # type: ignore[no-untyped-def]
        together(q, k, v)
        return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)

    def quantise(rows):  # type: ignore[no-untyped-def]
        codes = torch.empty_like(rows, dtype=torch.float8_e4m3fn)
        return codes, rows.new_empty(rows.shape[:-1], dtype=torch.float32)

    def dequantise(codes, scale, dtype):  # type: ignore[no-untyped-def]
        together(codes, scale)
        return torch.empty(codes.shape, dtype=dtype, device=codes.device)

    return Kernels(solve, sweep, attend_rows, flash, quantise, dequantise, 8, ())


def together(*tensors: torch.Tensor) -> None:
    assert {tensor.device.type for tensor in tensors} == {FAKE}, [x.device for x in tensors]


@contextmanager
def fake():  # type: ignore[no-untyped-def]
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        yield mode


class Strict(Again):
    """What can't be captured ends the test."""

    def capture(self, run: Callable[[], Made]) -> tuple[Made, Replay]:
        try:
            return super().capture(run)
        except RuntimeError as error:
            raise AssertionError(f"asked the device: {error}") from error


def on_the_device(kind: str) -> list[str]:
    """Prefill, blocks with and without graphs, settle; drafts up to where they are read."""
    from torch._subclasses.fake_tensor import DataDependentOutputException

    with fake():
        of = Hybrid(Decoder(drawn(kind)), grid=64, window=400, graphs=Strict())
        state = of.cache_state()
        bad = [part.name for part in (*state.sections, *state.views) if wrong(part.tensor)]
        ids = np.arange(64, dtype=np.int32)
        bad += [f"prefill of {n}" for n in (64, 20) if wrong(of.prefill(ids[:n]))]
        for n in (1, 8, 9, 8):
            bad += [f"verify of {n}"] if wrong(of.verify(ids[:n])) else []
            of.accept(n)
        of.settle()
        assert of.graphs is not None
        bad += [f"{n} refused: {why}" for n, why in of.graphs.refused.items()]
        bad += [] if of.graphs.replays == 3 else ["too few replays"]
        try:
            of.draft(3, 2)
            bad.append("guesses that nobody asked the device for")
        except DataDependentOutputException as error:
            # The guesses themselves: one question for all of them.
            bad += [] if "_local_scalar_dense" in str(error) else [str(error)]
    return bad


def drawn(kind: str) -> Weights:
    return moved(random_weights(HybridConfig.tiny(**KINDS[kind]), 3), torch.device(FAKE, 0))


def wrong(tensor: torch.Tensor) -> bool:
    return tensor.device.type != FAKE


def text_is_on_it() -> list[str]:
    return on_the_device("float32")


def codes_are_on_it() -> list[str]:
    return on_the_device("e4m3")


def pictures_are_on_it() -> list[str]:
    """The tower; and text after it, but for how far positions lie behind rows: a host's number."""
    sound = Sight.angles
    Sight.angles = lambda self, start, stop: self._rope.rows(start, stop)  # type: ignore[method-assign]
    try:
        bad = on_the_device("sees")
    finally:
        Sight.angles = sound  # type: ignore[method-assign]
    with fake():
        weights = moved(
            random_weights(HybridConfig.tiny(**KINDS["sees"]), 3), torch.device(FAKE, 0)
        )
        tower = Decoder(weights).tower
        patches = torch.zeros(64, 768, dtype=torch.uint8)
        rows = tower(Picture(b"0" * 32, (1, 8, 8), patches))  # type: ignore[misc]
    return bad + (["the tower's rows"] if wrong(rows) else [])


def draws_are_the_hosts() -> list[str]:
    """A rule reads logits where they lie, and draws on the host: its seed is a host's."""
    drawn_on = list[str]()

    def multinomial(p, count, generator):  # type: ignore[no-untyped-def]
        drawn_on.append(p.device.type)
        return 3

    sound, torch.multinomial = torch.multinomial, multinomial  # type: ignore[assignment]
    try:
        with fake():
            how = Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.01, seed=1)
            rule = Sampled(how, drafts=0)
            logits = torch.zeros(2, 50, device=FAKE)
            bad = [] if wrong(logits) is wrong(rule.probabilities(logits[0])) else ["probabilities"]
            bad += [] if rule.judge(logits, [3]) == (1, 3) else ["what was drawn"]
    finally:
        torch.multinomial = sound  # type: ignore[assignment]
    return bad + [f"drawn on {place}" for place in drawn_on if place != "cpu"]


def planes_cross() -> list[str]:
    """Rows on the device, planes in the host's memory, cut and joined where the rows are."""
    seen = list[str]()

    class Cuts:
        @staticmethod
        def split(ints: torch.Tensor, into: torch.Tensor) -> None:
            together(ints, into)
            seen.append("split")

        @staticmethod
        def join(cut: torch.Tensor, into: torch.Tensor) -> None:
            together(cut, into)
            seen.append("join")

    planes.kernels_for = lambda tensor: Cuts if tensor.device.type == FAKE else None  # type: ignore
    with fake():
        rows = torch.zeros(3, 40, 6, dtype=torch.bfloat16, device=FAKE)[:, 5:30]
        cut = torch.zeros(2, rows.numel(), dtype=torch.uint8)
        planes.split(rows, cut)
        planes.join(cut, rows)
        whole = torch.zeros(2, 5, dtype=torch.complex128, device=FAKE)
        planes.split(whole, torch.zeros(16, 10, dtype=torch.uint8))
    return [] if seen == ["split", "join", "split", "split"] else seen


def planted() -> list[str]:
    """Faults that nothing was said of."""
    unseen = []

    def said(fault: str, case: Callable[[], list[str]]) -> None:
        try:
            unseen.extend([] if case() else [fault])
        except Exception as error:
            if "device" not in str(error):
                unseen.append(f"{fault}: {error}")

    from engine.layers import delta_net

    norm = delta_net.Norm
    delta_net.Norm = lambda scale, eps: norm(torch.ones_like(scale, device="cpu"), eps)  # type: ignore
    said("a norm's lengths on the processor", text_is_on_it)
    delta_net.Norm = norm  # type: ignore[misc]

    counted = Hybrid._counted

    def asks(self: Hybrid, ids: torch.Tensor, *where: torch.Tensor):  # type: ignore[no-untyped-def]
        ids.sum().item()
        return counted(self, ids, *where)

    Hybrid._counted = asks  # type: ignore[method-assign]
    said("a question to the device", text_is_on_it)
    Hybrid._counted = counted  # type: ignore[method-assign]
    return unseen


CASES: tuple[Callable[[], list[str]], ...] = (
    text_is_on_it,
    codes_are_on_it,
    pictures_are_on_it,
    draws_are_the_hosts,
    planes_cross,
    planted,
)


@pytest.fixture(scope="module")
def on_a_fake() -> dict[str, list[str]]:
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | {"PYTHONPATH": f"{root}:{root / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_all_of_a_model_is_on_the_device(case: str, on_a_fake: dict[str, list[str]]) -> None:
    assert on_a_fake[case] == []


if __name__ == "__main__":
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    torch.set_num_threads(1)
    _setup_privateuseone_for_python_backend(FAKE)
    device_module.WITH_KERNELS = frozenset({FAKE})  # type: ignore[assignment]
    kernels = stand_ins()
    device_module._triton_kernels = lambda: kernels  # type: ignore[assignment]
    print(json.dumps({case.__name__: case() for case in CASES}))
