"""Pauses: an attempt ends once its checkpoint is written, however long that takes and however often it fails."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from test_saving import SPEC, Heard, at, at_once, read_to_its_end  # noqa: F401 - nobody waits before it

from ringleader.checkpoint.manifest import CheckpointPosition
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.elastic import ParkReport
from ringleader.elastic.state import PAUSE
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.generation.saving.saver import CheckpointSaver
from ringleader.train.local import SingleMember
from ringleader.train.ports import Seat
from ringleader.train.run import run

PAUSED = JobSpec.parse(
    {
        "name": "pauses",
        "entrypoint": "a:b",
        "workers": {"min": 1, "max": 1},
        "batch": {"global_size": 1, "logical_shards": 1},
        "checkpoint": {"every_steps": None},
    }
)


class Pausing(SingleMember):
    """Pauses behind the first step; `interrupted` is asked while there is something to wait for."""

    def __init__(self, looks: Callable[[], None]) -> None:
        super().__init__(1)
        self.looks = looks
        self.paused_with: list[int] = []
        self.pending = True
        self._heard: Heard | None = None

    def next_seat(self, parked: ParkReport) -> Seat:
        seat = super().next_seat(parked)
        self.pending = parked.generation != 1
        if parked.generation == 1:
            return replace(seat, plan=replace(seat.plan, cause=PAUSE))
        if parked.generation == 2 and self._heard is not None:
            self.paused_with = list(self._heard.steps)
        return seat

    def listen(self, heard: Heard) -> None:
        self._heard = heard

    def plan_pending(self) -> bool:
        return self.pending

    def interrupted(self) -> bool:
        self.looks()
        return False


def test_a_pause_waits_for_its_checkpoint_however_long_it_takes_to_write(tmp_path: Path) -> None:
    """Longer than training waits for one while it goes on."""
    place = tmp_path / "saved"
    path = place / CheckpointPosition(1, 1, attempt=1, generation=2).name / CheckpointPart().skeleton
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    looked = 0

    def looks() -> None:
        nonlocal looked
        looked += 1
        if looked == 2:
            read_to_its_end(path)

    def train(session: Session) -> None:
        session._member.saver._patience_s = 0.01
        net = session.model(torch.nn.Linear(1, 1))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for batch in session.batches([{"x": torch.ones(1)}] * 3):
            session.step(net(batch["x"]).mean())

    heard, pausing = Heard(), Pausing(looks)
    pausing.listen(heard)
    run(
        spec=PAUSED,
        function=train,
        coordinator=pausing,
        sink=heard,
        server=False,
        artifacts=tmp_path,
        checkpoints=str(place),
    )
    assert pausing.paused_with == [1]
    assert looked >= 2


def train_until(pausing: Pausing, heard: Heard, folder: Path) -> None:
    """Three steps, saved in the folder's `saved` by a pause."""

    def train(session: Session) -> None:
        net = session.model(torch.nn.Linear(1, 1))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for batch in session.batches([{"x": torch.ones(1)}] * 3):
            session.step(net(batch["x"]).mean())

    run(
        spec=PAUSED,
        function=train,
        coordinator=pausing,
        sink=heard,
        server=False,
        artifacts=folder,
        checkpoints=str(folder / "saved"),
    )


def test_a_pause_saves_again_what_could_not_be_written(tmp_path: Path) -> None:
    """Nobody trains meanwhile; what a pause does not save is lost."""
    place = tmp_path / "saved"
    place.write_text("no folder can be made here")
    heard = Heard()
    pausing = Pausing(lambda: place.unlink() if heard.failed and place.is_file() else None)
    pausing.listen(heard)
    train_until(pausing, heard, tmp_path)
    assert {step for step, _ in heard.failed} == {1}
    assert pausing.paused_with == [1]


def test_nobody_tries_again_to_save_what_a_generation_that_was_given_up_holds(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("no folder can be made here")
    heard = Heard()
    saver = CheckpointSaver(SPEC, str(tmp_path / "saved"), heard)
    given_up = iter([False, True])
    state = {"weight": torch.ones(4)}
    write = partial(saver.save, state, CheckpointPart(), at(1))
    saver.insist(write, lambda: bool(heard.failed) and next(given_up), cancelled=lambda: False)
    assert [step for step, _ in heard.failed] == [1]
    saver.close()


def test_a_pause_that_cannot_be_saved_is_over_once_the_job_is_cancelled(tmp_path: Path) -> None:
    place = tmp_path / "saved"
    place.write_text("no folder can be made here")
    heard = Heard()

    def cancel() -> None:
        pausing.pending = pausing.pending or bool(heard.failed)
        if len(heard.failed) > 1:
            place.unlink(missing_ok=True)

    pausing = Pausing(cancel)
    train_until(pausing, heard, tmp_path)
    assert [step for step, _ in heard.failed] == [1]
