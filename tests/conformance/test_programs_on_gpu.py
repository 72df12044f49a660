"""Programs on a CUDA device end with the bits of one undisturbed process there: members share the machine's device."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import test_programs
import torch
from faults import FaultPlan
from programs_on_gpu import ON_GPU
from test_programs import dies, job, keeps_its_bits, played, wait_at, waits

from ringleader.spec.workers import Servers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
MOMENTS = ("kill-5", "pause-8", "restart-6", "join-6")
STATES = {"fused_adam_looked_at", "adafactor_looked_at"}
REFUSED = {"servers": STATES, "local_sgd": {"rows_of_a_table"}}
"""In words: tests/unit/test_served_states.py, test_local_sgd.py."""
KERNELS = {"without_a_kernel"}
CASES = [
    (name, mode, MOMENTS[(number + turn) % len(MOMENTS)])
    for turn, mode in enumerate(("ring", "servers", "local_sgd"))
    for number, name in enumerate(name for name in ON_GPU if name not in KERNELS)
    if name not in REFUSED.get(mode, ())
]


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(test_programs, "GPUS", 1)
    test_programs.alone_with_phases.cache_clear()
    yield
    test_programs.alone_with_phases.cache_clear()


@pytest.mark.parametrize(("name", "mode", "moment"), CASES)
def test_a_program_keeps_its_bits(name: str, mode: str, moment: str, tmp_path: Path) -> None:
    keeps_its_bits(name, mode, moment, tmp_path)


def test_an_operation_without_a_deterministic_kernel_is_named() -> None:
    result, _ = test_programs.alone_with_phases("without_a_kernel", "ring")
    assert not result.reproducible
    assert "grid_sampler_2d_backward_cuda" in result.reproducible_why


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_narrow_precision_keeps_its_bits(precision: str, tmp_path: Path) -> None:
    spec = job("ring", least=2, most=3).model_copy(update={"precision": precision})
    whole = played("attention", spec, FaultPlan(), tmp_path / "whole")
    killed = played("attention", spec, waits(dies("ring", 5), "ring", comes=3), tmp_path / "killed")
    assert len(killed.plans) > 1
    assert killed.digest == whole.digest
    assert {finished.reproducible_why for finished in killed.finished.values()} == {""}


def test_servers_in_host_memory_keep_their_bits(tmp_path: Path) -> None:
    """Workers on the device, whose weights servers without one update: as the job file has it by default."""
    spec = job("servers", least=2, most=3).model_copy(update={"servers": Servers()})
    whole = played("attention", spec, FaultPlan(), tmp_path / "whole")
    killed = played("attention", spec, waits(dies("servers", 5), "servers", comes=3), tmp_path / "killed")
    assert len(killed.plans) > 1
    assert killed.digest == whole.digest
    assert {finished.reproducible_why for finished in killed.finished.values()} == {""}


def test_the_modes_of_torch_are_as_before_the_job() -> None:
    result, _ = test_programs.alone_with_phases("attention_in_half", "ring")
    assert result.reproducible_why == ""
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(("first", "then"), [(1, 0), (0, 1)], ids=["onto the CPU", "onto the device"])
@pytest.mark.parametrize("name", ["kept_on_the_device", "fused_adam_looked_at"])
def test_a_checkpoint_goes_on_where_the_kind_of_device_is_another(
    name: str, first: int, then: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(test_programs, "GPUS", first)
    faults = wait_at(FaultPlan().pause(at_step=8), "ring", 8)
    paused = played(name, job("ring", least=2, most=2), faults, tmp_path)
    assert paused.outcome == "paused"
    monkeypatch.setattr(test_programs, "GPUS", then)
    resumed = played(name, job("ring", least=1, most=1), FaultPlan(), tmp_path, attempt=2)
    assert (resumed.outcome, resumed.message) == ("succeeded", "")
    (finished,) = resumed.finished.values()
    assert finished.steps == 16
    assert "differ in device" in finished.reproducible_why
