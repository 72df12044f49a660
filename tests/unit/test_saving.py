"""Training goes on while a process writes what was copied; neither that process nor a file system holds it up."""

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from ringleader.bench.processes.harness import Nowhere
from ringleader.checkpoint.manifest import CheckpointPosition, SavedPart
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.snapshot import Snapshot, SnapshotMemory, size_of
from ringleader.comm.segments import NAME
from ringleader.errors import ExchangeBroken
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.generation.saving.saver import CheckpointSaver
from ringleader.train.local import SingleMember
from ringleader.train.run import run

HANG_GUARD_S = 30.0
SPEC = JobSpec.parse({"name": "saves", "entrypoint": "a:b", "checkpoint": {"every_steps": 1}})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before the first byte."""
    monkeypatch.setattr("ringleader.checkpoint.writer.BREATH_S", 0.0)


class Heard(Nowhere):
    """Keeps what the saver tells."""

    def __init__(self) -> None:
        self.failed: list[tuple[int, str]] = []
        self.steps: list[int] = []
        self.parts: dict[int, SavedPart] = {}
        self.news = threading.Event()

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        assert kind == "checkpoint.failed"
        self.failed.append((data["step"], data["why"]))

    def saved(self, saved: SavedPart) -> None:
        self.steps.append(saved.position.step)
        self.parts[saved.position.step] = saved
        self.news.set()


def segments() -> list[str]:
    """This process's descriptors of memory that others can map."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            if str(descriptor.readlink()).startswith(f"/memfd:{NAME}"):
                found.append(descriptor.name)
    return sorted(found)


def at(step: int) -> CheckpointPosition:
    return CheckpointPosition(step, step, attempt=1, generation=1)


def hanging(place: Path, step: int) -> Path:
    """Whoever writes this checkpoint's skeleton waits until somebody reads it."""
    path = place / at(step).name / CheckpointPart().skeleton
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    return path


def read_to_its_end(pipe: Path) -> None:
    reader = threading.Thread(target=pipe.read_bytes)
    reader.start()
    reader.join(HANG_GUARD_S)
    assert not reader.is_alive()


def test_a_checkpoint_is_left_out_while_the_one_before_is_not_written(tmp_path: Path) -> None:
    heard, state = Heard(), {"weight": torch.ones(4)}
    saver = CheckpointSaver(SPEC, str(tmp_path), heard, patience_s=0.05)
    pipe = hanging(tmp_path, 1)
    for step in (1, 2, 3):
        saver.save(state, CheckpointPart(), at(step))
    assert [step for step, _ in heard.failed] == [2, 3]
    assert "took more than 0.05 s" in heard.failed[0][1]
    assert not saver.written()
    read_to_its_end(pipe)
    assert heard.news.wait(HANG_GUARD_S)
    assert saver._idle.wait(HANG_GUARD_S)
    saver.save(state, CheckpointPart(), at(4))
    assert saver._idle.wait(HANG_GUARD_S)
    saver.close()
    assert heard.steps == [1, 4]


def test_the_end_of_a_run_does_not_wait_for_ever_for_its_last_checkpoint(tmp_path: Path) -> None:
    saver = CheckpointSaver(SPEC, str(tmp_path), Heard(), patience_s=0.05)
    pipe = hanging(tmp_path, 1)
    saver.save({"weight": torch.ones(4)}, CheckpointPart(), at(1))
    closing = threading.Thread(target=saver.close)
    closing.start()
    closing.join(HANG_GUARD_S)
    assert not closing.is_alive()
    read_to_its_end(pipe)


def test_the_end_of_a_run_frees_the_memory_of_its_copies(tmp_path: Path) -> None:
    before = segments()
    saver = CheckpointSaver(SPEC, str(tmp_path), Heard())
    saver.save({"weight": torch.ones(4)}, CheckpointPart(), at(1))
    assert segments() != before
    saver.close()
    assert segments() == before, "which the saver itself outlives"


