"""A worker's way from one seat to the next."""

import threading
from collections.abc import Callable

import pytest
from rooms import SECRET
from waiting import wait_for

from ringleader.elastic import Meeting, ParkReport, Plan
from ringleader.errors import Dismissed, ExchangeBroken
from ringleader.runtime.worker.plan_client import PlanClient

HANG_S = 60.0

HERE = Meeting("127.0.0.1:1", SECRET)


def plan(generation: int, members: tuple[str, ...] = ("w0", "w1")) -> Plan:
    return Plan(1, generation, members, 0, 4, 0, (), 0, HERE, "start")


class Transport:
    def __init__(self) -> None:
        self.aborted = self.closed = False

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True


class Heard:
    """What the worker told."""

    def __init__(self) -> None:
        self.parks: list[ParkReport] = []
        self.seats: list[int] = []
        self.in_sync_pairs: list[int] = []

    def parked(self, parked: ParkReport) -> None:
        self.parks.append(parked)

    def seated(self, generation: int) -> None:
        self.seats.append(generation)

    def in_sync(self, pair: int) -> None:
        self.in_sync_pairs.append(pair)


class Bench:
    """Seats whose connections succeed unless `refuse` says otherwise."""

    def __init__(self) -> None:
        self.heard = Heard()
        self.transports: list[Transport] = []
        self.refuse: set[int] = set()
        self.pairs: list[tuple[Meeting, int, int]] = []
        self.meets: Callable[[], None] = lambda: None
        self.seats = PlanClient("w0", self.heard, self.connect, self.pair)

    def connect(self, plan: Plan, rank: int, cancelled):
        if plan.generation in self.refuse:
            raise ExchangeBroken(rank=1, phase="connect", bucket=None, why="refused")
        self.transports.append(Transport())
        return self.transports[-1]

    def pair(self, meeting: Meeting, number: int, rank: int, cancelled):
        self.pairs.append((meeting, number, rank))
        self.meets()
        if number in self.refuse:
            raise ExchangeBroken(rank=1 - rank, phase="connect", bucket=None, why="refused")
        self.transports.append(Transport())
        return self.transports[-1]


def test_a_seat_is_the_next_plan_and_a_connection_to_its_members():
    bench = Bench()
    bench.seats.take(plan(1))
    seat = bench.seats.next_seat(ParkReport(0, 0, 0, ""))
    assert (seat.rank, seat.plan.generation, seat.transport) == (0, 1, bench.transports[0])
    assert bench.heard.seats == [1]


def test_a_plan_that_is_not_newer_is_not_taken():
    bench = Bench()
    bench.seats.take(plan(3))
    bench.seats.take(plan(2))
    assert bench.seats.next_seat(ParkReport(1, 0, 0, "")).plan.generation == 3


def test_the_only_member_needs_no_transport():
    bench = Bench()
    bench.seats.take(plan(1, ("w0",)))
    assert bench.seats.next_seat(ParkReport(0, 0, 0, "")).transport is None


def test_a_meeting_that_fails_parks_again_in_the_generation_that_failed():
    bench = Bench()
    bench.refuse = {1}
    bench.seats.take(plan(1))
    thread = threading.Thread(target=bench.seats.next_seat, args=(ParkReport(0, 0, 0, ""),))
    thread.start()
    wait_for("second park", lambda: len(bench.heard.parks) == 2)
    bench.seats.take(plan(2))
    thread.join(timeout=30)
    assert bench.heard.parks[1].generation == 1
    assert "refused" in bench.heard.parks[1].why
    assert bench.heard.seats == [2]


def test_an_interrupt_ends_the_waits_of_its_generation_only():
    bench = Bench()
    bench.seats.take(plan(2))
    bench.seats.next_seat(ParkReport(0, 0, 0, ""))
    bench.seats.interrupt(1)
    assert not bench.transports[0].aborted
    assert not bench.seats.interrupted()
    bench.seats.interrupt(2)
    assert bench.transports[0].aborted
    assert bench.seats.interrupted()
    bench.seats.take(plan(3))
    bench.seats.next_seat(ParkReport(2, 0, 0, ""))
    assert not bench.seats.interrupted()


