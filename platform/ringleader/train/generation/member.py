"""A member of the group that trains: its parts, and what they do together at commits and at session calls."""

from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from ringleader.errors import CallMismatch, ExchangeBroken
from ringleader.program_text.current_line import line_setting
from ringleader.train.between_calls.objects.step_functions import StepFunctions
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.between_calls.step_lines import StepLines
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.body.optimizer_settings import OptimizerSettings
from ringleader.train.body.turn_state.carried_state import CarriedState
from ringleader.train.body.turn_state.first_forward import FirstForwardState
from ringleader.train.body.turn_state.update_inputs import UpdateInputs
from ringleader.train.device.deterministic_kernels import DeterministicKernels
from ringleader.train.generation.agreement import agreed
from ringleader.train.generation.committed_state import CommittedState
from ringleader.train.generation.comparing.member_comparison import MemberComparison
from ringleader.train.generation.comparing.member_findings import MemberFindings
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.control_word import WordLayout
from ringleader.train.generation.environment_check import EnvironmentCheck
from ringleader.train.generation.exchange_layout import ChosenSchedules, ExchangeLayout
from ringleader.train.generation.generation import Generation
from ringleader.train.generation.heal import Healing
from ringleader.train.generation.joining.briefing import CatchUp, JoinBriefing
from ringleader.train.generation.joining.donor import JoinDonor
from ringleader.train.generation.joining.follower import JoinFollower
from ringleader.train.generation.saving.copies import CheckpointCopies
from ringleader.train.generation.saving.saver import CheckpointSaver
from ringleader.train.generation.seating import Seating
from ringleader.train.generation.starting.attempt_start import AttemptStart
from ringleader.train.generation.starting.initial_weights import Beginning
from ringleader.train.job_warnings import JobWarnings
from ringleader.train.modes.local_sgd.outer_step import OuterStep
from ringleader.train.program_check.background import BackgroundCheck
from ringleader.train.rows.file_digests import FileDigests
from ringleader.train.state.buffers import CommittedBuffers
from ringleader.train.state.hidden_state import HiddenState
from ringleader.train.state.parameters.trained import TrainedParameters
from ringleader.train.state.update_randomness import UpdateRandomness


