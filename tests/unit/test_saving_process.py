"""The process that writes checkpoints: what it survives, what it rests for, and that nobody waits for it in vain."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from test_saving import HANG_GUARD_S, SPEC, Heard, at, at_once  # noqa: F401 - nobody waits before the first byte

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import Manifest
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.snapshot import Snapshot, SnapshotMemory, read
from ringleader.checkpoint.writer import HURRY, LEAST_URGENT, MOST_REST_S, RESTS, Line, Writer, _Rest
from ringleader.train.generation.saving.saver import CheckpointSaver


class Told:
    """A line to the process that writes which says when something was sent."""

    def __init__(self, line: Line) -> None:
        self.sent = threading.Event()
        self._line = line

    def send(self, word: object) -> None:
        self._line.send(word)
        self.sent.set()

    def recv(self) -> object:
        return self._line.recv()

    def close(self) -> None:
        self._line.close()


def process_of(saver: CheckpointSaver) -> int:
    """Of whoever writes, which has been asked to before."""
    process = saver._writer._process
    assert process is not None
    return process.pid


def saved_while_stopped(
    saver: CheckpointSaver, state: dict[str, Any], step: int, meanwhile: Callable[[int], None]
) -> None:
    """Something happens between the copy and the first byte of the file."""
    pid, line = process_of(saver), saver._writer._line
    assert line is not None
    told = Told(line)
    saver._writer._line = cast(Line, told)
    os.kill(pid, signal.SIGSTOP)
    saver.save(state, CheckpointPart(), at(step))
    assert told.sent.wait(HANG_GUARD_S)
    meanwhile(pid)
    assert saver._idle.wait(HANG_GUARD_S)


def test_a_checkpoint_holds_its_step_although_training_goes_on_before_it_is_written(tmp_path: Path) -> None:
    heard, weight = Heard(), torch.arange(1000.0)
    state = {"models": [{"weight": weight}], "optimizers": [], "rest": {"step": 2}}
    saver = CheckpointSaver(SPEC, str(tmp_path), heard)
    saver.save(state, CheckpointPart(), at(1))
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
    saver = CheckpointSaver(SPEC, str(tmp_path), heard)
    saver.save(state, CheckpointPart(), at(1))
    assert saver.written()

    def end(pid: int) -> None:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)

    saved_while_stopped(saver, state, 2, end)
    saver.close()
    assert (heard.steps, heard.failed) == ([1, 2], [])


def test_where_the_process_that_writes_is_killed_the_next_checkpoint_has_another(tmp_path: Path) -> None:
    heard, state = Heard(), {"weight": torch.ones(4)}
    saver = CheckpointSaver(SPEC, str(tmp_path), heard)
    saver.save(state, CheckpointPart(), at(1))
    assert saver.written()
    saved_while_stopped(saver, state, 2, lambda pid: os.kill(pid, signal.SIGKILL))
    assert heard.failed == [(2, "the writing process ended with -9")]
    saver.save(state, CheckpointPart(), at(3))
    assert saver.written()
    last = process_of(saver)
    saver.close()
    assert heard.steps == [1, 3]
    assert not Path(f"/proc/{last}").exists()


def test_where_the_process_that_writes_stays_stopped_the_next_checkpoint_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is told more than a line holds."""
    monkeypatch.setattr("ringleader.checkpoint.writer.LOOK_S", 0.05)
    heard, state = Heard(), {"weight": torch.ones(4), "kept": bytes(4 << 20)}
    saver = CheckpointSaver(SPEC, str(tmp_path), heard)
    saver.save(state, CheckpointPart(), at(1))
    assert saver.written()
    os.kill(process_of(saver), signal.SIGSTOP)
    saver.save(state, CheckpointPart(), at(2))
    assert saver._idle.wait(HANG_GUARD_S)
    assert heard.failed == [(2, "the writing process ended with -9")]
    saver.save(state, CheckpointPart(), at(3))
    assert saver.written()
    saver.close()
    assert heard.steps == [1, 3]


