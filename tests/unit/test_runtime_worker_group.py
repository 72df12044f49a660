"""What a crew hears of its workers' ends, and how long it looks for them, without Ray."""

import queue
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ringleader.elastic import events as ev
from ringleader.runtime.messages import AWAY_S, RunEnded
from ringleader.runtime.nodes.node_scratch import remove_scratch
from ringleader.runtime.supervisor.failure_detector import ProcessGlance
from ringleader.spec import JobSpec

if TYPE_CHECKING:
    from ringleader.runtime.supervisor.workers.worker_group import WorkerGroup

HANG_GUARD_S = 30.0


class Refusing:
    """A disk, and a cluster's places, that take nothing."""

    def free(self, worker: str, *, for_good: bool) -> None:
        raise OSError("no place")

    def claim(self, worker: str, waiting: Any) -> Any:
        return SimpleNamespace()

    def note(self, worker: str, handle: bytes) -> None:
        raise OSError("full")


@pytest.fixture
def events() -> "queue.Queue[Any]":
    return queue.Queue()


@pytest.fixture
def worker_group(monkeypatch: pytest.MonkeyPatch, events: "queue.Queue[Any]") -> "WorkerGroup":
    from ringleader.runtime.supervisor.workers import worker_group as module
    from ringleader.runtime.supervisor.workers.worker_handle import WorkerHandle

    monkeypatch.setattr(module, "RETRY_S", 0.0)
    monkeypatch.setattr(WorkerHandle, "written", lambda _: b"handle")
    refusing = Refusing()
    processes = SimpleNamespace(find=lambda worker, place, places: ("process", None))
    return module.WorkerGroup(
        cast("Any", SimpleNamespace(spec=JobSpec.parse({"name": "crew", "entrypoint": "train:train"}))),
        cast("Any", refusing),
        cast("Any", processes),
        events.put,
        start=1,
        note=refusing.note,
    )


def over(worker_group: "WorkerGroup", worker: str, answer: RunEnded | Exception) -> None:
    from ringleader.runtime.supervisor.workers.worker_handle import WorkerHandle

    future: Future[RunEnded | None] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    worker_group._handles[worker] = WorkerHandle("worker")
    worker_group._returns.put(worker, future)


def test_every_end_is_told_while_the_disk_is_full(
    worker_group: "WorkerGroup", events: "queue.Queue[Any]"
) -> None:
    finished = RunEnded("finished", result={"digest": "ab"})
    for worker, answer in (("w0", RuntimeError()), ("w1", finished), ("w2", RuntimeError())):
        over(worker_group, worker, answer)
    told = [events.get(timeout=HANG_GUARD_S) for _ in range(3)]
    assert [(type(event), event.worker) for event in told] == [
        (ev.Lost, "w0"),
        (ev.Finished, "w1"),
        (ev.Lost, "w2"),
    ]


