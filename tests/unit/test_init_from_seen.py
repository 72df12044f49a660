"""A job's lines behind `session.model` see the weights that it begins with, in every process that runs them."""

import copy
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from forks import processes
from play import Play
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.checkpoint.manifest import CheckpointUnreadable
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import local_session, run_local
from ringleader.train.program_check.background import CheckWorkspace
from ringleader.train.program_check.runs import check

torch.set_num_threads(1)
ROWS, BATCH, EPOCHS = 32, 8, 2
SERVERS = {"intra_node": "parameter_server", "inter_node": "parameter_server", "servers": 1}


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 4, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def weights_file(place: Path, *nets: nn.Module) -> str:
    """As a script of somebody else leaves it: plain names."""
    tensors = {
        f"{n}.{name}" if len(nets) > 1 else name: t
        for n, net in enumerate(nets)
        for name, t in net.state_dict().items()
    }
    told = {"ringleader.models": str(len(nets))} if len(nets) > 1 else None
    save_file(tensors, str(place / "first.safetensors"), metadata=told)
    return str(place / "first.safetensors")


def job(init_from: str, place: Path, **more: Any) -> JobSpec:
    source = {
        "name": "tuned",
        "entrypoint": "test_init_from_seen:anchored",
        "workers": {"min": 1, "max": 1},
        "batch": {"global_size": BATCH, "logical_shards": 4},
        "params": {"seen": str(place / "seen")},
        "init_from": init_from,
    }
    return JobSpec.parse(source | more)


def anchored(session: Session) -> None:
    """Pulls weights towards those that its top sees, and notes in a file of each process whether they are the job's."""
    net = session.model(network(seed=2))
    teacher = [parameter.detach().clone() for parameter in net.parameters()]
    first = network(seed=1).parameters()
    seen = Path(session.params["seen"])
    seen.mkdir(exist_ok=True)
    equal = all(torch.equal(mine, one) for mine, one in zip(teacher, first, strict=True))
    (seen / str(os.getpid())).write_text(str(equal))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            pull = sum(((p - t) ** 2).sum() for p, t in zip(net.parameters(), teacher, strict=True))
            session.step(F.cross_entropy(net(x), y) + 0.1 * pull)
        session.evaluate(rows(), lambda batch: {"one": torch.ones(len(batch[0]))})


def seen_by(place: Path) -> list[str]:
    return [file.read_text() for file in (place / "seen").iterdir()]


class Anchors:
    """Keeps what its lines see: a copy of the model, and the values of its weights."""

    def __init__(self, *nets: nn.Sequential) -> None:
        self.nets = nets
        self.copies: list[nn.Module] = []
        self.values: list[list[Tensor]] = []

    def __call__(self, session: Session) -> None:
        for net in self.nets:
            session.model(net)
            self.copies.append(copy.deepcopy(net))
            self.values.append([parameter.detach().clone() for parameter in net.parameters()])
        parameters = [parameter for net in self.nets for parameter in net.parameters()]
        session.optimizer(torch.optim.SGD(parameters, lr=0.0))
        for x, y in session.batches(rows()):
            session.step(sum(F.cross_entropy(each(x), y) for each in self.nets))


def assert_seen(anchors: Anchors, number: int, net: nn.Module) -> None:
    for (name, parameter), value in zip(net.named_parameters(), anchors.values[number], strict=True):
        assert torch.equal(value, parameter), name
        assert torch.equal(anchors.copies[number].get_parameter(name), parameter), name
        assert torch.equal(anchors.nets[number].get_parameter(name), parameter), name


def test_the_lines_behind_a_registered_model_see_its_weights(tmp_path: Path) -> None:
    first, anchors = network(seed=1), Anchors(network(seed=2))
    run_local(job(weights_file(tmp_path, first), tmp_path), anchors, tmp_path / "artifacts")
    assert_seen(anchors, 0, first)


def test_so_do_those_of_a_local_session(tmp_path: Path) -> None:
    first, anchors = network(seed=1), Anchors(network(seed=2))
    with local_session(job(weights_file(tmp_path, first), tmp_path)) as session:
        anchors(session)
    assert_seen(anchors, 0, first)


def test_each_of_several_models_has_its_own_weights_once_it_is_registered(tmp_path: Path) -> None:
    first, other = network(seed=1), network(seed=3)
    anchors = Anchors(network(seed=2), network(seed=4))
    run_local(job(weights_file(tmp_path, first, other), tmp_path), anchors, tmp_path / "artifacts")
    assert_seen(anchors, 0, first)
    assert_seen(anchors, 1, other)


def test_a_file_of_plain_names_goes_to_the_first_of_several_models(tmp_path: Path) -> None:
    first, anchors = network(seed=1), Anchors(network(seed=2), network(seed=4))
    uri = weights_file(tmp_path, first)
    _, recorded = run_local(job(uri, tmp_path), anchors, tmp_path / "artifacts")
    assert_seen(anchors, 0, first)
    assert_seen(anchors, 1, network(seed=4))
    told = next(data for kind, data in recorded.events if kind == "weights.loaded")
    assert (told["taken"], told["only_here"][0]) == (len(first.state_dict()), "1.0.bias")


def warned(recorded: Any) -> list[str]:
    """What is said of `init_from`."""
    told = [data for kind, data in recorded.events if kind == "warning"]
    return [data["message"] for data in told if data["about"] == "init_from"]