def test_leaving_a_generation_closes_its_connections():
    bench = Bench()
    bench.seats.take(plan(1))
    bench.seats.next_seat(ParkReport(0, 0, 0, ""))
    bench.seats.take(plan(2))
    bench.seats.next_seat(ParkReport(1, 5, 5, ""))
    assert bench.transports[0].closed
    assert not bench.transports[1].closed


def test_an_announced_plan_is_pending_until_it_is_taken():
    bench = Bench()
    bench.seats.take(plan(1))
    bench.seats.next_seat(ParkReport(0, 0, 0, ""))
    assert not bench.seats.plan_pending()
    bench.seats.announce(2)
    assert bench.seats.plan_pending()
    bench.seats.take(plan(2))
    bench.seats.next_seat(ParkReport(1, 1, 1, ""))
    assert not bench.seats.plan_pending()


def test_a_dismissed_worker_unwinds():
    bench = Bench()
    bench.seats.dismiss()
    with pytest.raises(Dismissed):
        bench.seats.next_seat(ParkReport(1, 5, 5, ""))


def test_a_joiner_follows_whom_it_is_told_to_and_asks_again_when_that_is_over():
    bench = Bench()
    bench.seats.follow(HERE, 3)
    task = bench.seats.next_seat(ParkReport(0, 0, 0, ""))
    assert bench.pairs == [(HERE, 3, 1)]
    task.in_sync()
    assert bench.heard.in_sync_pairs == [3]
    bench.seats.take(plan(5))
    assert bench.seats.next_seat(ParkReport(0, 7, 7, "")).plan.generation == 5
    assert bench.heard.parks[-1].applied == 7


def test_an_interrupt_ends_what_a_joiner_follows():
    bench = Bench()
    bench.seats.follow(HERE, 1)
    task = bench.seats.next_seat(ParkReport(0, 0, 0, ""))
    bench.seats.interrupt(4)
    assert task.transport.aborted


def test_a_second_interrupt_of_a_generation_ends_what_a_joiner_follows_then():
    bench = Bench()
    bench.seats.follow(HERE, 1)
    bench.seats.next_seat(ParkReport(0, 0, 0, ""))
    bench.seats.interrupt(4)
    bench.meets = lambda: bench.seats.interrupt(4)
    bench.seats.follow(HERE, 2)
    task = bench.seats.next_seat(ParkReport(0, 0, 0, "interrupted"))
    assert bench.seats.followed == 2
    assert task.transport.aborted


def test_an_interrupt_calls_a_joiner_off_from_its_lines_until_it_asks_somebody_again():
    bench = Bench()
    bench.seats.follow(HERE, 1)
    bench.seats.next_seat(ParkReport(0, 0, 0, "")).transport.close()
    assert not bench.seats.interrupted()
    bench.seats.interrupt(4)
    assert bench.seats.interrupted()
    bench.seats.follow(HERE, 2)
    bench.seats.next_seat(ParkReport(0, 0, 0, "", call=3))
    assert not bench.seats.interrupted()
    assert bench.heard.parks[-1].call == 3


def test_a_joiner_that_does_not_meet_whom_it_shall_follow_says_so_and_waits():
    bench = Bench()
    bench.refuse = {1}
    bench.seats.follow(HERE, 1)
    thread = threading.Thread(target=bench.seats.next_seat, args=(ParkReport(0, 0, 0, ""),))
    thread.start()
    wait_for("second park", lambda: len(bench.heard.parks) == 2)
    bench.seats.take(plan(2))
    thread.join(HANG_S)
    assert [bool(parked.why) for parked in bench.heard.parks] == [False, True]


def test_a_member_gets_those_who_follow_it_once():
    bench = Bench()
    bench.refuse = {2}
    bench.seats.donate(HERE, 1)
    bench.seats.donate(HERE, 2)
    assert bench.seats.joiners() == bench.transports
    assert bench.seats.joiners() == []
