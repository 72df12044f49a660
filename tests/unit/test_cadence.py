"""Checkpoints by time: no more than so much work is at risk, all members save the same step, and copies cost little."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from threaded_cast import ThreadedCast
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from waiting import wait_for

from ringleader import Session
from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec
from ringleader.train.generation.saving.cadence import (
    SHARE,
    WRITING_SHARE,
    CheckpointCadence,
    CheckpointVote,
)
from ringleader.train.local import run_local

torch.set_num_threads(1)
EVERY_S = 1
STEPS = 6
SERVERS = {"inter_node": "parameter_server", "intra_node": "parameter_server"}
MODES: dict[str, Any] = {
    "ring": "ring",
    "servers": SERVERS | {"servers": 2},
    "backups": SERVERS | {"server_backups": 1},
    "copies": {"inter_node": "ring", "intra_node": "parameter_server", "servers": 1},
    "clocks": SERVERS | {"consistency": "ssp", "staleness": 0},
    "async": SERVERS | {"consistency": "async"},
    "local_sgd": {"inter_node": "local_sgd", "intra_node": "local_sgd", "inner_steps": 1},
    "token_ring": "token_ring",
    "node groups": {"inter_node": "token_ring", "intra_node": "ring"},
}


def job(sync: Any, **changes: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "cadence",
            "entrypoint": "cadence:train",
            "workers": {"min": 1, "max": 2},
            "batch": {"global_size": 16, "logical_shards": 2},
            "sync": sync,
            "checkpoint": {"every_steps": None, "every_s": EVERY_S, "keep": 100},
        }
        | changes
    )


class Train:
    """A loop whose turns from the third on take as long as work may be at risk, until some is saved: a member may still
    be busy with the files of what it expects to save."""

    def __init__(self, place: Path | None = None) -> None:
        self.place = place

    def __call__(self, session: Session) -> None:
        generator = torch.Generator().manual_seed(0)
        given = torch.randn(STEPS * 16, 5, generator=generator)
        net = session.model(nn.Linear(5, 2))
        for weight in net.parameters():  # the members are threads, which share their generator
            nn.init.constant_(weight, 0.1)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        rows = TensorDataset(given, (given.sum(dim=1) > 0).long())
        for turn, (x, y) in enumerate(session.batches(rows)):
            if self.place is not None and turn >= 2:
                self.wait(self.place)
            session.step(F.cross_entropy(net(x), y))

    def wait(self, place: Path) -> None:
        until = time.monotonic() + 1.2 * EVERY_S
        wait_for("work at risk", lambda: saved(place) or time.monotonic() > until)


def saved(place: Path) -> list[int]:
    """The steps of whole checkpoints, those with a manifest, but for that of the job's end."""
    names = (found.parent.name for found in place.glob("*/manifest.json"))
    return sorted(int(name.split("-")[1]) for name in names if not name.endswith("-end"))


@pytest.mark.parametrize("mode", MODES)
def test_all_members_save_the_same_step_before_more_work_is_at_risk(mode: str, tmp_path: Path) -> None:
    spec, place = job(MODES[mode]), tmp_path / "saved"
    play = ThreadedCast(spec, Train(place), artifacts=tmp_path / "1", checkpoints=str(place)).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    steps = saved(place)
    assert steps, "whole ones only: a part that somebody did not save would be missing"
    assert all(2 <= step <= STEPS for step in steps)
    assert not play.reported("checkpoint.failed")
    for end in place.glob("*-end"):
        shutil.rmtree(end)
    again = ThreadedCast(spec, Train(), artifacts=tmp_path / "2", checkpoints=str(place), attempt=2).play()
    assert again.outcome == "succeeded", (again.reason, again.message)
    assert [told["step"] for told in again.reported("checkpoint.restored")] == [steps[-1]]
    if spec.sync.same_bits:
        assert again.digest == play.digest == run_local(spec, Train(), tmp_path / "3")[0].digest


@pytest.mark.parametrize("mode", MODES)
def test_a_job_that_is_quicker_than_that_saves_nothing_by_time(mode: str, tmp_path: Path) -> None:
    quick = job(MODES[mode], checkpoint={"every_steps": None, "every_s": 3600})
    play = ThreadedCast(quick, Train(), artifacts=tmp_path, checkpoints=str(tmp_path / "saved")).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert saved(tmp_path / "saved") == []


