"""A job begins with another one's weights, taken by name; what does not match is named."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import CheckpointPosition, CheckpointUnreadable, Manifest
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.snapshot import Snapshot
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local


def net_of(classes: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


def saved(place: Path, net: nn.Module) -> str:
    """The URI of a checkpoint that holds this model, and an optimizer nobody takes over."""
    folder, position = Folder(str(place)), CheckpointPosition(3, 3, attempt=1, generation=1)
    state = {"models": [net.state_dict()], "optimizers": [{"state": {0: torch.ones(3)}}]}
    pieces = Snapshot(state, CheckpointPart()).write(folder, position.name)
    folder.commit(position.name, Manifest(position, tuple(pieces), {}))
    return folder.place_of(position.name)


class Tuned:
    """Takes one step with a learning rate of nothing: the weights stay those that it began with."""

    def __init__(self, classes: int) -> None:
        self.net = net_of(classes, seed=2)

    def __call__(self, session: Session) -> None:
        net = session.model(self.net)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.0))
        for x, y in session.batches(TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))):
            session.step(F.cross_entropy(net(x), y))


def job(uri: str) -> JobSpec:
    return JobSpec.parse(
        {"name": "tuned", "entrypoint": "a:b", "batch": {"global_size": 8}, "init_from": uri}
    )


def test_weights_of_the_same_name_and_shape_are_taken_over(tmp_path: Path) -> None:
    first, tuned = net_of(3, seed=1), Tuned(classes=3)
    _, recorded = run_local(job(saved(tmp_path, first)), tuned, tmp_path / "artifacts")
    told = next(data for kind, data in recorded.events if kind == "weights.loaded")
    assert (told["taken"], told["not_taken"].split(",")[0]) == (len(first.state_dict()), "optimizers")
    for name, parameter in tuned.net.named_parameters():
        assert torch.equal(parameter, first.get_parameter(name)), name


class Pair(nn.Module):
    """Two names of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 3)
        self.other = nn.Linear(4, 3)
        self.other.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.other(x)  # type: ignore[no-any-return]


class Several:
    """Trains what it is given, each model by itself."""

    def __init__(self, lr: float, *nets: nn.Module) -> None:
        self.nets, self.lr = nets, lr

    def __call__(self, session: Session) -> None:
        nets = [session.model(net) for net in self.nets]
        optimizers = [session.optimizer(torch.optim.SGD(net.parameters(), lr=self.lr)) for net in nets]
        assert len(optimizers) == len(nets)
        for x, y in session.batches(TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))):
            session.step(sum(F.cross_entropy(net(x), y) for net in nets))


@pytest.mark.parametrize("count", [1, 2])
def test_a_job_begins_with_the_weights_that_a_shorter_one_than_any_checkpoint_left_behind(
    tmp_path: Path, count: int
) -> None:
    """A model in numbered parts, one with two names for a tensor, alone and together."""

    def nets(seed: int) -> list[nn.Module]:
        both = (net_of(3, seed), Pair())
        return list(both if count == 2 else both[:1])

    first, second = Several(0.5, *nets(1)), Several(0.0, *nets(2))
    spec = {"name": "first", "entrypoint": "a:b", "batch": {"global_size": 8}}
    run_local(JobSpec.parse(spec | {"checkpoint": {"every_steps": None}}), first, tmp_path / "first")
    run_local(job(str(tmp_path / "first" / "weights.safetensors")), second, tmp_path / "second")
    for before, after in zip(first.nets, second.nets, strict=True):
        for name, parameter in after.named_parameters():
            assert torch.equal(parameter, before.get_parameter(name)), name


def test_a_file_that_is_none_of_weights_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with pytest.raises(CheckpointUnreadable, match=r"weights.safetensors cannot be read"):
        run_local(job(str(path)), Tuned(classes=3), tmp_path / "artifacts")
    path.write_bytes(b"no weights at all")
    with pytest.raises(CheckpointUnreadable, match="it is not a weights file"):
        run_local(job(path.as_uri()), Tuned(classes=3), tmp_path / "artifacts")


def test_what_does_not_match_stays_as_it_is_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, tuned = net_of(3, seed=1), Tuned(classes=5)
    own = {name: parameter.detach().clone() for name, parameter in tuned.net.named_parameters()}
    run_local(job(saved(tmp_path, nn.Sequential(*first, nn.Linear(3, 3)))), tuned, tmp_path / "artifacts")
    assert torch.equal(tuned.net[0].weight, first[0].weight)
    assert torch.equal(tuned.net[2].weight, own["2.weight"])
    said = capsys.readouterr().out
    assert "of another shape: 2.bias, 2.weight" in said
    assert "not in this job: 3.bias, 3.weight" in said


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    uri = saved(tmp_path, nn.Sequential(nn.Identity(), nn.Identity(), nn.Identity(), nn.Linear(2, 2)))
    with pytest.raises(
        CheckpointUnreadable, match="no entry with the name and shape of a weight of this job's models"
    ):
        run_local(job(uri), Tuned(classes=3), tmp_path / "artifacts")


def test_a_checkpoint_that_its_job_has_removed_is_named_as_such(tmp_path: Path) -> None:
    uri = saved(tmp_path, net_of(3, seed=1))
    (Path(uri) / "manifest.json").unlink()
    with pytest.raises(CheckpointUnreadable, match="there is no checkpoint; a job keeps only its newest"):
        run_local(job(uri), Tuned(classes=3), tmp_path / "artifacts")
