"""The state with which a job ends is saved, in each mode, and another job can begin with all of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import ANY, FaultPlan
from test_cadence import MODES, SERVERS, STEPS, job
from threaded_cast import ThreadedCast
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader import Session
from ringleader.checkpoint.committer import Committer
from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import CheckpointPosition, Manifest, SavedPart
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.snapshot import Snapshot, SnapshotMemory, checkpoint_at
from ringleader.train.generation.saving.saver import joined
from ringleader.train.state.fingerprints import weights_sha256

Optimizers = Callable[[nn.Module], torch.optim.Optimizer]
SELDOM = {"every_steps": None, "every_s": 3600}
GROUP = {"min": 2, "max": 2}


def momentum(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.01)


class Train:
    """Rows that are all the same: what a step makes of the weights does not depend on the pass."""

    def __init__(
        self, steps: int = STEPS, optimizer: Optimizers = momentum, classes: int = 2, factor: float = 1.0
    ) -> None:
        self.steps, self.optimizer, self.classes, self.factor = steps, optimizer, classes, factor

    def __call__(self, session: Session) -> None:
        net = session.model(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, self.classes)))
        if session._spec.init_from is None:
            for weight in net.parameters():  # the members are threads, which share their generator
                nn.init.constant_(weight, 0.1)
        session.optimizer(self.optimizer(net))
        rows = TensorDataset(torch.ones(16 * self.steps, 5), torch.ones(16 * self.steps, dtype=torch.long))
        for x, y in session.batches(rows):
            session.step(F.cross_entropy(net(x), y))
        if self.factor != 1.0:
            with torch.no_grad():
                net[1].weight *= self.factor


def newest(place: Path) -> str:
    """The URI of the newest checkpoint."""
    folder = Folder(str(place))
    return folder.place_of(folder.names()[0])


def state_at(uri: str) -> dict[str, Any]:
    return joined(checkpoint_at(uri).states)


def digest_of(state: dict[str, Any]) -> str:
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    net.load_state_dict(state["models"][0])
    return weights_sha256(net)


@pytest.mark.parametrize("mode", MODES)
def test_the_final_state_is_saved_in_each_mode_whatever_the_interval(mode: str, tmp_path: Path) -> None:
    """With what the lines behind the last loop made of the weights, and what the optimizer keeps of each."""
    spec = job(MODES[mode], checkpoint=SELDOM, workers=GROUP)
    train = Train(factor=0.5)
    play = ThreadedCast(spec, train, artifacts=tmp_path / "1", checkpoints=str(tmp_path / "saved")).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    (name,) = Folder(str(tmp_path / "saved")).names()
    assert name.endswith("-end")
    state = state_at(newest(tmp_path / "saved"))
    assert digest_of(state) == play.digest
    (optimizer,) = state["optimizers"]
    assert [len(kept["momentum_buffer"]) for _, kept in sorted(optimizer["state"].items())] == [4, 4, 2, 2]
    assert state["names"] == [["0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias"]]


@pytest.mark.parametrize("mode", ["ring", "servers", "local_sgd"])
def test_an_attempt_behind_it_runs_the_last_lines_on_what_they_ran_on_at_first(
    mode: str, tmp_path: Path
) -> None:
    spec, train = job(MODES[mode], checkpoint=SELDOM, workers=GROUP), Train(factor=0.5)
    place = str(tmp_path / "saved")
    first = ThreadedCast(spec, train, artifacts=tmp_path / "1", checkpoints=place).play()
    again = ThreadedCast(spec, train, artifacts=tmp_path / "2", checkpoints=place, attempt=2).play()
    assert again.outcome == "succeeded", (again.reason, again.message)
    assert [told["step"] for told in again.reported("checkpoint.restored")] == [STEPS]
    assert again.digest == first.digest


def test_it_takes_the_place_of_no_checkpoint_of_the_last_step_and_counts_before_it(tmp_path: Path) -> None:
    """Both are of one generation: lines behind the last loop may have changed the weights since."""
    folder = Folder(str(tmp_path / "saved"))
    step, end = (CheckpointPosition(6, 6, attempt=1, generation=1, final=final) for final in (False, True))
    for position in (end, step):
        pieces = Snapshot({"models": []}, CheckpointPart()).write(folder, position.name)
        folder.commit(position.name, Manifest(position, tuple(pieces), {}))
    assert folder.names() == [end.name, step.name]
    assert [folder.manifest(name).position for name in folder.names()] == [end, step]
    assert "final" not in (tmp_path / "saved" / step.name / "manifest.json").read_text()


def test_what_it_overtook_is_removed_with_it_for_nobody_writes_any_more(tmp_path: Path) -> None:
    """A checkpoint of the last step whose parts came with those of the end is never made."""
    folder = Folder(str(tmp_path))
    committer = Committer(folder, keep=3, spec={})
    for position in (
        CheckpointPosition(4, 4, attempt=1, generation=1),
        CheckpointPosition(6, 6, attempt=1, generation=1),
        CheckpointPosition(6, 7, attempt=1, generation=1, final=True),
    ):
        pieces = tuple(Snapshot({"models": []}, CheckpointPart()).write(folder, position.name))
        committer.add(SavedPart(position, 0, 1, pieces, 0.0))
        if position.step == 4:
            committer.settle(4)
    committed = committer.settle(6)
    assert committed is not None
    assert committed.removed == ("step-000000000006-a1-g1",)
    assert folder.names() == ["step-000000000006-a1-g1-end", "step-000000000004-a1-g1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(folder.names())


def test_a_job_without_checkpoints_has_none_of_its_end(tmp_path: Path) -> None:
    spec = job("ring", checkpoint={"every_steps": None})
    play = ThreadedCast(spec, Train(), artifacts=tmp_path / "1", checkpoints=str(tmp_path / "saved")).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert Folder(str(tmp_path / "saved")).names() == []


def test_the_others_save_it_where_one_is_lost_before_it_has_told_of_its_part(tmp_path: Path) -> None:
    spec, place = job("ring", checkpoint=SELDOM), tmp_path / "saved"
    faults = FaultPlan().kill("w1", at_step=ANY, phase="handing over")
    play = ThreadedCast(spec, Train(), faults, tmp_path / "1", checkpoints=str(place)).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.worlds == [2, 1]
    assert digest_of(state_at(newest(place))) == play.digest


@pytest.mark.parametrize(
    "sync", [SERVERS | {"servers": 2}, "parameter_server"], ids=["one of two", "the one"]
)
def test_what_a_lost_server_took_along_makes_no_checkpoint_of_the_end(sync: Any, tmp_path: Path) -> None:
    spec, place = job(sync, checkpoint=SELDOM, workers=GROUP), tmp_path / "saved"
    faults = FaultPlan().kill("w1" if sync == "parameter_server" else "s1", at_step=ANY, phase="handing over")
    play = ThreadedCast(spec, Train(), faults, tmp_path / "1", checkpoints=str(place)).play()
    for name in Folder(str(place)).names():
        (optimizer,) = state_at(str(place / name))["optimizers"]
        assert len(optimizer["state"]) == 4, (name, play.outcome)


def test_a_job_that_ends_without_memory_for_one_more_copy_succeeds_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(room: SnapshotMemory, size_bytes: int) -> torch.Tensor:
        raise RuntimeError(f"{size_bytes} bytes are too many")

    monkeypatch.setattr(SnapshotMemory, "take", none)
    spec = job("ring", checkpoint=SELDOM)
    play = ThreadedCast(spec, Train(), artifacts=tmp_path / "1", checkpoints=str(tmp_path / "saved")).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert "no memory for the copy" in play.reported("checkpoint.failed")[0]["why"]
