"""The start of an attempt: from the newest checkpoint, with the weights of another job, or from nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from ringleader.comm.communicator import end_process
from ringleader.elastic import Plan
from ringleader.program_text.current_line import running_place
from ringleader.train.between_calls.findings import VariableFinding
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.generation.committed_state import CommittedState
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.joining.follower import JoinFollower
from ringleader.train.generation.saving.saver import CheckpointSaver, joined
from ringleader.train.generation.starting.initial_weights import Beginning
from ringleader.train.job_warnings import JobWarnings
from ringleader.train.state.fingerprints import first_difference, prints

INITIAL = "the initial weights"
SEED_CURE = (
    "those of one worker are used, and another run of the job would begin with others. Seed every generator that draws "
    "them (torch, numpy and random are seeded), and let no clock and no order of a set decide on them; or begin with "
    "init_from"
)


class AttemptStart:
    """One member's part in the start of its attempt. Called from the training thread."""

    def __init__(
        self,
        context: MemberContext,
        *,
        state: CommittedState,
        beginning: Beginning,
        saver: CheckpointSaver,
        follower: JoinFollower,
        warnings: JobWarnings,
        variables: ProgramVariables,
    ) -> None:
        self._context = context
        self._state = state
        self._beginning = beginning
        self._saver = saver
        self._follower = follower
        self._warnings = warnings
        self._variables = variables

    def begin(self, plan: Plan, me: str) -> None:
        """Drop the initial weights at this member's first seat. Where nothing is trained yet in this attempt the member
        that the others heal from begins with the newest checkpoint, or tells what the job begins with.

        Raises:
            CheckpointUnreadable: the initial weights cannot be read, or none of them fits.
        """
        context, progress = self._context, self._context.progress
        self._beginning.begin(plan, self._warnings, self._variables if context.same_bits else None)
        receivers = {receiver for receiver, _ in plan.heals}
        if plan.start_transaction or progress.transactions or progress.changed or me in receivers:
            return
        if self._follower.stale:
            end_process("the attempt starts from step 0, but this process holds weights of a lost member")
        if not (plan.attempt > 1 and self._resume(plan)):
            self._beginning.tell(context.held, self._saver, self._warnings, plan.generation)

    @contextmanager
    def compared(self, plan: Plan, donor: int) -> Iterator[None]:
        """Compare this member's initial weights with those that it is given in the block by the member of rank `donor`,
        and report a difference: nothing shows it later."""
        context = self._context
        # Another kind of device draws other numbers from the same seed: a server may have none of the workers'.
        alike = donor < plan.world or context.device.type == "cpu"
        fresh = context.same_bits and alike and plan.start_transaction == 0 and self._is_untrained
        before = prints(context.held, {}, optimizers=False) if fresh else {}
        yield
        if before and self._is_untrained:
            name = first_difference(before, prints(context.held, {}, optimizers=False))
            if name:
                how = f"differ between workers, {name} among them"
                self._variables.find(VariableFinding(INITIAL, f"above {running_place()}", SEED_CURE, how))

    @property
    def _is_untrained(self) -> bool:
        progress = self._context.progress
        return not (progress.transactions or progress.changed or progress.calls.finished)

    def _resume(self, plan: Plan) -> bool:
        """Take up the newest checkpoint, on the member that the others heal from. Returns whether there is one."""
        context = self._context
        found = self._saver.newest(context.device)
        if found is None:
            self._saver.tell_nothing(plan.generation)
            return False
        rest = context.transfer.take(joined(found.states))
        # Without the costs: they are of the links of an earlier attempt, and are measured again.
        self._state.restore(rest | {"costs": None, "lacks_weights": False}, whole=True)
        context.reporter.restore(rest["records"])  # the last of them may have been told nowhere
        self._saver.tell_start(found, plan.generation, len(context.progress.calls.finished))
        return True