def test_a_job_that_takes_few_of_the_weights_warns(tmp_path: Path) -> None:
    wrapped = nn.ModuleDict({"module": network(seed=1)[2]})
    wrapped["1"] = nn.BatchNorm1d(8)  # all that has the same name in both
    uri = weights_file(tmp_path, wrapped)
    _, recorded = run_local(job(uri, tmp_path), Anchors(network(seed=2)), tmp_path / "artifacts")
    [message] = warned(recorded)
    assert "has 33 of the 100 numbers of this job's models" in message


def test_a_job_with_a_new_head_does_not(tmp_path: Path) -> None:
    headless = network(seed=1)[:2]
    uri = weights_file(tmp_path, headless)
    _, recorded = run_local(job(uri, tmp_path), Anchors(network(seed=2)), tmp_path / "artifacts")
    assert warned(recorded) == []


def play(place: Path, spec: JobSpec, cues: FaultPlan | None = None, **how: Any) -> Play:
    told = Cast(spec, anchored, cues or FaultPlan(), artifacts=place / "artifacts", **how).play()
    assert told.outcome == "succeeded", (told.reason, told.message)
    return told


@pytest.mark.parametrize(
    ("cues", "more", "processes_seen"),
    [
        (FaultPlan(), {"workers": {"min": 2, "max": 2}}, 2),
        (FaultPlan(), {"workers": {"min": 2, "max": 2}, "sync": SERVERS}, 3),
        (
            FaultPlan()
            .resize(at_step=2, workers_min=2, workers_max=2)
            .hold("w0", at_step=3, for_generation=2),
            {},
            2,
        ),
        (FaultPlan().kill("w1", at_step=3), {"workers": {"min": 2, "max": 2}}, 3),
    ],
    ids=["from the start", "with a server", "a joiner", "a replacement"],
)
def test_every_process_sees_the_same_weights(
    cues: FaultPlan, more: dict[str, Any], processes_seen: int, tmp_path: Path
) -> None:
    told = play(tmp_path, job(weights_file(tmp_path, network(seed=1)), tmp_path, **more), cues)
    assert seen_by(tmp_path) == ["True"] * processes_seen
    assert {(end.reproducible, end.reproducible_why) for end in told.finished.values()} == {(True, "")}


@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone"])
def test_a_later_attempt_sees_them_too_and_says_where_it_cannot(gone: bool, tmp_path: Path) -> None:
    """The source may have been deleted while the job waited: its own weights it has from its checkpoint."""
    uri = weights_file(tmp_path, network(seed=1))
    spec = job(uri, tmp_path, checkpoint={"every_steps": 2})
    checkpoints = str(tmp_path / "checkpoints" / "job")
    # There it waits to be paused: it would be through before on a busy machine.
    faults = FaultPlan().pause(at_step=5).linger("w0", since_step=5, for_generation=2)
    paused = Cast(spec, anchored, faults, tmp_path / "artifacts", checkpoints=checkpoints).play()
    assert paused.outcome == "paused"
    if gone:
        Path(uri).unlink()
    told = play(tmp_path, spec, attempt=2, checkpoints=checkpoints)
    [end] = told.finished.values()
    assert sorted(seen_by(tmp_path)) == (["False", "True"] if gone else ["True", "True"])
    assert end.reproducible is not gone
    assert ("weights of init_from (test_init_from_seen.py:" in end.reproducible_why) is gone
    if not gone:
        assert end.digest == play(tmp_path, spec).digest


def test_a_job_whose_weights_are_gone_at_its_start_fails_and_names_them(tmp_path: Path) -> None:
    uri = str(tmp_path / "none.safetensors")
    told = Cast(job(uri, tmp_path), anchored, artifacts=tmp_path / "artifacts").play()
    assert (told.outcome, told.reason) == ("failed", "checkpoint_unreadable")
    assert uri in told.message


def test_a_local_session_cannot_know_where_a_jobs_weights_are(tmp_path: Path) -> None:
    spec = job("job_01ARZ3NDEKTSV4RRFFQ69G5FAV", tmp_path)
    with pytest.raises(CheckpointUnreadable, match="resolved by a control plane only"):
        run_local(spec, anchored, tmp_path / "artifacts")


def checked(spec: JobSpec, place: Path, which: str) -> None:
    torch.set_num_threads(1)
    (place / which).write_text(repr(check(spec, place, again=which == "again")))


@pytest.mark.parametrize("there", [True, False])
def test_the_check_beforehand_begins_with_them_where_it_can(there: bool, tmp_path: Path) -> None:
    uri = weights_file(tmp_path, network(seed=1)) if there else "job_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    for which in ("first", "again"):
        process = processes().Process(target=checked, args=(job(uri, tmp_path), tmp_path, which))
        process.start()
        process.join()
        assert (tmp_path / which).read_text() == "[]"
    assert seen_by(tmp_path) == [str(there)] * 2


def make_folder(place: Path) -> Path:
    place.mkdir()
    return place


def test_the_check_beside_a_job_begins_with_them(tmp_path: Path) -> None:
    """Else it would find that the teacher differs."""
    place = CheckWorkspace(partial(make_folder, tmp_path / "check"), after_s=0.0, niceness=0)
    spec = job(weights_file(tmp_path, network(seed=1)), tmp_path)
    told = play(tmp_path, spec, beside=place)
    assert told.reported("program.differs") == []
    [end] = told.finished.values()
    assert (end.reproducible, end.reproducible_why) == (True, "")
