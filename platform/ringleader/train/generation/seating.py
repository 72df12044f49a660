"""A worker's way from one generation to the next: it parks, is given a seat, opens the exchange there, and heals."""

from collections.abc import Callable

from ringleader.elastic import ParkReport, Plan
from ringleader.elastic.state import PAUSE, SHORT
from ringleader.errors import ExchangeBroken
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.exchange_layout import ExchangeLayout
from ringleader.train.generation.generation import Generation
from ringleader.train.generation.heal import Healing
from ringleader.train.generation.joining.donor import JoinDonor
from ringleader.train.generation.joining.follower import JoinFollower
from ringleader.train.generation.saving.copies import CheckpointCopies
from ringleader.train.ports import Seat


class Seating:
    """One worker's seats, one generation after the other. Called from the training thread.

    Attributes:
        leaves: this generation is over, or none has begun yet: a seat is asked for at the next transaction.
    """

    def __init__(
        self,
        context: MemberContext,
        *,
        laying: ExchangeLayout,
        healing: Healing,
        donations: JoinDonor,
        copies: CheckpointCopies,
        follower: JoinFollower,
        begun: Callable[[], None],
    ) -> None:
        """`begun` is called where a generation, in which all are healed, has begun."""
        self.leaves = True
        self._opened: Callable[[], None] = lambda: None
        self._context = context
        self._laying = laying
        self._healing = healing
        self._donations = donations
        self._copies = copies
        self._follower = follower
        self._begun = begun
        self._seat: Seat | None = None
        self._why = ""

    @property
    def seated(self) -> bool:
        """Whether this worker has been given a seat."""
        return self._seat is not None

    @property
    def due(self) -> bool:
        """Whether this worker has to enter a generation before it goes on."""
        return self.leaves or self._context.current is None

    def when_open(self, opened: Callable[[], None]) -> None:
        """Have `opened` called when a generation's exchange is open, before anybody heals."""
        self._opened = opened

    def enter(self) -> None:
        """Enter the next generation if one is due, waiting for its plan. A worker that has no seat yet stays without
        one where it is told that the call that it has come to is over."""
        split = self._context.split
        while self.due:
            with split.recovery() if self.seated else split.idle():
                self._change_generation()
            if not self.seated:
                return

    def leave_at_planned_boundary(self) -> None:
        """End this generation: the reduced word named a newer plan."""
        self.leaves, self._why = True, ""

    def broke(self, error: ExchangeBroken) -> None:
        """Undo the running transaction, which did not happen; the next plan says where to go on."""
        context = self._context
        self.leaves, self._why = True, str(error)
        self._donations.void()
        context.timeline.unwind(self._why)
        context.held.kept.rewind()
        context.buffers.forget()

    def _change_generation(self) -> None:
        former = self._seat.plan if self._seat else None
        parked = self._park(former.generation if former else 0)
        self._seat = seat = self._next_seat(parked)
        if seat is None:
            self._context.timeline.end()
            return
        self._take_seat(seat, newcomer=not parked.generation)
        try:
            self._copies.begin()
            self._context.begin(Generation.of(seat, self._laying.open(seat)))
            self._opened()
            self._healing.heal(former.members if former else ())
        except ExchangeBroken as error:
            self.broke(error)
            return
        self._begin_generation(seat)

    def _park(self, generation: int) -> ParkReport:
        """End the generation that this member was in, and report where it stands."""
        context, progress = self._context, self._context.progress
        context.reporter.end_generation()
        if context.spec.followed or context.same_bits:
            context.buffers.rewind()  # the loop's body may have changed them behind the step
        self._donations.end_generation()
        context.leave()
        context.timeline.begin("regroup", left=generation)
        # -1 parks a new server that has no parts yet as one that was never a member: it holds nothing to go on from.
        own = (progress.updated, progress.updated_phases)
        step, phases = own if progress.lacks_part else max(progress.stands, own)
        call = max(0, progress.calls.next - 1)
        return ParkReport(generation, progress.transactions, step, self._why, call=call, phases=phases)

    def _next_seat(self, parked: ParkReport) -> Seat | None:
        """Ask for the next seat, following a member meanwhile if told to. None: there are lines to run first."""
        self._follower.catching.arrive()
        while True:
            match self._context.coordinator.next_seat(parked):
                case Seat() as seat:
                    return seat
                case task:
                    self._laying.settle()
                    told = self._follower.follow(task)
                    if told is None:
                        return None
                    parked = told

    def _take_seat(self, seat: Seat, *, newcomer: bool) -> None:
        """Go on from parking. `newcomer`: this worker was in no generation before."""
        context, plan = self._context, seat.plan
        self.leaves, self._why = False, ""
        # Its parts are with other servers: it counts as a holder of them only once it has them.
        if newcomer and seat.rank >= plan.world and context.rules.has_updates(plan):
            context.progress.lack_part()
        context.timeline.end()
        context.timeline.begin("heal", generation=plan.generation)

    def _begin_generation(self, seat: Seat) -> None:
        """Begin the work of a generation in which all are healed."""
        context, plan = self._context, seat.plan
        context.timeline.end()
        speaks = seat.rank == context.rules.speaker(plan)
        context.reporter.begin_generation(speaks=speaks, recorded_step=plan.recorded_step)
        try:
            if plan.cause in (PAUSE, SHORT):
                self._stop(plan)
                return
            self._copies.begun(plan)
        except ExchangeBroken as error:
            self.broke(error)
            return
        self._begun()

    def _stop(self, plan: Plan) -> None:
        """Save the boundary at which this generation begins, which is its only purpose. Raises ExchangeBroken."""
        if plan.cause == SHORT:
            self._copies.rest()
        else:
            self._copies.pause()
            # All have met at this boundary since, so nothing takes it back.
            self._context.reporter.settle()
        self.leaves = True