def test_a_snapshot_is_taken_at_once_when_the_state_has_a_single_holder_left(tmp_path: Path) -> None:
    """Before it makes another step; who waits for nobody else has lost nothing then."""
    alone = job("ring", checkpoint={"every_steps": None, "every_s": 3600})
    faults = FaultPlan().kill("w1", at_step=3).hold("w0", at_step=5, for_generation=3)
    play = ThreadedCast(alone, Train(), faults, tmp_path / "1", checkpoints=str(tmp_path / "saved")).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.worlds[1] == 1
    assert len(saved(tmp_path / "saved")) == 1
    assert saved(tmp_path / "saved")[0] in (2, 3)


def test_with_neither_steps_nor_seconds_nothing_is_saved_after_a_loss(tmp_path: Path) -> None:
    never = job("ring", checkpoint={"every_steps": None})
    faults = FaultPlan().kill("w1", at_step=3).hold("w0", at_step=5, for_generation=3)
    play = ThreadedCast(never, Train(), faults, tmp_path / "1", checkpoints=str(tmp_path / "saved")).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert saved(tmp_path / "saved") == []


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_copy_pauses_training_for_one_part_in_a_hundred_at_most() -> None:
    clock = Clock()
    cadence = CheckpointCadence(None, 30.0, clock)
    wishes = []
    for clock.now in (0.0, 29.0, 30.0):
        wishes.append(cadence.wish(busy=False))
    assert wishes == [CheckpointVote.FOLLOWS, CheckpointVote.FOLLOWS, CheckpointVote.WANTS]
    cadence.copied(10, pause_s=0.9, whole=True)
    for clock.now in (59.0, 30.0 + SHARE * 0.9 - 1, 30.0 + SHARE * 0.9):
        wishes.append(cadence.wish(busy=False))
    assert wishes[3:] == [CheckpointVote.OBJECTS, CheckpointVote.OBJECTS, CheckpointVote.WANTS]
    cadence.copied(20, pause_s=0.0, whole=True)
    cadence.written(took_s=100.0)
    clock.now += WRITING_SHARE * 100.0 - 1
    assert cadence.wish(busy=False) is CheckpointVote.OBJECTS, "files take long to write"
    clock.now += 1
    assert cadence.wish(busy=True) is CheckpointVote.OBJECTS, "they are being written"
    assert cadence.wish(busy=False) is CheckpointVote.WANTS


def test_work_is_at_risk_from_the_first_step_behind_a_copy_on() -> None:
    cadence = CheckpointCadence(None, 30.0, Clock())
    assert cadence.at_risk(1)
    cadence.copied(5, pause_s=0.0, whole=False)
    assert cadence.at_risk(5), "the part of somebody who is lost since may be missing"
    cadence.copied(5, pause_s=0.0, whole=True)
    assert not cadence.at_risk(5)
    assert cadence.at_risk(6)
    assert not CheckpointCadence(500, None, Clock()).at_risk(6)


@pytest.mark.parametrize(
    ("given", "steps", "seconds"),
    [
        ({}, 500, 30.0),
        ({"every_steps": 8}, 8, 30.0),
        ({"every_s": None}, 500, None),
        ({"every_steps": None}, None, None),
        ({"every_steps": None, "every_s": 5}, None, 5.0),
    ],
)
def test_seconds_stand_beside_steps(given: dict[str, Any], steps: int | None, seconds: float | None) -> None:
    spec = job("ring", checkpoint=given)
    assert (spec.checkpoint.every_steps, spec.checkpoint.every_s) == (steps, seconds)
    assert JobSpec.parse(spec.model_dump(mode="json")) == spec, "stored, it says the same"


@pytest.mark.parametrize("seconds", [0, 0.5, -1, "30", float("inf")])
def test_seconds_that_are_none_are_refused_by_name(seconds: Any) -> None:
    with pytest.raises(SpecInvalid, match="every_s"):
        job("ring", checkpoint={"every_s": seconds})
