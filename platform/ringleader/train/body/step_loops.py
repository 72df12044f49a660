"""Loops over `session.steps`: this worker's slices of each step, and the program's lines behind it.

These lines run on every member at every step, on servers and on workers without a slice too, so that they may evaluate.
Who comes in at a step is given the state of its commit and runs the lines behind it itself, before its first slice: in
them evaluations that are over return what was recorded.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

from ringleader.errors import StepMisuse
from ringleader.train.between_calls.session_calls import FinishedCall
from ringleader.train.body.autocast import Autocast
from ringleader.train.body.body_checks import BodyChecks
from ringleader.train.body.dry_turn import CodeLine, DryTurn
from ringleader.train.call_sequence import CallSequence
from ringleader.train.evaluation import Evaluation, EvaluationPlace, EvaluationRequest
from ringleader.train.generation.agreement import BRANCH_ON
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.mode import Mode
from ringleader.train.rows.random_streams import seed_all
from ringleader.train.state.kept_objects import KeptStates

END = object()


@dataclass(slots=True)
class ProgramStep:
    """A step as the program has it from `session.steps`.

    Attributes:
        slices: what the program iterates over.
        step: committed steps before it; -1 where its step was committed before this member came.
        before: the settings and kept objects before its lines, where these run here once more: nothing of what they do
            counts.
        asked: evaluations in these lines so far.
    """

    slices: Generator[Any, None, None]
    step: int = -1
    before: tuple[list[dict[str, Any]], KeptStates] | None = None
    asked: int = 0

    def ask(self) -> int:
        """Count an evaluation in these lines. Returns how many were before it."""
        self.asked += 1
        return self.asked - 1

    def run_again(self, settings: list[dict[str, Any]], kept: KeptStates) -> None:
        """Have these lines run on what they find, which is put back behind them."""
        self.before = (settings, kept)


class StepLoops:
    """One session's loops, one after the other. Called from its training thread.

    Attributes:
        ran: the number of the newest loop of which the program had a step here.
    """

    def __init__(
        self,
        member: Member,
        steps: Mode,
        calls: CallSequence,
        checks: BodyChecks,
        *,
        evaluation: Evaluation,
        dry_turn: DryTurn,
        casting: Autocast,
    ) -> None:
        self._member = member
        self._steps = steps
        self._calls = calls
        self._checks = checks
        self._evaluation = evaluation
        self._dry_turn = dry_turn
        self._casting = casting
        self._loop: BatchLoop | None = None
        self._running: ProgramStep | None = None
        self.ran = -1

    @property
    def inside(self) -> bool:
        """Whether the program is in a loop over `session.steps`."""
        return self._loop is not None

    def check_possible(self) -> None:
        """Raises StepMisuse: with this job's sync, no step is one that all workers commit together."""
        if not self._member.spec.sync.commits_together:
            raise StepMisuse(
                "session.steps was called, but with this job's sync workers do not commit a step together: "
                "they lease items, or pass tokens.",
                hint="Use session.batches and evaluate between two loops, or sync: ring, local_sgd, or synchronous "
                "servers.",
            )

    def run(
        self, loop: BatchLoop, place: CodeLine, watched: Callable[[Iterator[Any]], Iterator[Any]]
    ) -> Iterator[Any]:
        """The steps of the running loop, from the newest committed one on.

        Args:
            watched: makes each turn begin as all do, and looks at what it has changed.
        """
        progress = self._member.progress
        self._loop = loop
        self._steps.begin_steps(loop)
        if progress.calls.offset and not progress.calls.is_finished(loop.number):
            at = progress.calls.evaluated
            if at is not None and at.step < progress.step:
                yield from self._again(loop, place, FinishedCall(None, at.step, at.loss))
            yield from self._give(ProgramStep(self._slices(iter(()), loop, place)))
        while not self._steps.over(loop):
            turns = watched(self._steps.step_turns(loop))
            yield from self._give(ProgramStep(self._slices(turns, loop, place), progress.step))

    def of_finished(self, loop: BatchLoop, place: CodeLine, ended: FinishedCall) -> Iterator[Any]:
        """A step of a loop that is over, without slices: the lines behind the loop may use what those inside it have
        made. These run as behind the newest step at which they evaluated."""
        self._loop, at = loop, ended.result
        yield from self._again(loop, place, ended if at is None else FinishedCall(None, at.step, at.loss))

    def leave(self) -> None:
        """End the loop, however the program has left it."""
        running = self._running
        if running is not None:
            if running.before is None and self._is_behind(running):
                self._member.lines.record()
            running.slices.close()  # a variable of the program may hold them in their middle
        self._loop = self._running = None

    def evaluate(self, request: EvaluationRequest) -> dict[str, float]:
        """The scores behind the running step. Raises StepMisuse: the program is not there."""
        running, loop, member = self._running, self._loop, self._member
        # Nor where the last slice has just committed: other workers may be behind the loop over theirs.
        if running is None or loop is None or not (running.step < 0 or _is_over(running.slices)):
            raise StepMisuse(
                "session.evaluate was called between two slices of a step.",
                hint="Call it in the loop over session.steps, behind the loop over the step's slices.",
            )
        calls, number, step, asked = member.progress.calls, loop.number, self._shown_step, running.ask()

        def known() -> Mapping[str, float] | None:
            scores = calls.evaluations_at(number, step)
            return scores[asked] if asked < len(scores) else None

        if running.before is None:
            member.lines.record()
        elif known() is None:
            raise StepMisuse(
                f"session.evaluate was called behind step {step}, where the other workers did not call it.",
                hint=f"{BRANCH_ON} In a loop over session.steps, what one step's lines leave to those of a later step "
                f"belongs into session.keep.",
            )
        place = EvaluationPlace(number, ("evaluate", number, step, asked), known, member.progress.evaluate)
        with self._checks.calls.session_steps():
            scores = self._evaluation.result(place, request)
        seed_all(member.spec.seed, "behind", step, running.asked)
        return scores

    def _give(self, running: ProgramStep) -> Iterator[Any]:
        """Give the program a step; it comes back when it has run the lines behind."""
        self._running = running
        self.ran = -1 if self._loop is None else self._loop.number
        try:
            yield running.slices
        finally:
            if running.before is not None:
                settings, kept = running.before
                self._member.held.set(settings)
                self._member.held.kept.put(kept)
                self._calls.show(None)
        if not self._is_behind(running):
            raise StepMisuse(
                "a step of session.steps was left before it was committed: each worker has slices of it.",
                hint="Iterate over each step to its end: for step in session.steps(…): for batch in step: … To end "
                "the loop, leave it by break before the first slice or behind the last one, or call session.stop().",
            )
        if running.before is None:
            self._member.settings.behind_step()
            self._member.lines.record()
        self._running = None

    def _again(self, loop: BatchLoop, place: CodeLine, shown: FinishedCall) -> Iterator[Any]:
        """A step whose lines have run on the other members, for what they leave to later lines."""
        running = ProgramStep(self._slices(iter(()), loop, place))
        self._begin_again(running, shown)
        yield from self._give(running)

    def _begin_again(self, running: ProgramStep, shown: FinishedCall) -> None:
        held = self._member.held
        running.run_again(held.settings(), held.kept.copies())
        self._calls.show(shown)

    def _slices(self, turns: Iterator[Any], loop: BatchLoop, place: CodeLine) -> Generator[Any, None, None]:
        """The turns of a step; a dry one where the lines behind may need names of the body that no turn has made."""
        dry = self._casting.turns(self._dry_turn.turns(place, loop))
        for each in (turns, dry):
            while True:
                # The session commits in here where this worker has no slice.
                with self._checks.calls.session_steps():
                    batch = next(each, END)
                if batch is END:
                    break
                yield batch
        calls, running = self._member.progress.calls, self._running
        if calls.is_finished(loop.number) and running is not None and running.before is None:
            # It missed the commit, and was given the state of a member that has left the loop since.
            self._begin_again(running, calls.finished[loop.number])
        self._member.settings.begin_lines()
        # The lines behind draw the same on all members, whatever each drew before.
        seed_all(self._member.spec.seed, "behind", self._shown_step)

    @property
    def _shown_step(self) -> int:
        """The committed steps that the program sees."""
        shown = self._calls.shown
        return self._member.progress.step if shown is None else shown.step

    def _is_behind(self, running: ProgramStep) -> bool:
        """Whether the program is behind that step."""
        return _is_over(running.slices) or self._member.progress.step > running.step


def _is_over(slices: Generator[Any, None, None]) -> bool:
    return getgeneratorstate(slices) == GEN_CLOSED