def test_the_process_that_writes_is_the_least_urgent_and_who_orders_is_as_urgent_as_training(
    tmp_path: Path,
) -> None:
    saver = CheckpointSaver(SPEC, str(tmp_path), Heard())
    saver.save({"weight": torch.ones(4)}, CheckpointPart(), at(1))
    assert saver.written()
    assert saver._thread is not None
    orders, writes = saver._thread.native_id, process_of(saver)
    assert orders is not None
    assert os.getpriority(os.PRIO_PROCESS, orders) == os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, writes) == LEAST_URGENT
    saver.close()


def test_a_child_that_user_code_forked_does_not_keep_the_process_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringleader.checkpoint.writer.PATIENCE_S", HANG_GUARD_S)
    saver = CheckpointSaver(SPEC, str(tmp_path), Heard())
    saver.save({"weight": torch.ones(4)}, CheckpointPart(), at(1))
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
    saver = CheckpointSaver(SPEC, str(tmp_path), heard)
    saver.save({"weight": torch.ones(4)}, CheckpointPart(), at(1))
    saver.close()
    assert heard.steps == [1]
    assert saver._writer._process is None


def test_memory_and_process_are_ready_before_the_first_copy(tmp_path: Path) -> None:
    heard, state = Heard(), {"weight": torch.ones(1 << 20)}
    saver = CheckpointSaver(SPEC, str(tmp_path), heard)
    saver.expect(state, CheckpointPart())
    assert saver.written()
    ready, process = saver._room._memory.data_ptr(), process_of(saver)
    saver.save(state, CheckpointPart(), at(1))
    assert saver.written()
    assert (saver._room._memory.data_ptr(), process_of(saver)) == (ready, process)
    saver.close()
    assert heard.steps == [1]


class Quiet:
    """A line on which something comes with the n-th look; counts the looks."""

    def __init__(self, comes: int) -> None:
        self.looks = 0
        self._comes = comes

    def poll(self, timeout_s: float) -> bool:
        assert timeout_s > 0
        self.looks += 1
        return self.looks == self._comes


def test_the_process_that_writes_rests_until_somebody_waits_for_it() -> None:
    line = Quiet(comes=3)
    rest = _Rest(cast(Line, line), MOST_REST_S)
    for _ in range(10):
        rest._seen_s -= 1e-6  # as if it had computed
        rest()
    assert line.looks == 3


def test_all_rests_together_are_bounded() -> None:
    line = Quiet(comes=-1)
    rest = _Rest(cast(Line, line), MOST_REST_S)
    for _ in range(10):
        rest._seen_s -= MOST_REST_S / RESTS / 3
        rest()
    assert 1 <= line.looks <= 3


def test_haste_that_comes_too_late_or_too_early_is_no_order(tmp_path: Path) -> None:
    writer = Writer()
    writer.prepare()
    for step in (1, 2):
        writer.hurry()
        snapshot = Snapshot({"weight": torch.ones(4)}, CheckpointPart(), SnapshotMemory())
        order = snapshot.order(str(tmp_path), at(step).name)
        assert order is not None
        assert [piece.name for piece in writer.write(order)] == [
            order.small[0][0],
            order.small[1][0],
            order.large,
        ]
        assert writer._line is not None
        writer._line.send(HURRY)
    writer.close()


def test_nobody_who_looks_at_each_step_waits_for_a_process_that_hangs() -> None:
    writer = Writer()
    here, there = Pipe()
    writer._line = here
    words = threading.Thread(target=lambda: [writer.hurry() for _ in range(20_000)], daemon=True)
    words.start()
    words.join(HANG_GUARD_S)
    assert not words.is_alive()
    here.close()
    assert there.recv() == HURRY
    with pytest.raises(EOFError):
        there.recv()
    there.close()


def test_nobody_who_hurries_waits_for_an_order_that_cannot_be_sent() -> None:
    writer = Writer()
    here, there = Pipe()
    writer._line = here
    with writer._sends:  # an order is on its way
        writer.hurry()
    assert not there.poll(0)
    assert writer._haste.is_set()
    here.close()
    there.close()
