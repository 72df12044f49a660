"""A worker's place among the members: park, wait for the plan, connect. Implements train's Coordinator."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from ringleader.comm.transports import Transport
from ringleader.elastic import Meeting, ParkReport, Plan
from ringleader.errors import Dismissed, ExchangeBroken
from ringleader.train.generation.joining.donor import DONOR, JOINER
from ringleader.train.ports import FollowTask, Seat

Connect = Callable[[Plan, int, Callable[[], bool]], Transport | None]
"""(plan, rank, cancelled) → a transport to the plan's other members, None where they exchange nothing. Raises
ExchangeBroken."""


Pair = Callable[[Meeting, int, int, Callable[[], bool]], Transport]
"""(meeting, number, rank, cancelled) → a transport between a joiner and its donor. Raises ExchangeBroken."""


class StatusReporter(Protocol):
    """The receiver of a worker's status: parked, seated, level with the member it follows."""

    def parked(self, parked: ParkReport) -> None: ...

    def seated(self, generation: int) -> None: ...

    def in_sync(self, pair: int) -> None: ...


class PlanClient:
    """One worker's seats, one generation after the other. `next_seat` runs on the training thread, the supervisor's
    calls come in on others."""

    def __init__(self, worker: str, teller: StatusReporter, connect: Connect, pair: Pair) -> None:
        self._worker = worker
        self._teller = teller
        self._connect = connect
        self._pair = pair
        self._changed = threading.Condition()
        self._plan: Plan | None = None
        self._follows: tuple[Meeting, int] | None = None
        self._followed = 0
        self._joiners: list[Transport] = []
        self._transport: Transport | None = None
        self._generation = 0
        self._interrupted = 0
        self._interrupts = 0
        self._heeded = 0
        self._announced = 0
        self._dismissed = False

    # --- Coordinator, called from the training thread -------------------------------------------------------------

    def next_seat(self, parked: ParkReport) -> Seat | FollowTask:
        self._leave()
        while True:
            self._teller.parked(replace(parked, followed=self._followed))
            plan = self._await_plan(parked.generation)
            try:
                return self._follow() if plan is None else self._sit(plan)
            except ExchangeBroken as error:
                generation = parked.generation if plan is None else plan.generation
                parked = replace(parked, generation=generation, why=str(error), astray="")

    def joiners(self) -> list[Transport]:
        with self._changed:
            joiners, self._joiners = self._joiners, []
        return joiners

    def plan_pending(self) -> bool:
        return self._announced > self._generation

    def interrupted(self) -> bool:
        if not self._generation:
            return self._interrupts > self._heeded
        return self._interrupted >= self._generation

    @property
    def newest(self) -> int:
        """The generation of the newest plan that came here, 0 without any."""
        return self._plan.generation if self._plan is not None else 0

    @property
    def followed(self) -> int:
        """The number of the last pair in which this worker followed a member, or does, 0 before any."""
        return self._followed

    # --- the supervisor's words -----------------------------------------------------------------------------------

    def take(self, plan: Plan) -> None:
        with self._changed:
            # Calls come in on several threads: an older plan may be taken after a newer one.
            if self._plan is None or plan.generation > self._plan.generation:
                self._plan = plan
                self._changed.notify_all()

    def interrupt(self, generation: int) -> None:
        """End the waits of `generation`, whose exchange is over."""
        with self._changed:
            self._interrupted = max(self._interrupted, generation)
            self._interrupts += 1
            transport = self._transport if self._generation <= generation else None
        # Outside of the lock: the thread that the abort wakes takes it to leave the generation.
        if transport is not None:
            transport.abort()

    def follow(self, meeting: Meeting, number: int) -> None:
        """Follow a member, which is told of it too, as the `number`-th pair."""
        with self._changed:
            self._follows = (meeting, number)
            self._changed.notify_all()

    def donate(self, meeting: Meeting, number: int) -> None:
        """Meet the joiner that is to follow this worker. Returns once they have met."""
        with suppress(ExchangeBroken):  # the joiner is gone; nothing is lost with it
            transport = self._pair(meeting, number, DONOR, lambda: self._dismissed)
            with self._changed:
                self._joiners.append(transport)

    def announce(self, generation: int) -> None:
        with self._changed:
            self._announced = max(self._announced, generation)

    def dismiss(self) -> None:
        with self._changed:
            self._dismissed = True
            self._changed.notify_all()
            # Before its first seat: it may be waiting for the member that it follows.
            transport = self._transport if not self._generation else None
        if transport is not None:
            transport.abort()

    # --------------------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        with self._changed:
            transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def _await_plan(self, generation: int) -> Plan | None:
        """The plan after `generation`; None: there is a member to follow."""
        with self._changed:
            while True:
                if self._dismissed:
                    raise Dismissed
                if self._plan is not None and self._plan.generation > generation:
                    return self._plan
                if self._follows is not None and not generation:
                    return None
                # No deadline: as long as the supervisor answers heartbeats there will be a plan or a dismissal; when it
                # does not, the control thread ends this process.
                self._changed.wait(timeout=1.0)

    def _follow(self) -> FollowTask:
        with self._changed:
            assert self._follows is not None
            (meeting, number), self._follows = self._follows, None
            self._followed = number
            before = self._heeded = self._interrupts  # two may name one generation
        transport = self._pair(meeting, number, JOINER, lambda: self._interrupts > before or self._dismissed)
        with self._changed:
            self._transport = transport
            late = self._interrupts > before
        if late:
            transport.abort()
        return FollowTask(transport, lambda: self._teller.in_sync(number))

    def _sit(self, plan: Plan) -> Seat:
        rank = plan.rank_of(self._worker)
        transport = None
        if len(plan.members) > 1:
            transport = self._connect(plan, rank, lambda: self._interrupted >= plan.generation)
        with self._changed:
            self._generation, self._transport = plan.generation, transport
            # While they met there was no transport for an interrupt to abort.
            late = self._interrupted >= plan.generation
        if late and transport is not None:
            transport.close()
            raise ExchangeBroken(
                rank=rank, phase="connect", bucket=None, why="the generation was given up while it met"
            )
        self._teller.seated(plan.generation)
        return Seat(plan, rank, transport)
