"""Whose words a worker takes: those of the newest start of its supervisor, and of no older one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NoReturn

from rooms import SECRET

from ringleader.elastic import Meeting, ParkReport, Plan
from ringleader.errors import ExchangeBroken
from ringleader.runtime.messages import MemberTask, ProcessIdentity, RunEnded
from ringleader.spec import JobSpec

if TYPE_CHECKING:
    from ringleader.runtime.worker.actor import WorkerActor

HANG_S = 60.0
WHO = ProcessIdentity(1, "node", "127.0.0.1")
SPEC = JobSpec.parse({"name": "words", "entrypoint": "unit:train"})
TASK = MemberTask("job", 1, "w0", "worker", SPEC, Path("artifacts"), Path("scratch"), "checkpoints")

HERE = Meeting("127.0.0.1:1", SECRET)


class Told:
    """A supervisor that is away: nobody hears what it is told."""

    def __getattr__(self, name: str) -> "Told":
        return self

    def remote(self, *args: object) -> None:
        return None


def working() -> "WorkerActor":
    """In the middle of its task."""
    from ringleader.runtime.worker.actor import WorkerActor
    from ringleader.runtime.worker.heartbeat import HeartbeatThread
    from ringleader.runtime.worker.member import MemberProcess
    from ringleader.runtime.worker.supervisor_link import RayLink

    worker = WorkerActor()
    worker._member = MemberProcess(TASK, WHO, RayLink(Told()), HeartbeatThread())
    worker._busy.set()
    worker._ready.set()
    return worker


def end(worker: "WorkerActor", ended: RunEnded) -> None:
    with worker._changed:
        worker._ended = ended
        worker._changed.notify_all()


def plan(generation: int, start: int) -> Plan:
    return Plan(1, generation, ("w0",), 0, 1, 0, (), 1, HERE, "start", start=start)


def test_a_plan_of_an_older_start_is_refused_whatever_its_generation():
    worker = working()
    worker.plan(plan(3, start=1))
    assert worker.attendance(2).generation == 3
    worker.plan(plan(9, start=1))
    worker.interrupt(1, 9)
    worker.announce(1, 9)
    worker.dismiss(1)
    assert worker.attendance(2).generation == 3
    worker.plan(plan(4, start=2))
    assert worker.attendance(2).generation == 4


def test_a_pair_that_an_older_start_has_made_is_not_met():
    worker = working()
    seats, met = worker._words().seats, list[int]()

    def pair(meeting: Meeting, number: int, *_: object) -> NoReturn:
        met.append(number)
        raise ExchangeBroken(rank=0, phase="connect", bucket=None, why="interrupted")

    seats._pair = pair
    worker.attendance(2)
    for start, number in ((2, 4), (1, 3)):
        worker.donate(start, HERE, number)
        worker.follow(start, HERE, number)
    assert met == [4]
    assert seats._follows == (HERE, 4)


def test_who_waits_for_a_plan_says_with_what_until_it_has_one():
    worker = working()
    seats = worker._words().seats
    with ThreadPoolExecutor(1) as pool:
        sat = pool.submit(seats.next_seat, ParkReport(0, 0, 0, ""))
        worker.plan(plan(1, start=1))
        assert sat.result(30).plan.generation == 1
        assert worker.attendance(2).park_message is None
        again = pool.submit(seats.next_seat, ParkReport(1, 7, 7, "broken pipe"))
        said = None
        while said is None and not again.done():
            said = worker.attendance(2).park_message
        assert said is not None
        assert said.report == ParkReport(1, 7, 7, "broken pipe")
        worker.plan(plan(2, start=2))
        assert again.result(30).plan.generation == 2


def test_only_the_newest_supervisor_learns_how_the_run_ended_and_as_often_as_it_asks():
    worker = working()
    ended = RunEnded("finished", result={"digest": "same"})
    with ThreadPoolExecutor(2) as pool:
        old = pool.submit(worker.run, 1, TASK, None, Told())
        new = pool.submit(worker.run, 2, TASK, None, Told())
        assert old.result(30) is None
        end(worker, ended)
        assert new.result(30) is ended
    assert worker.run(3, TASK, None, Told()) is ended
    assert worker.run(2, TASK, None, Told()) is None


def test_who_follows_a_member_says_no_more_that_it_waits_until_it_does_again():
    worker = working()
    seats = worker._words().seats
    met, over = Event(), Event()

    def pair(*_: object) -> NoReturn:
        met.set()
        assert over.wait(30)
        raise ExchangeBroken(rank=0, phase="connect", bucket=None, why="interrupted")

    seats._pair = pair
    with ThreadPoolExecutor(1) as pool:
        sat = pool.submit(seats.next_seat, ParkReport(0, 0, 0, ""))
        worker.follow(1, HERE, 1)
        assert met.wait(30)
        assert worker.attendance(2).park_message is None
        over.set()
        said = None
        while said is None and not sat.done():
            said = worker.attendance(2).park_message
        assert said is not None
        assert (said.report.followed, "interrupted" in said.report.why) == (1, True)
        worker.plan(plan(1, start=2))
        assert sat.result(30).plan.generation == 1
