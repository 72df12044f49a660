"""What breaks the same bits is found and said: members on machines that compute differently, at once or one by one."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from play import Play
from threaded_cast import ThreadedCast
from torch import nn
from torch.utils.data import TensorDataset

import ringleader
from ringleader.errors import NoDevice
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.generation.environment_check import Environment, EnvironmentCheck, device_of
from ringleader.train.local import run_local

STEPS = 8


def train(session: Session) -> None:
    net = nn.Linear(2, 1)
    for weight in net.parameters():  # the cast's members are threads, which share their generator
        nn.init.zeros_(weight)
    session.model(net)
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    for x, y in session.batches(TensorDataset(torch.ones(STEPS * 4, 2), torch.ones(STEPS * 4, 1))):
        session.step(((net(x) - y) ** 2).mean())


def spec(workers: int, **keys: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "machines",
            "entrypoint": "m:f",
            "workers": {"min": 1, "max": workers},
            "batch": {"global_size": 4, "logical_shards": 4},
            "checkpoint": {"every_steps": 4},
            **keys,
        }
    )


def on(monkeypatch: pytest.MonkeyPatch, *others: str) -> None:
    """Those workers have other CPUs than the rest."""

    def capability() -> str:
        return "AVX512" if threading.current_thread().name in others else "AVX2"

    torch.set_num_threads(1)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", capability)


def claims(play: Play) -> set[tuple[bool, str]]:
    assert play.outcome == "succeeded", (play.reason, play.message)
    return {(end.reproducible, end.reproducible_why) for end in play.finished.values()}


OTHER = (False, "the machines it was trained on differ in CPU capability (AVX2, AVX512)")


@pytest.mark.parametrize("sync", ["ring", "parameter_server"])
def test_members_whose_cpus_differ_make_no_reproducible_weights(
    sync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, "w1")
    assert claims(ThreadedCast(spec(2, sync=sync), train, artifacts=tmp_path).play()) == {OTHER}


def test_equal_machines_keep_the_claim_and_a_replacement_elsewhere_breaks_it_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch)
    faults = FaultPlan().kill("w1", at_step=2).hold("w0", at_step=5, for_generation=3)
    assert claims(ThreadedCast(spec(2), train, faults, tmp_path / "equal").play()) == {(True, "")}
    on(monkeypatch, "w2")
    play = ThreadedCast(spec(2), train, faults, tmp_path / "other").play()
    assert play.plans[-1].members == ("w0", "w2")
    assert claims(play) == {OTHER}


def test_an_attempt_that_goes_on_elsewhere_from_a_checkpoint_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "checkpoints")
    on(monkeypatch)
    first = ThreadedCast(spec(1), train, artifacts=tmp_path / "first", checkpoints=place).play()
    assert claims(first) == {(True, "")}
    on(monkeypatch, "w0")
    second = ThreadedCast(spec(1), train, artifacts=tmp_path / "second", checkpoints=place, attempt=2).play()
    assert [data["step"] for data in second.reported("checkpoint.restored")] == [STEPS]
    assert claims(second) == {OTHER}


def test_a_job_without_the_claim_keeps_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, "w1")
    play = ThreadedCast(spec(2, sync={"reproducible": False}), train, artifacts=tmp_path).play()
    assert claims(play) == {(False, "sync.reproducible is false for this job")}


@pytest.mark.parametrize("device", ["cpu", "cuda " + "é" * 300])
def test_what_a_member_says_of_its_machine_comes_through_or_is_cut_off(device: str) -> None:
    machine = Environment(device, "AVX2", "2.13.0+cpu", "2.3.4", "1")
    told = Environment.decode(machine.encode())
    assert told == machine if device == "cpu" else told.device.startswith("cuda é")


def test_a_later_attempt_that_finds_no_checkpoint_says_that_it_begins_from_nothing(tmp_path: Path) -> None:
    place = str(tmp_path / "checkpoints")
    first = ThreadedCast(spec(1), train, artifacts=tmp_path / "first", checkpoints=place + "/none").play()
    second = ThreadedCast(spec(2), train, artifacts=tmp_path / "second", checkpoints=place, attempt=2).play()
    assert first.reported("checkpoint.none") == [], "a first attempt has nothing to lose"
    assert second.reported("checkpoint.none") == [{"step": 0}]


@pytest.mark.parametrize(
    ("workers", "there", "device"),
    [
        ({}, True, "cpu"),
        ({"gpus": 1}, True, "cuda"),
        ({"gpus": 1, "device": "cuda"}, True, "cuda"),
        ({"gpus": 1, "device": "auto"}, True, "cuda"),
        ({"gpus": 1, "device": "auto"}, False, "cpu"),
        ({"gpus": 1}, False, None),
        ({"gpus": 1, "device": "cuda"}, False, None),
    ],
    ids=str,
)
def test_a_job_that_asks_for_a_device_has_one_or_is_refused(
    workers: dict[str, Any], there: bool, device: str | None
) -> None:
    asked = JobSpec.parse({"name": "m", "entrypoint": "m:f", "workers": {"max": 2, **workers}})
    if device is not None:
        assert device_of(asked, found=lambda: there).type == device
        return
    with pytest.raises(
        NoDevice, match=r"finds no CUDA device on node 10\.0\.0\.7, but workers\.gpus is 1"
    ) as refused:
        device_of(asked, "node 10.0.0.7", found=lambda: there)
    assert refused.value.code == "no_device"
    assert "workers.device: auto" in refused.value.hint


def test_a_server_has_a_device_only_where_the_job_file_says_so() -> None:
    asked = {"name": "m", "entrypoint": "m:f", "workers": {"gpus": 1}, "sync": "parameter_server"}
    plain, with_gpu = JobSpec.parse(asked), JobSpec.parse(asked | {"servers": {"gpus": 1}})
    assert device_of(plain, server=True, found=lambda: True).type == "cpu"
    assert device_of(with_gpu, server=True, found=lambda: True).type == "cuda"
    with pytest.raises(NoDevice, match=r"servers\.gpus is 1"):
        device_of(with_gpu, server=True, found=lambda: False)
    machines = EnvironmentCheck(plain, torch.device("cpu"))
    machines.restore([("cuda H", "a", "b", "c", "1"), ("", "a", "b", "c", "1")])
    assert not machines.why_other_bits, "it is so in every attempt"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_local_session_without_a_device_is_no_silent_cpu(tmp_path: Path) -> None:
    asked = {"name": "m", "entrypoint": "m:f", "workers": {"max": 1, "gpus": 1}}
    with pytest.raises(NoDevice), ringleader.local_session(asked):
        pytest.fail("the session has begun")
    auto = {**asked, "workers": {"max": 1, "gpus": 1, "device": "auto"}}
    finished, sink = run_local(auto, train, tmp_path)
    assert finished.steps
    assert [(kind, data["about"]) for kind, data in sink.events] == [("warning", "device")]
