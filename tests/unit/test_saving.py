"""Training goes on while a process writes what was copied; neither that process nor a file system holds it up."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from ringleader.bench.harness import Nowhere
from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import Manifest, Position, Saved
from ringleader.checkpoint.parts import Part
from ringleader.checkpoint.snapshot import Room, Snapshot, read, size_of
from ringleader.checkpoint.writer import HURRY, LEAST_URGENT, MOST_REST_S, RESTS, Line, Writer, _Rest
from ringleader.elastic.state import PAUSE
from ringleader.errors import ExchangeBroken
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import Alone
from ringleader.train.run import run
from ringleader.train.saving import Saver
from ringleader.train.seams import Parked, Seat

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


def process_of(saver: Saver) -> int:
    """Of whoever writes, which has been asked to before."""
    process = saver._writer._process
    assert process is not None
    return process.pid


def saved_while_stopped(
    saver: Saver, state: dict[str, Any], step: int, meanwhile: Callable[[int], None]
) -> None:
    """Something happens between the copy and the first byte of the file."""
    pid, line = process_of(saver), saver._writer._line
    assert line is not None
    told = Told(line)
    saver._writer._line = cast(Line, told)
    os.kill(pid, signal.SIGSTOP)
    saver.save(state, Part(), at(step))
    assert told.sent.wait(HANG_GUARD_S)
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


def test_where_the_process_that_writes_stays_stopped_the_next_checkpoint_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is told more than a line holds."""
    monkeypatch.setattr("ringleader.checkpoint.writer.LOOK_S", 0.05)
    heard, state = Heard(), {"weight": torch.ones(4), "kept": bytes(4 << 20)}
    saver = Saver(SPEC, str(tmp_path), heard)
    saver.save(state, Part(), at(1))
    assert saver.written()
    os.kill(process_of(saver), signal.SIGSTOP)
    saver.save(state, Part(), at(2))
    assert saver._idle.wait(HANG_GUARD_S)
    assert heard.failed == [(2, "the process that writes ended with -9")]
    saver.save(state, Part(), at(3))
    assert saver.written()
    saver.close()
    assert heard.steps == [1, 3]


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


def test_a_child_that_user_code_forked_does_not_keep_the_process_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringleader.checkpoint.writer.PATIENCE_S", HANG_GUARD_S)
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


def test_memory_and_process_are_ready_before_the_first_copy(tmp_path: Path) -> None:
    heard, state = Heard(), {"weight": torch.ones(1 << 20)}
    saver = Saver(SPEC, str(tmp_path), heard)
    saver.expect(state, Part())
    assert saver.written()
    ready, process = saver._room._memory.data_ptr(), process_of(saver)
    saver.save(state, Part(), at(1))
    assert saver.written()
    assert (saver._room._memory.data_ptr(), process_of(saver)) == (ready, process)
    saver.close()
    assert heard.steps == [1]


def test_what_training_is_spared_keeps_nobody_waiting_nor_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringleader.checkpoint.writer.BREATH_S", 3600.0)
    heard, state = Heard(), {"weight": torch.ones(4)}
    saver = Saver(SPEC, str(tmp_path), heard)
    saver.save(state, Part(), at(1))
    assert saver.written(), "somebody waits"
    saver.save(state, Part(), at(2))
    assert saver._idle.wait(HANG_GUARD_S), "the next one may follow as soon"
    saver.close()
    assert heard.steps == [1, 2]


def test_a_generation_makes_the_memory_ready_once_halfway_to_its_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[tuple[int, Part]] = []
    monkeypatch.setattr(
        Saver, "expect", lambda _, state, part: expected.append((state["rest"]["step"], part))
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
        coordinator=Alone(1),
        outlet=heard,
        server=False,
        artifacts=tmp_path,
        checkpoints=str(tmp_path / "saved"),
    )
    assert expected == [(2, Part())]
    assert heard.steps == [4, 8, 12]


