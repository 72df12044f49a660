"""A file system that hangs does not hold training up."""

import os
import threading
from pathlib import Path
from typing import Any

import torch

from ringleader.bench.harness import Nowhere
from ringleader.checkpoint.manifest import Position, Saved
from ringleader.checkpoint.parts import Part
from ringleader.spec import JobSpec
from ringleader.train.saving import Saver

HANG_GUARD_S = 30.0
SPEC = JobSpec.parse({"name": "saves", "entrypoint": "a:b", "checkpoint": {"every_steps": 1}})


class Heard(Nowhere):
    """Keeps what the saver tells."""

    def __init__(self) -> None:
        self.failed: list[tuple[int, str]] = []
        self.steps: list[int] = []
        self.news = threading.Event()

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        assert kind == "checkpoint.failed"
        self.failed.append((data["step"], data["why"]))

    def saved(self, saved: Saved) -> None:
        self.steps.append(saved.position.step)
        self.news.set()


def at(step: int) -> Position:
    return Position(step, step, attempt=1, generation=1)


def hanging(place: Path, step: int) -> Path:
    """Whoever writes this checkpoint's skeleton waits until somebody reads it."""
    path = place / at(step).name / Part().skeleton
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
    saver = Saver(SPEC, str(tmp_path), heard, patience_s=0.05)
    pipe = hanging(tmp_path, 1)
    for step in (1, 2, 3):
        saver.save(state, Part(), at(step))
    assert [step for step, _ in heard.failed] == [2, 3]
    assert "not written within 0.05 s" in heard.failed[0][1]
    assert not saver.written()
    read_to_its_end(pipe)
    assert heard.news.wait(HANG_GUARD_S)
    assert saver._idle.wait(HANG_GUARD_S)
    saver.save(state, Part(), at(4))
    saver.close()
    assert heard.steps == [1, 4]


def test_the_end_of_a_run_does_not_wait_for_ever_for_its_last_checkpoint(tmp_path: Path) -> None:
    saver = Saver(SPEC, str(tmp_path), Heard(), patience_s=0.05)
    pipe = hanging(tmp_path, 1)
    saver.save({"weight": torch.ones(4)}, Part(), at(1))
    closing = threading.Thread(target=saver.close)
    closing.start()
    closing.join(HANG_GUARD_S)
    assert not closing.is_alive()
    read_to_its_end(pipe)