def test_a_process_that_was_taken_and_cannot_begin_is_ended(
    worker_group: "WorkerGroup", events: "queue.Queue[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringleader.runtime.supervisor.workers.worker_handle import WorkerHandle

    ended: list[Any] = []
    monkeypatch.setattr(WorkerHandle, "end", lambda handle: ended.append(handle.actor))
    monkeypatch.setattr(worker_group._places, "free", lambda worker, for_good: None)
    worker_group._handles["w0"] = WorkerHandle("worker")
    worker_group._bring("w0")  # its hand cannot be written down
    assert ended == ["process"]
    assert not worker_group.knows("w0")
    assert [type(events.get_nowait()) for _ in range(2)] == [ev.Placed, ev.Lost]


def test_a_worker_that_is_given_up_as_its_run_begins_is_ended_without_one(
    worker_group: "WorkerGroup", monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringleader.runtime.supervisor.workers.worker_handle import WorkerHandle

    ended: list[Any] = []
    begun: list[str] = []
    process = SimpleNamespace(run=SimpleNamespace(remote=begun.append))

    def run(worker: str, handle: WorkerHandle) -> None:
        handle.give_up()  # by `close` or `kill`, on another thread
        handle.run(worker)

    monkeypatch.setattr(WorkerHandle, "end", lambda handle: ended.append(handle.actor))
    monkeypatch.setattr(worker_group, "_note", lambda worker, handle: None)
    worker_group._processes = cast("Any", SimpleNamespace(find=lambda *_: (process, None), run=run))
    worker_group._handles["w0"] = WorkerHandle("worker")
    worker_group._bring("w0")
    assert begun == [], "its run would make its folder after the group's was removed"
    assert ended == [process]


class Answers:
    """Of workers that do not answer: each wait takes two seconds."""

    waits = 0

    def now(self) -> float:
        return 2.0 * self.waits

    def wait(self, waiting: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        self.waits += 1
        return [], waiting


class Elsewhere:
    """A worker on another node: what a look at it sees comes with the next wait."""

    def __init__(self, answers: Answers, cpu_s: float) -> None:
        self._answers, self._cpu_s = answers, cpu_s
        self.look: str | None = None

    def glance(self) -> ProcessGlance | None:
        if self.look is None:
            self.look = "under way"
            return None
        self.look = None
        return ProcessGlance(stopped=False, cpu_s=self._cpu_s * self._answers.waits)


@pytest.mark.parametrize(("cpu_s", "waits"), [(1.0, 5), (0.0, 2)], ids=["at work", "frozen"])
def test_a_worker_elsewhere_is_looked_at_before_it_counts_as_frozen_and_not_heard_for_ever(
    monkeypatch: pytest.MonkeyPatch, cpu_s: float, waits: int
) -> None:
    from ringleader.runtime.supervisor.workers import attendance

    answers = Answers()
    monkeypatch.setattr(attendance, "ray", answers)
    attendance.await_answers({"w0": "asked"}, {"w0": cast("Any", Elsewhere(answers, cpu_s))}, answers.now)
    assert answers.waits == waits
    assert attendance.HEAR_S < AWAY_S / 2


def test_a_death_that_is_seen_before_ray_knows_is_told_once_and_explained_later(
    worker_group: "WorkerGroup", events: "queue.Queue[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.exceptions import OutOfMemoryError

    from ringleader.runtime.supervisor.workers.worker_handle import WorkerHandle
    from ringleader.runtime.supervisor.workers.worker_returns import Death

    freed: list[str] = []
    monkeypatch.setattr(worker_group._places, "free", lambda worker, for_good: freed.append(worker))
    for worker, error in (("w0", RuntimeError("gone")), ("w1", OutOfMemoryError("node full"))):
        worker_group._handles[worker] = WorkerHandle("worker")
        worker_group._returns.put(worker, Death("died"))
        future: Future[RunEnded | None] = Future()
        future.set_exception(error)
        worker_group._returns.put(worker, future)
    told = [events.get(timeout=HANG_GUARD_S) for _ in range(3)]
    assert [(type(event), event.worker, event.cause) for event in told] == [
        (ev.Lost, "w0", "died"),
        (ev.Lost, "w1", "died"),
        (ev.Explained, "w1", "killed by Ray's memory monitor"),
    ]
    assert freed == ["w0", "w1"]
    assert not worker_group.knows("w0")


def test_a_process_that_dies_behind_the_end_of_its_run_is_missed_by_nobody(
    worker_group: "WorkerGroup", events: "queue.Queue[Any]"
) -> None:
    from ringleader.runtime.supervisor.workers.worker_returns import Death

    over(worker_group, "w0", RunEnded("finished", result={"digest": "ab"}))
    worker_group._returns.put("w0", Death("died (SIGKILL)"))
    over(worker_group, "w1", RuntimeError())
    assert [type(events.get(timeout=HANG_GUARD_S)) for _ in range(2)] == [ev.Finished, ev.Lost]


NODE_FULL = "killed by Ray's memory monitor"


@pytest.mark.parametrize(
    ("causes", "told"),
    [
        (["died (exit code 3)", "died"], [(ev.Lost, "died (exit code 3)")]),
        (["died", "died (SIGSEGV)"], [(ev.Lost, "died"), (ev.Explained, "died (SIGSEGV)")]),
        (["died (SIGKILL)", NODE_FULL], [(ev.Lost, "died (SIGKILL)"), (ev.Explained, NODE_FULL)]),
        ([NODE_FULL, "died (SIGKILL)"], [(ev.Lost, NODE_FULL)]),
    ],
)
def test_of_two_causes_of_a_death_the_second_is_told_where_it_tells_more(
    worker_group: "WorkerGroup",
    events: "queue.Queue[Any]",
    monkeypatch: pytest.MonkeyPatch,
    causes: list[str],
    told: list[tuple[type, str]],
) -> None:
    from ringleader.runtime.supervisor.workers.worker_handle import WorkerHandle
    from ringleader.runtime.supervisor.workers.worker_returns import Death

    monkeypatch.setattr(worker_group._places, "free", lambda worker, for_good: None)
    monkeypatch.setattr(worker_group, "_note", lambda worker, handle: None)
    worker_group._handles["w0"] = WorkerHandle("worker")
    for cause in causes:
        worker_group._returns.put("w0", Death(cause))
    worker_group._handles["w1"] = WorkerHandle("worker")
    worker_group._returns.put("w1", Death("died"))
    heard = [events.get(timeout=HANG_GUARD_S) for _ in range(len(told) + 1)]
    assert [(type(event), event.cause) for event in heard[:-1]] == told
    assert heard[-1].worker == "w1"


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (None, "died"),
        (0, "died (exit code 0)"),
        (3 << 8, "died (exit code 3)"),
        (9, "died (SIGKILL)"),
        (11 | 0x80, "died (SIGSEGV)"),  # with a core file
        (40, "died (signal 40)"),
    ],
)
def test_a_status_is_told_in_words(status: int | None, cause: str) -> None:
    from ringleader.runtime.supervisor.workers.worker_handle import cause_by

    assert cause_by(status) == cause


def test_the_folder_of_an_attempt_is_removed_behind_its_last_process(tmp_path: Path) -> None:
    folder = tmp_path / "job_1-a1"
    late = subprocess.Popen(["sh", "-c", 'sleep 0.3; mkdir -p "$0/w3"', str(folder)])
    reaped = threading.Thread(target=late.wait)
    reaped.start()
    remove_scratch(folder, [late.pid])
    reaped.join(HANG_GUARD_S)
    assert not folder.exists()