class Member:
    """One worker's committed position and current generation. `enter` brings it into the next one.

    No part knows the member: each has the context that all share, and the parts made before it that it calls.
    """

    def __init__(self, context: MemberContext, saver: CheckpointSaver, beginning: Beginning) -> None:
        self._context = context
        self.spec = context.spec
        self.rules = context.rules
        self.device = context.device
        self.held = context.held
        self.progress = context.progress
        self.inside = context.inside
        self.reporter = context.reporter
        self.coordinator = context.coordinator
        self.split = context.split
        self.timeline = context.timeline
        self.same_bits = context.same_bits
        self.scaling = context.scaling
        self.saver = saver
        self.beginning = beginning
        self.trained = TrainedParameters(context)
        self._choice = ChosenSchedules(context)
        self.laying = ExchangeLayout(context, self.trained, self._choice)
        self.warnings = JobWarnings(context, self.laying)
        self._make_program_state()
        self._make_handovers()

    def _make_program_state(self) -> None:
        """The parts that record and compare what the program's own lines make, and the state that goes to peers."""
        context = self._context
        self.lines = StepLines(context.held, context.progress)
        self.sections = ProgramSections(context, self.laying)
        self.variables = ProgramVariables(context, self.sections, self.warnings)
        self.functions = StepFunctions(context, self.sections, self.variables)
        self.carrying = CarriedState(context, self.variables)
        self.update_inputs = UpdateInputs(context, self.functions, self.variables)
        self.unkept = HiddenState(context, self.carrying.passes, self.carrying.only_shows)
        self.first = FirstForwardState(context, self.carrying.passes, self.variables.find)
        self.files = FileDigests()
        self.settings = OptimizerSettings(context, line_setting)
        self.draws = UpdateRandomness(context)
        self.kernels = DeterministicKernels(context)
        self.machines = EnvironmentCheck(context.spec, context.device)
        self.state = CommittedState(context, self.laying, self.sections, self.variables)
        self.comparison = MemberComparison(context, self.state, self.sections, self.variables, self.first)
        self.state.carry(
            artifacts=context.reporter.artifacts,
            files=self.files,
            trained=self.trained,
            machines=self.machines,
            unkept=self.unkept.found,
            first=self.first,
            draws=self.draws,
            kernels=self.kernels.found,
            comparison=self.comparison,
            functions=self.functions,
            warnings=self.warnings,
        )

    def _make_handovers(self) -> None:
        """The parts that give state to other members, or to a checkpoint, and take it from them."""
        context, state = self._context, self.state
        recorded = (self.sections, self.variables, self.trained)
        brief = partial(JoinBriefing.of, self.progress.calls, *recorded, context.held)
        self.donations = JoinDonor(context, state, self.laying, self.trained, brief)
        follower = JoinFollower(context, state, CatchUp(self.progress, *recorded), self.draws)
        self.securing = CheckpointCopies(context, state, self.comparison, self.saver)
        self.beside = BackgroundCheck(context, state, self.sections, self.variables)
        found = (self.unkept.found, self.first, self.draws, self.kernels.found, self.sections, self.variables)
        self.findings = MemberFindings(context, self.beside, self.machines, *found, self.comparison)
        state.carry(beside=self.beside, findings=self.findings)
        healing = Healing(
            context,
            state=state,
            laying=self.laying,
            sections=self.sections,
            machines=self.machines,
            start=AttemptStart(
                context,
                state=state,
                beginning=self.beginning,
                saver=self.saver,
                follower=follower,
                warnings=self.warnings,
                variables=self.variables,
            ),
        )
        self.seating = Seating(
            context,
            laying=self.laying,
            healing=healing,
            donations=self.donations,
            copies=self.securing,
            follower=follower,
            begun=self._tell_choices,
        )

    @property
    def current(self) -> Generation | None:
        """The generation that this member takes part in; None before its first, between two, and at the end."""
        return self._context.current

    @property
    def generation(self) -> Generation:
        """The generation that this member takes part in. Raises LookupError where there is none."""
        return self._context.generation

    @property
    def serves(self) -> bool:
        """Whether this member is a server."""
        return self._context.serves

    @property
    def ahead(self) -> bool:
        """See `MemberContext.ahead`."""
        return self._context.ahead

    @property
    def parameters(self) -> list[Parameter]:
        """Every parameter, frozen ones too; `trained` knows which of them are trained."""
        return self._context.parameters

    @property
    def tables(self) -> dict[Parameter, str]:
        """The names of the trained parameters whose gradients travel as rows."""
        return self.laying.named_tables

    @property
    def buffers(self) -> CommittedBuffers:
        return self._context.buffers

    @property
    def layout(self) -> WordLayout:
        return self._context.layout

    @property
    def outer(self) -> OuterStep | None:
        """The outer step, where a round of several batches is the transaction."""
        return self.laying.outer

    @property
    def term_count(self) -> int:
        """Terms of the gradient's sum: logical shards, or workers where a worker's slices run as one."""
        return self.spec.shards if self.same_bits else self.generation.plan.world

    # --- generations --------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """See `Seating.enter`."""
        if self.seating.due:
            self.lines.put_aside()
        self.seating.enter()
        self.lines.take_up()

    def heed(self) -> None:
        """Ask for a seat, at the begin of a call that is over, where this worker has none yet and was interrupted."""
        if not self.seating.seated and self.coordinator.interrupted():
            self.enter()

    def leave_at_planned_boundary(self) -> None:
        """See `Seating.leave_at_planned_boundary`."""
        self.seating.leave_at_planned_boundary()

    def broke(self, error: ExchangeBroken) -> None:
        """See `Seating.broke`."""
        self.seating.broke(error)

    def lay_anew(self) -> None:
        """Lay the exchange again: the trained parameters have changed, or the optimizers that train them."""
        self.donations.void()
        self.laying.lay_anew()

    def close(self) -> None:
        """Leave the group for good; weights stay."""
        self.donations.void()
        self.beside.close()
        self.variables.files.close()
        self.saver.close()
        self._context.leave()
        self.laying.release()

    def _tell_choices(self) -> None:
        """Report what was chosen for a generation, and what cannot be met in it."""
        self._choice.tell()
        self.warnings.look()

    # --- transactions -------------------------------------------------------------------------------------------------

    def check(self, reduced: Tensor) -> bool:
        """Whether the step happens: nobody has left the loop before it. Raises CallMismatch where members differ."""
        plan = self.generation.plan
        self.securing.hear(reduced, plan)
        self.findings.hear(self.layout.known(reduced, world=len(plan.members)))
        try:
            stays = agreed(self.layout, reduced, plan, self.generation.rank, self.progress.step)
        except CallMismatch as error:
            raise self.variables.explained(error) from None
        others = self.layout.lays(reduced, world=len(plan.members))
        return stays and not others and not self.comparison.differs(reduced)

    def publish(self) -> None:
        """See `MemberContext.publish`."""
        self._context.publish()

    def call_back(self) -> None:
        """Run the callbacks that waited until all weights are here."""
        self._context.call_back()

    def committed(self, *, ends: bool = True) -> None:
        """Run what follows a commit: all that is applied is committed and published.

        Args:
            ends: not a phase within a step, behind which nothing is saved, and no joiner begins.
        """
        if not ends:
            self.donations.committed(leaves=True)
            return
        self.securing.committed()
        self.donations.committed(leaves=self.seating.leaves)
        self.beside.committed()

    # --- session calls ------------------------------------------------------------------------------------------------

    def check_covered(self) -> None:
        """Check, as a loop begins, that the program has registered all that peers have, and a model for all that its
        optimizers are to train. Raises StepMisuse: it has not."""
        self._context.transfer.check_complete()
        self.held.check_covered()

    def take_over(self, *, buffers: bool) -> None:
        """Commit, as a call begins, what the lines before it made of kept objects, and of `buffers`."""
        if not self.seating.seated:
            return
        if buffers:
            self.buffers.adopt()
        self.held.kept.commit()

    def take_back(self) -> None:
        """Undo what a loop's body, left in its middle, did to buffers and kept objects since the commit."""
        if self.spec.followed or self.same_bits:
            self.buffers.rewind()
        self.held.kept.rewind()
        self.lines.take_up()

    def finish_call(self, number: int, result: Any = None) -> None:
        """Record that the call is over for all members at this committed step."""
        self.progress.finish_call(number, result)
        self.sections.finished(number)