def test_what_training_is_spared_keeps_nobody_waiting_nor_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringleader.checkpoint.writer.BREATH_S", 3600.0)
    heard, state = Heard(), {"weight": torch.ones(4)}
    saver = CheckpointSaver(SPEC, str(tmp_path), heard)
    saver.save(state, CheckpointPart(), at(1))
    assert saver.written(), "somebody waits"
    saver.save(state, CheckpointPart(), at(2))
    assert saver._idle.wait(HANG_GUARD_S), "the next one may follow as soon"
    saver.close()
    assert heard.steps == [1, 2]


def test_a_generation_makes_the_memory_ready_once_halfway_to_its_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[tuple[int, CheckpointPart]] = []
    monkeypatch.setattr(
        CheckpointSaver, "expect", lambda _, state, part: expected.append((state["rest"]["step"], part))
    )
    spec = JobSpec.parse(
        {
            "name": "saves",
            "entrypoint": "a:b",
            "workers": {"min": 1, "max": 1},
            "batch": {"global_size": 1, "logical_shards": 1},
            "checkpoint": {"every_steps": 4},
        }
    )

    def train(session: Session) -> None:
        net = session.model(torch.nn.Linear(1, 1))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        for batch in session.batches([{"x": torch.ones(1)}] * 12):
            session.step(net(batch["x"]).mean())

    heard = Heard()
    run(
        spec=spec,
        function=train,
        coordinator=SingleMember(1),
        sink=heard,
        server=False,
        artifacts=tmp_path,
        checkpoints=str(tmp_path / "saved"),
    )
    assert expected == [(2, CheckpointPart())]
    assert heard.steps == [4, 8, 12, 12], "and the end"


def test_nobody_waits_for_a_checkpoint_whose_generation_was_given_up(tmp_path: Path) -> None:
    saver = CheckpointSaver(SPEC, str(tmp_path), Heard())
    pipe = hanging(tmp_path, 1)
    saver.save({"weight": torch.ones(4)}, CheckpointPart(), at(1))
    assert not saver.finish(lambda: True)
    read_to_its_end(pipe)
    assert saver.finish(lambda: False)
    saver.close()


def test_the_room_that_is_expected_is_the_room_that_is_taken() -> None:
    state = {"a": torch.ones(5), "b": torch.ones(7), "c": torch.ones(2, dtype=torch.float64), "d": 1}
    for writers in (1, 2, 3):
        sizes = [
            Snapshot(state, CheckpointPart(writer=n, writers=writers)).size_bytes for n in range(writers)
        ]
        assert sizes == [size_of(state, CheckpointPart(writer=n, writers=writers)) for n in range(writers)]


def test_a_room_that_is_large_enough_stays_where_it_is() -> None:
    room = SnapshotMemory()
    room.prepare(1 << 20)
    memory = room.take(1 << 20)
    memory[0] = 7
    room.prepare(1 << 10)
    assert room.take(1 << 20).data_ptr() == memory.data_ptr()
    assert int(memory[0]) == 7


@pytest.mark.parametrize(
    ("every", "near"), [(1, []), (2, [1, 3, 5, 7, 9]), (5, [3, 4, 8, 9]), (6, [3, 4, 5, 9])]
)
def test_a_checkpoint_is_near_in_the_second_half_of_the_steps_to_it(every: int, near: list[int]) -> None:
    spec = SPEC.model_copy(update={"checkpoint": SPEC.checkpoint.model_copy(update={"every_steps": every})})
    saver = CheckpointSaver(spec, "nowhere", Heard())
    assert [step for step in range(10) if saver.nears(step)] == near
    assert not any(CheckpointSaver(spec, None, Heard()).nears(step) for step in range(10))


def test_who_waits_for_a_checkpoint_at_the_end_can_be_called_away(tmp_path: Path) -> None:
    """The wait is over when the look says so; the checkpoint is still written."""
    heard = Heard()
    saver = CheckpointSaver(SPEC, str(tmp_path), heard)
    pipe = hanging(tmp_path, 1)
    saver.save({"weight": torch.ones(4)}, CheckpointPart(), at(1))

    def look() -> None:
        raise ExchangeBroken(rank=0, phase="finish", bucket=None, why="the generation was given up")

    with pytest.raises(ExchangeBroken):
        saver.written(look)
    read_to_its_end(pipe)
    saver.close()
    assert heard.steps == [1]