PAUSED = JobSpec.parse(
    {
        "name": "pauses",
        "entrypoint": "a:b",
        "workers": {"min": 1, "max": 1},
        "batch": {"global_size": 1, "logical_shards": 1},
        "checkpoint": {"every_steps": None},
    }
)


class Pausing(Alone):
    """Pauses behind the first step; `interrupted` is asked while there is something to wait for."""

    def __init__(self, looks: Callable[[], None]) -> None:
        super().__init__(1)
        self.looks = looks
        self.paused_with: list[int] = []
        self.pending = True
        self._heard: Heard | None = None

    def next_seat(self, parked: Parked) -> Seat:
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
    path = place / Position(1, 1, attempt=1, generation=2).name / Part().skeleton
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    looked = 0

    def looks() -> None:
        nonlocal looked
        looked += 1
        if looked == 2:
            read_to_its_end(path)

    def train(session: Session) -> None:
        session._group.saver._patience_s = 0.01
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
        outlet=heard,
        server=False,
        artifacts=tmp_path,
        checkpoints=str(place),
    )
    assert (pausing.paused_with, looked) == ([1], 2)


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
        outlet=heard,
        server=False,
        artifacts=folder,
        checkpoints=str(folder / "saved"),
    )


def test_a_pause_saves_again_what_could_not_be_written(tmp_path: Path) -> None:
    """Nobody trains meanwhile; what a pause does not save is lost."""
    place = tmp_path / "saved"
    place.write_text("no folder can be made here")
    heard = Heard()
    pausing = Pausing(lambda: place.unlink(missing_ok=True) if heard.failed else None)
    pausing.listen(heard)
    train_until(pausing, heard, tmp_path)
    assert [step for step, _ in heard.failed] == [1]
    assert pausing.paused_with == [1]


def test_nobody_tries_again_to_save_what_a_generation_that_was_given_up_holds(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("no folder can be made here")
    heard = Heard()
    saver = Saver(SPEC, str(tmp_path / "saved"), heard)
    given_up = iter([False, True])
    state = {"weight": torch.ones(4)}
    write = partial(saver.save, state, Part(), at(1))
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


def test_nobody_waits_for_a_checkpoint_whose_generation_was_given_up(tmp_path: Path) -> None:
    saver = Saver(SPEC, str(tmp_path), Heard())
    pipe = hanging(tmp_path, 1)
    saver.save({"weight": torch.ones(4)}, Part(), at(1))
    assert not saver.finish(lambda: True)
    read_to_its_end(pipe)
    assert saver.finish(lambda: False)
    saver.close()


def test_the_room_that_is_expected_is_the_room_that_is_taken() -> None:
    state = {"a": torch.ones(5), "b": torch.ones(7), "c": torch.ones(2, dtype=torch.float64), "d": 1}
    for writers in (1, 2, 3):
        sizes = [Snapshot(state, Part(writer=n, writers=writers)).size_bytes for n in range(writers)]
        assert sizes == [size_of(state, Part(writer=n, writers=writers)) for n in range(writers)]


def test_a_room_that_is_large_enough_stays_where_it_is() -> None:
    room = Room()
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
    saver = Saver(spec, "nowhere", Heard())
    assert [step for step in range(10) if saver.nears(step)] == near
    assert not any(Saver(spec, None, Heard()).nears(step) for step in range(10))


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
        snapshot = Snapshot({"weight": torch.ones(4)}, Part(), Room())
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


def test_who_waits_for_a_checkpoint_at_the_end_can_be_called_away(tmp_path: Path) -> None:
    """The wait is over when the look says so; the checkpoint is still written."""
    heard = Heard()
    saver = Saver(SPEC, str(tmp_path), heard)
    pipe = hanging(tmp_path, 1)
    saver.save({"weight": torch.ones(4)}, Part(), at(1))

    def look() -> None:
        raise ExchangeBroken(rank=0, phase="finish", bucket=None, why="the generation was given up")

    with pytest.raises(ExchangeBroken):
        saver.written(look)
    read_to_its_end(pipe)
    saver.close()
    assert heard.steps == [1]
