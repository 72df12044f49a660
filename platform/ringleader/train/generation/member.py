"""This worker's place among the members: its seat, its exchange, and the way from one generation to the next."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ringleader.comm.simulator import ClusterCosts
from ringleader.elastic import Plan
from ringleader.elastic.state import PAUSE, SHORT
from ringleader.errors import ExchangeBroken
from ringleader.spec import JobSpec
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.body.carried_state import CarriedState
from ringleader.train.body.optimizer_settings import OptimizerSettings
from ringleader.train.chosen_schedules import ChosenSchedules
from ringleader.train.generation.agreement import agreed
from ringleader.train.generation.control_word import WordLayout
from ringleader.train.generation.exchange_layout import ExchangeLayout
from ringleader.train.generation.generation import Generation
from ringleader.train.generation.heal import Healing
from ringleader.train.generation.initial_weights import Beginning
from ringleader.train.generation.joining.donor import JoinDonor
from ringleader.train.generation.joining.follower import JoinFollower
from ringleader.train.generation.member_comparison import MemberComparison
from ringleader.train.generation.saving.copies import CheckpointCopies
from ringleader.train.generation.saving.saver import CheckpointSaver
from ringleader.train.generation.settled_records import SettledRecords
from ringleader.train.job_warnings import JobWarnings
from ringleader.train.modes.local_sgd.outer_step import OuterStep
from ringleader.train.ports import Coordinator, ParkReport, Seat
from ringleader.train.program_check.background import BackgroundCheck
from ringleader.train.source.current_line import line_setting
from ringleader.train.state.buffers import CommittedBuffers
from ringleader.train.state.hidden_state import HiddenState
from ringleader.train.state.loss_scale import LossScale
from ringleader.train.state.parameters.trained import TrainedParameters
from ringleader.train.state.progress import Progress
from ringleader.train.state.training_state import TrainingState
from ringleader.train.state.update_randomness import UpdateRandomness
from ringleader.train.time_split import TimeSplit


class Member:
    """One worker's committed position and current generation. `enter` brings it into the next one.

    Attributes:
        progress: the committed position.
        current: the generation that this member takes part in; None before its first, between two, and at the end.
        costs: measured costs of links and additions; None until an exchange has had to choose by them.
        former: the members of the generation before this one; empty for a worker that was in none.
        on_generation_open: called when a generation's exchange is open, before anybody heals.
        loop_state: gives what a running loop holds beyond whole steps, at a boundary, for a checkpoint.
        gather_loop_state: puts together what members know of the running loop: called by all of them where a generation
            begins, before what one member alone holds is copied.
        saved_loop_state: the value of `loop_state` in the checkpoint that this attempt began with.
        scaling: the loss scale of fp16; None in other precisions.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        device: torch.device,
        held: TrainingState,
        progress: Progress,
        reporter: SettledRecords,
        coordinator: Coordinator,
        split: TimeSplit,
        saver: CheckpointSaver,
    ) -> None:
        self.spec = spec
        self.device = device
        self.held = held
        self.progress = progress
        self.reporter = reporter
        self.coordinator = coordinator
        self.split = split
        self.timeline = split.timeline
        self.saver = saver
        self.costs: ClusterCosts | None = None
        self.on_generation_open: Callable[[], None] = lambda: None
        self.loop_state: Callable[[], dict[str, Any]] = dict
        self.gather_loop_state: Callable[[], None] = lambda: None
        self.saved_loop_state: dict[str, Any] = {}
        self.former: tuple[str, ...] = ()
        self.current: Generation | None = None
        self._seat: Seat | None = None
        self.same_bits = spec.sync.same_bits
        self._leaving, self._must_park = "", True
        self._buffers: CommittedBuffers | None = None
        self._layout: WordLayout | None = None
        self.trained = TrainedParameters(self)
        self.laying = ExchangeLayout(self)
        self.scaling = LossScale() if spec.precision == "fp16" else None
        self._make_program_state()
        self._make_handovers()
        self._make_notices()
        self.beginning = Beginning(spec.init_from, optimizers=spec.init_optimizers)

    def _make_program_state(self) -> None:
        """The parts that record and compare what the program's own lines make."""
        self.sections = ProgramSections(self)
        self.comparison = MemberComparison(self)
        self.unkept = HiddenState(self)
        self.carrying = CarriedState(self)
        self.settings = OptimizerSettings(self, line_setting)
        self.draws = UpdateRandomness(self)

    def _make_handovers(self) -> None:
        """The parts that give state to other members, or to a checkpoint, and take it from them."""
        self.healing = Healing(self)
        self.donations = JoinDonor(self)
        self.securing = CheckpointCopies(self)
        self.join_follower = JoinFollower(self)

    def _make_notices(self) -> None:
        """The parts that tell users what was chosen and what was found."""
        self.choice = ChosenSchedules(self)
        self.warnings = JobWarnings(self)
        self.beside = BackgroundCheck(self)

    @property
    def generation(self) -> Generation:
        """The generation that this member takes part in. Raises LookupError where there is none."""
        if self.current is None:
            raise LookupError("this worker takes part in no generation")
        return self.current

    @property
    def seated(self) -> bool:
        """Whether this worker has been given a seat."""
        return self._seat is not None

    @property
    def buffers(self) -> CommittedBuffers:
        # Made at first use: the program registers its models after this member is made.
        if self._buffers is None:
            self._buffers = CommittedBuffers(self.held.models)
        return self._buffers

    @property
    def parameters(self) -> list[Parameter]:
        """Every parameter, frozen ones too; `trained` knows which of them are trained."""
        return self.laying.parameters

    @property
    def tables(self) -> dict[Parameter, str]:
        """The names of the trained parameters whose gradients travel as rows."""
        return {self.parameters[number]: name for number, name in self.laying.tables.items()}

    @property
    def outer(self) -> OuterStep | None:
        """The outer step, where a round of several batches is the transaction."""
        return self.laying.outer

    @property
    def part(self) -> list[Parameter] | None:
        """The parameters that this server of several updates, or has updated; None: all that any member updates."""
        share = self.generation.exchange.part
        return None if share is None else self.held.ever_trained(share)

    @property
    def layout(self) -> WordLayout:
        if self._layout is None:
            # There are never more workers than logical shards: the job file is refused otherwise.
            self._layout = WordLayout(
                members=self.spec.shards + self.spec.sync.server_count,
                shards=self.spec.shards * self.spec.sync.round_steps,
                parameters=len(self.parameters),
                buffers=self.buffers.word_length,
            )
        return self._layout

    @property
    def lanes(self) -> int:
        """Terms of the gradient's sum: logical shards, or workers where a worker's slices run as one."""
        if self.same_bits:
            return self.spec.shards
        return self.generation.plan.world

    @property
    def ahead(self) -> bool:
        """Whether this server has already applied the running step: it takes part again without a second update."""
        return self.progress.updated > self.progress.step and not self.spec.sync.leased

    @property
    def serves(self) -> bool:
        """Whether this member is a server."""
        return self.current is not None and self.current.serves

    def enter(self) -> None:
        """Enter the next generation if one is due, waiting for its plan. A worker that has no seat yet stays without
        one where it is told that the call that it has come to is over."""
        while self._must_park or self.current is None:
            with self.split.recovery() if self.seated else self.split.idle():
                self._change_generation()
            if not self.seated:
                return

    def heed(self) -> None:
        """Ask for a seat, at the begin of a call that is over, where this worker has none yet and was interrupted."""
        if not self.seated and self.coordinator.interrupted():
            self.enter()

    def committed(self) -> None:
        """Run what follows a commit: all that is applied is committed and published."""
        self.securing.committed()
        self.donations.committed(leaves=self._must_park)
        self.beside.committed()

    def leave_at_planned_boundary(self) -> None:
        """End this generation: the reduced word named a newer plan."""
        self._must_park = True
        self._leaving = ""

    def broke(self, error: ExchangeBroken) -> None:
        """Undo the running transaction, which did not happen; the next plan says where to go on."""
        self._must_park = True
        self._leaving = str(error)
        self.donations.void()
        if self.timeline is not None:
            self.timeline.unwind(self._leaving)
        self.held.rewind_kept()
        self.buffers.forget()

    def own_weights(self) -> None:
        """Move weights out of memory that peers may be reading: the program is about to change them."""
        self.laying.own_weights()

    def publish(self) -> None:
        """Publish the weights that this member updates and take over those that others do. Raises ExchangeBroken."""
        self.progress.begin_publication()
        self.generation.exchange.publish()
        self.progress.end_publication()

    def call_back(self) -> None:
        """Run the callbacks that waited until all weights are here."""
        self.held.call_back()
        if self.held.callbacks:
            self.buffers.adopt()

    def take_back(self) -> None:
        """Undo what a loop's body, left in its middle, did to buffers and kept objects since the commit."""
        if self.spec.followed or self.spec.sync.same_bits:
            self.buffers.rewind()
        self.held.rewind_kept()

    def forget_gradients(self) -> None:
        """Set every `.grad` to None between calls: what is left there differs by worker."""
        for parameter in self.held.weights:
            parameter.grad = None

    def take_over(self) -> None:
        """Commit, as a call begins, what the lines before it made of buffers and kept objects."""
        if not self.seated:
            return
        if not (self.spec.sync.order_free or self.spec.sync.circulates):
            self.buffers.adopt()
        self.held.commit_kept()

    def leave_call(self, number: int) -> None:
        """End the loop of call `number`, which was left at this committed step."""
        self.progress.leave_loop(number)
        self.pass_over(lambda: self.finish_call(number))

    def pass_over(self, end: Callable[[], None] = lambda: None) -> None:
        """Commit a transaction without a step that runs `end`; a member that misses it is healed. The weights are
        published as they are."""
        exchange = self.generation.exchange
        # Whoever updates commits before it publishes, all others behind that: a member that has the weights then
        # knows that their owners have committed.
        if not exchange.updates:
            self.publish()
        self.buffers.forget()
        end()
        self.progress.commit_transaction()
        if exchange.updates:
            self.publish()

    def finish_call(self, number: int, result: Any = None) -> None:
        """Record that the call is over for all members at this committed step."""
        self.progress.finish_call(number, result)
        self.sections.finished(number)

    def close(self) -> None:
        """Leave the group for good; weights stay."""
        self.donations.void()
        self.beside.close()
        self.saver.close()
        self._leave()
        self.laying.release()

    def check(self, reduced: Tensor) -> bool:
        """Whether the step happens: nobody has left the loop before it. Raises CallMismatch where members differ."""
        plan = self.generation.plan
        self.securing.hear(reduced, plan)
        stays = agreed(self.layout, reduced, plan, self.generation.rank, self.progress.step)
        others = self.layout.lays(reduced, world=len(plan.members))
        return stays and not others and not self.comparison.differs(reduced)

    def _leave(self) -> None:
        """Close the current generation, if there is one."""
        if self.current is not None:
            # The count of the exchange goes with it.
            self.split.exposed_s += self.current.exchange.exposed_s
            self.current.exchange.close()
            self.current = None

    def _change_generation(self) -> None:
        parked = self._park()
        self._seat = seat = self._next_seat(parked)
        if seat is None:
            if self.timeline is not None:
                self.timeline.end()
            return
        self._take_seat(seat, newcomer=not parked.generation)
        try:
            self.securing.begin()
            self.current = Generation.of(seat, self.laying.open(seat))
            self.on_generation_open()
            self.healing.heal()
        except ExchangeBroken as error:
            self.broke(error)
            return
        self._begin_generation(seat)

    def _park(self) -> ParkReport:
        """End the generation that this member was in, and report where it stands."""
        generation = self._seat.plan.generation if self._seat else 0
        self.reporter.end_generation()
        if self.spec.followed:
            self.buffers.rewind()  # the loop's body may have changed them behind the step
        self.donations.end_generation()
        self._leave()
        if self.timeline is not None:
            self.timeline.begin("regroup", left=generation)
        self.former = self._seat.plan.members if self._seat else ()
        # -1 parks a new server that has no parts yet as one that was never a member: it holds nothing to go on from.
        progress = self.progress
        step = progress.updated if progress.lacks_part else max(progress.step, progress.updated)
        call = max(0, progress.calls.next - 1)
        return ParkReport(generation, progress.transactions, step, self._leaving, call=call)

    def _take_seat(self, seat: Seat, *, newcomer: bool) -> None:
        """Go on from parking. `newcomer`: this worker was in no generation before."""
        self._must_park = False
        self._leaving = ""
        # Its parts are with other servers: it counts as a holder of them only once it has them.
        plan = seat.plan
        if newcomer and seat.rank >= plan.world and self._begun(plan):
            self.progress.lack_part()
        if self.timeline is not None:
            self.timeline.end()
            self.timeline.begin("heal", generation=plan.generation)

    def _begin_generation(self, seat: Seat) -> None:
        """Begin the work of a generation in which all are healed."""
        plan = seat.plan
        if self.timeline is not None:
            self.timeline.end()
        # Where items are leased server 0 counts them, and so it speaks.
        speaker = plan.world if self.spec.sync.leased and plan.servers else 0
        self.reporter.begin_generation(speaks=seat.rank == speaker, recorded_step=plan.recorded_step)
        try:
            if plan.cause in (PAUSE, SHORT):
                self._stop(plan)
                return
            self.securing.begun(plan)
        except ExchangeBroken as error:
            self.broke(error)
            return
        self.choice.tell()
        self.warnings.look()

    def _begun(self, plan: Plan) -> bool:
        """Whether servers may have made updates before this plan, which steps do not show where items are leased."""
        return (
            plan.backups > 0 and plan.generation > 1 if self.spec.sync.leased else plan.start_transaction > 0
        )

    def _next_seat(self, parked: ParkReport) -> Seat | None:
        """Ask for the next seat, following a member meanwhile if told to. None: there are lines to run first."""
        self.join_follower.catching.arrive()
        while True:
            match self.coordinator.next_seat(parked):
                case Seat() as seat:
                    return seat
                case task:
                    self.laying.settle()
                    told = self.join_follower.follow(task)
                    if told is None:
                        return None
                    parked = told

    def _stop(self, plan: Plan) -> None:
        """Save the boundary at which this generation begins, which is its only purpose. Raises ExchangeBroken."""
        if plan.cause == SHORT:
            self.securing.rest()
        else:
            self.securing.pause()
            # All have met at this boundary since, so nothing takes it back.
            self.reporter.settle()
        self._must_park = True
