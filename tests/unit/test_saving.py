"""Training goes on while a process writes what was copied; neither that process nor a file system holds it up."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ringleader.bench.harness import Nowhere
from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import Manifest, Position, Saved
from ringleader.checkpoint.parts import Part
from ringleader.checkpoint.snapshot import read
from ringleader.checkpoint.writer import LEAST_URGENT
from ringleader.spec import JobSpec
from ringleader.train.saving import Saver

HANG_GUARD_S = 30.0
SPEC = JobSpec.parse({"name": "saves", "entrypoint": "a:b", "checkpoint": {"every_steps": 1}})


class Heard(Nowhere):
    """Keeps what the saver tells."""

    def __init__(self) -> None:
        self.failed: list[tuple[int, str]] = []
        self.steps: list[int] = []
        self.parts: dict[int, Saved] = {}
        self.news = threading.Event()

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        assert kind == "checkpoint.failed"
        self.failed.append((data["step"], data["why"]))

    def saved(self, saved: Saved) -> None:
        self.steps.append(saved.position.step)
        self.parts[saved.position.step] = saved
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
    assert saver._idle.wait(HANG_GUARD_S)
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


def process_of(saver: Saver) -> int:
    """Of whoever writes, which has been asked to before."""
    process = saver._writer._process
    assert process is not None
    return process.pid


def saved_while_stopped(
    saver: Saver, state: dict[str, Any], step: int, meanwhile: Callable[[int], None]
) -> None:
    """Something happens between the copy and the first byte of the file."""
    pid = process_of(saver)
    os.kill(pid, signal.SIGSTOP)
    saver.save(state, Part(), at(step))
    meanwhile(pid)
    assert saver._idle.wait(HANG_GUARD_S)


def test_a_checkpoint_holds_its_step_although_training_goes_on_before_it_is_written(tmp_path: Path) -> None:
    heard, weight = Heard(), torch.arange(1000.0)
    state = {"models": [{"weight": weight}], "optimizers": [], "rest": {"step": 2}}
    saver = Saver(SPEC, str(tmp_path), heard)
    saver.save(state, Part(), at(1))
    assert saver.written()

    def train(pid: int) -> None:
        weight.add_(1.0)
        state["rest"]["step"] = 3
        os.kill(pid, signal.SIGCONT)

    saved_while_stopped(saver, state, 2, train)
    saver.close()
    folder = Folder(str(tmp_path))
    folder.commit(at(2).name, Manifest(at(2), heard.parts[2].pieces, {}))
    (found,) = read(folder, at(2).name).states
    assert torch.equal(found["models"][0]["weight"], torch.arange(1000.0))
    assert found["rest"] == {"step": 2}


def test_sigterm_to_the_whole_group_does_not_cost_a_checkpoint(tmp_path: Path) -> None:
    heard, state = Heard(), {"weight": torch.ones(4)}
    saver = Saver(SPEC, str(tmp_path), heard)
    saver.save(state, Part(), at(1))
    assert saver.written()

    def end(pid: int) -> None:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)

    saved_while_stopped(saver, state, 2, end)
    saver.close()
    assert (heard.steps, heard.failed) == ([1, 2], [])


def test_where_the_process_that_writes_is_killed_the_next_checkpoint_has_another(tmp_path: Path) -> None:
    heard, state = Heard(), {"weight": torch.ones(4)}
    saver = Saver(SPEC, str(tmp_path), heard)
    saver.save(state, Part(), at(1))
    assert saver.written()
    saved_while_stopped(saver, state, 2, lambda pid: os.kill(pid, signal.SIGKILL))
    assert heard.failed == [(2, "the process that writes ended with -9")]
    saver.save(state, Part(), at(3))
    assert saver.written()
    last = process_of(saver)
    saver.close()
    assert heard.steps == [1, 3]
    assert not Path(f"/proc/{last}").exists()


def test_the_process_that_writes_is_the_least_urgent_and_who_orders_is_as_urgent_as_training(
    tmp_path: Path,
) -> None:
    saver = Saver(SPEC, str(tmp_path), Heard())
    saver.save({"weight": torch.ones(4)}, Part(), at(1))
    assert saver.written()
    assert saver._thread is not None
    orders, writes = saver._thread.native_id, process_of(saver)
    assert orders is not None
    assert os.getpriority(os.PRIO_PROCESS, orders) == os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, writes) == LEAST_URGENT
    saver.close()


def test_a_child_that_user_code_forked_does_not_keep_the_process_that_writes(tmp_path: Path) -> None:
    saver = Saver(SPEC, str(tmp_path), Heard())
    saver.save({"weight": torch.ones(4)}, Part(), at(1))
    assert saver.written()
    process, line = saver._writer._process, saver._writer._line
    assert process is not None
    assert line is not None
    with socket.socket(fileno=os.dup(line.fileno())):  # as a forked child holds it
        saver.close()
    assert process.returncode == 0


def test_what_no_process_can_map_is_written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringleader.checkpoint.snapshot.SHARED", False)
    heard = Heard()
    saver = Saver(SPEC, str(tmp_path), heard)
    saver.save({"weight": torch.ones(4)}, Part(), at(1))
    saver.close()
    assert heard.steps == [1]
    assert saver._writer._process is None
