"""A worker's whole run of a hosted program: in each generation from the top, until all members' programs end well."""

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep

from ringleader.elastic import ParkReport, Plan
from ringleader.elastic.state import PAUSE, SHORT
from ringleader.runtime.hosted.commands import check_can_run, command_of
from ringleader.runtime.hosted.program import HostedProgram, told_status
from ringleader.runtime.hosted.store import GenerationStore
from ringleader.runtime.hosted.variables import CHECKPOINT_DIR, snapshots_of, variables
from ringleader.runtime.messages import MemberTask, ProcessIdentity
from ringleader.runtime.worker.plan_client import PlanClient
from ringleader.runtime.worker.reporter import WorkerReporter
from ringleader.spec.program.framework import why_other_bits
from ringleader.train.job_warnings import WARNING
from ringleader.train.ports import Seat
from ringleader.train.run import WorkerResult
from ringleader.train.time_split import TimeSplit

LOOK_S = 0.05
STOP_S = 10.0
"""What the program may take to save at SIGTERM, where the group stops by plan."""
BROKEN_STOP_S = 1.0
"""The same where a member was lost: the others wait in exchanges that never end."""
SETTLE_S = 0.5
"""The wait before a program that failed counts as failing by itself: the loss of a member, or a plan, may be the cause,
and the news of it under way."""
PROGRAM, FINISH = "program", "finish"
"""Phases, in which no deadline runs."""


class HostedRun:
    """The run of one member.

    Args:
        folder: the job's package, unpacked.
        identity: this worker's process, and its node.
        python_path: the folders that the program imports from before what is installed.
        environ: the variables of this process, with the job's own and its secrets.
    """

    def __init__(
        self,
        task: MemberTask,
        folder: Path,
        identity: ProcessIdentity,
        *,
        seats: PlanClient,
        reporter: WorkerReporter,
        python_path: list[str],
        environ: Mapping[str, str],
    ) -> None:
        self._task, self._folder, self._identity = task, folder, identity
        self._given = [*task.spec.env, *task.spec.secrets, "OMP_NUM_THREADS"]
        self._seats, self._reporter = seats, reporter
        self._python_path, self._environ = python_path, environ
        self._split = TimeSplit()

    def run(self) -> WorkerResult:
        """Run the program until it ends well on all members of a generation.

        Raises:
            EntrypointImport: the package has no such program.
            Dismissed: this worker has to leave.
        """
        check_can_run(self._task, self._folder)
        # The program is told of this folder by its environment, and need not make it.
        snapshots_of(self._task.checkpoints).mkdir(parents=True, exist_ok=True)
        self._reporter.timed(self._split)
        parked = ParkReport(0, 0, 0, "")
        while True:
            with self._split.idle():
                seat = self._seats.next_seat(parked)
            assert isinstance(seat, Seat)  # nobody is followed: members hold no state
            plan = seat.plan
            # Nothing here is to be saved: the program was asked to when it was stopped.
            why = "" if plan.cause in (PAUSE, SHORT) else self._generation(plan)
            if why is None:
                return self._result(plan)
            parked = ParkReport(plan.generation, 0, 0, why)

    def _generation(self, plan: Plan) -> str | None:
        """Run the program in one generation. Returns why that is over, empty where this member is not at fault; None
        where the program has ended well on all members."""
        try:
            store = GenerationStore(plan.meeting.torch_store, plan.rank_of(self._task.worker), plan.world)
            store.say_node(self._identity.node)
            command = command_of(self._task, store, self._python_path, given=self._given)
            self._enter(PROGRAM)
            # A member that only holds a place waits for the others like one whose program has ended well.
            why = "" if command is None else self._program(command, plan)
            return self._await_others(store) if why == "" and not self._over else why
        except RuntimeError as error:
            return (
                f"{self._task.worker} lost the store of its generation, {plan.meeting.torch_store}: {error}"
            )

    def _program(self, command: list[str], plan: Plan) -> str:
        """Run the program to its end, or the generation's. Returns why it failed by itself; empty where it did not."""
        host = self._identity.host
        given = variables(self._task, plan, host, self._python_path, self._environ)
        program = HostedProgram(command, given, self._folder, self._reporter.lines)
        try:
            while (status := program.ended(LOOK_S)) is None:
                if self._over:
                    program.stop(BROKEN_STOP_S if self._seats.interrupted() else STOP_S)
                    return ""
        finally:
            # Behind a good end too: what it has started in the background must not outlive it.
            program.kill()
        return "" if status == 0 or self._explained() else self._told(program, plan, status)

    def _enter(self, phase: str) -> None:
        self._reporter.progress(step=0, total_steps=None, epoch=0, phase=phase, rows=0)

    @property
    def _over(self) -> bool:
        return self._seats.interrupted() or self._seats.plan_pending()

    def _explained(self) -> bool:
        """Whether the generation is over for another reason than this program's failure."""
        until = monotonic() + SETTLE_S
        while not self._over and monotonic() < until:
            sleep(LOOK_S)
        return self._over

    def _await_others(self, store: GenerationStore) -> str | None:
        self._enter(FINISH)
        store.finish()
        while not store.all_finished:
            # Not once all are in: some may have left by then, and the program is over.
            if self._over and store.withdraw():
                return ""
            sleep(LOOK_S)
        return None

    def _told(self, program: HostedProgram, plan: Plan, status: int) -> str:
        words = program.last_words()
        said = f" Its last lines:\n{words}" if words else " It printed nothing."
        where = (
            f"on {self._task.worker} (rank {plan.rank_of(self._task.worker)}, generation {plan.generation})"
        )
        return f"{self._task.spec.entrypoint.split()[0]} {told_status(status)} {where}.{said}"

    def _result(self, plan: Plan) -> WorkerResult:
        split = self._split
        return WorkerResult(
            digest="",
            steps=0,
            samples=0,
            loss=None,
            scores={},
            generations=plan.generation,
            reproducible=False,
            reproducible_why=why_other_bits(self._task.spec.framework, self._task.spec.sync),
            wall_s=split.wall_s,
            compute_s=split.compute_s,
            exposed_s=split.exposed_s,
            idle_s=split.idle_s,
            recovery_s=split.recovery_s,
        )


def warn_of_promises(task: MemberTask, report: Callable[[str, int, dict[str, str]], None]) -> None:
    """Report once what a hosted job does not keep, and where its program saves."""
    framework = task.spec.framework
    message = (
        f"framework: {framework} runs the program as it is: its bits, steps and rows are not kept. After the loss of a "
        f"worker, a resize or a pause all its processes start anew, and what they have not saved is computed again."
    )
    hint = (
        f"Have it save to the folder in ${CHECKPOINT_DIR} ({snapshots_of(task.checkpoints)}), at SIGTERM too, and "
        f"go on from there."
    )
    report(WARNING, 0, {"about": "framework", "message": message, "hint": hint})
