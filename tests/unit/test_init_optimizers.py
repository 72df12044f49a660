"""A job begins with the optimizers' states of another one: by name, shape and kind, and with nothing else of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_cadence import MODES, STEPS, job
from test_final_checkpoint import GROUP, SELDOM, Optimizers, Train, adam, momentum, newest
from threaded_cast import ThreadedCast
from torch import nn

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import BeginningUnreadable, CheckpointPosition, Manifest
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.snapshot import Snapshot
from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec
from ringleader.train.local import run_local


@pytest.mark.parametrize("mode", ["ring", "servers", "copies", "clocks", "local_sgd"])
@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_a_job_that_begins_with_it_makes_the_steps_that_a_longer_one_makes(
    optimizer: Optimizers, mode: str, tmp_path: Path
) -> None:
    spec, place = job(MODES[mode], checkpoint=SELDOM, workers=GROUP), tmp_path / "saved"
    first = ThreadedCast(
        spec, Train(STEPS, optimizer), artifacts=tmp_path / "1", checkpoints=str(place)
    ).play()
    assert first.outcome == "succeeded", (first.reason, first.message)
    more = {"init_from": newest(place), "init_optimizers": True}
    begun = job(MODES[mode], checkpoint=SELDOM, workers=GROUP, **more)
    second = ThreadedCast(begun, Train(STEPS, optimizer), artifacts=tmp_path / "2").play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    (told,) = second.reported("weights.loaded")
    assert (told["taken"], told["optimizers"]) == (4, 4)
    assert told["not_taken"].startswith("schedules")
    whole, _ = run_local(spec, Train(2 * STEPS, optimizer), tmp_path / "3")
    assert second.digest == whole.digest


def test_without_being_asked_a_job_begins_with_weights_alone(tmp_path: Path) -> None:
    spec, place = job("ring", checkpoint=SELDOM), tmp_path / "saved"
    ThreadedCast(spec, Train(), artifacts=tmp_path / "1", checkpoints=str(place)).play()
    begun = job("ring", init_from=newest(place))
    plain, recorded = run_local(begun, Train(), tmp_path / "2")
    (told,) = [data for kind, data in recorded.events if kind == "weights.loaded"]
    assert "optimizers" not in told
    whole, _ = run_local(spec, Train(2 * STEPS), tmp_path / "3")
    assert plain.digest != whole.digest


@pytest.fixture
def saved(tmp_path: Path) -> str:
    spec = job("ring", checkpoint=SELDOM)
    play = ThreadedCast(spec, Train(), artifacts=tmp_path / "1", checkpoints=str(tmp_path / "saved")).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    return newest(tmp_path / "saved")


@pytest.mark.parametrize(
    ("train", "taken"),
    [(Train(classes=3), 2), (Train(optimizer=adam), 0)],
    ids=["another head", "another kind"],
)
def test_states_that_fit_by_name_shape_and_kind_are_taken_and_no_others(
    train: Train, taken: int, saved: str, tmp_path: Path
) -> None:
    begun = job("ring", init_from=saved, init_optimizers=True)
    _, recorded = run_local(begun, train, tmp_path / "2")
    events = recorded.events
    (told,) = [data for kind, data in events if kind == "weights.loaded"]
    assert told["optimizers"] == taken
    warned = [data for kind, data in events if kind == "warning" and data["about"] == "init_optimizers"]
    assert bool(warned) is (taken == 0)


def test_the_settings_of_an_optimizer_stay_the_job_s_own(saved: str, tmp_path: Path) -> None:
    rates: list[float] = []

    def slow(net: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.003, momentum=0.9)
        optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
        return optimizer

    run_local(job("ring", init_from=saved, init_optimizers=True), Train(optimizer=slow), tmp_path / "2")
    assert set(rates) == {0.003}


def test_a_checkpoint_that_does_not_say_whose_states_it_holds_is_refused(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    folder, position = Folder(str(tmp_path / "old")), CheckpointPosition(3, 3, attempt=1, generation=1)
    state = {"models": [net.state_dict()], "optimizers": [momentum(net).state_dict()]}
    pieces = Snapshot(state, CheckpointPart()).write(folder, position.name)
    folder.commit(position.name, Manifest(position, tuple(pieces), {}))
    begun = job("ring", init_from=folder.place_of(position.name), init_optimizers=True)
    with pytest.raises(BeginningUnreadable, match="did not write down which optimizer's state is whose"):
        run_local(begun, Train(), tmp_path / "2")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "there is no init_from"),
        ({"init_from": "/a/weights.safetensors"}, "a weights file holds no states"),
    ],
)
def test_states_of_nothing_are_refused_in_the_job_file(more: dict[str, Any], why: str) -> None:
    given = {"name": "x", "entrypoint": "a:b", "init_optimizers": True} | more
    with pytest.raises(SpecInvalid, match=why):
        JobSpec.parse(given)
