"""Loops over `session.steps`: this worker's slices of each step, and the program's lines behind it.

These lines run on every member at every step, on servers and on workers without a slice too, so that they may evaluate.
Who comes in at a step is given the state of its commit and runs the lines behind it itself, before its first slice: in
them evaluations that are over return what was recorded.

A step may have phases, each with the slices of all workers and an update of its own. Who comes in between two of them
runs the lines before the last update once more, with nothing of their effects: the state that it was given has them.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import chain
from typing import Any

from ringleader.errors import StepMisuse
from ringleader.program_text.current_line import CodeLine
from ringleader.train.between_calls.derived_weights import compute, derived_of
from ringleader.train.between_calls.loop_names import missed_lines
from ringleader.train.between_calls.session_calls import FinishedCall
from ringleader.train.body.autocast import Autocast
from ringleader.train.body.body_checks import BodyChecks
from ringleader.train.body.dry_turn import DryTurn
from ringleader.train.call_sequence import CallSequence
from ringleader.train.evaluation import Evaluation, EvaluationPlace, EvaluationRequest
from ringleader.train.generation.agreement import BRANCH_ON
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.mode import Mode
from ringleader.train.rows.random_streams import generators_of, own_generators, seed_all, seed_own
from ringleader.train.state.kept_objects import KeptStates

END = object()
Watch = Callable[[Iterator[Any], int], Iterator[Any]]
"""Gives the turns of a phase, each of which begins as all do, and looks at what it has changed."""


@dataclass(slots=True)
class ProgramStep:
    """A step as the program has it from `session.steps`.

    Attributes:
        phases: what the program iterates over, one after the other.
        step: committed steps before it; -1 where its step was committed before this member came.
        before: the settings and kept objects before its lines, where these run here once more: nothing of what they do
            counts.
        until: the phase from which on the lines count all the same.
        asked: evaluations in these lines so far.
    """

    phases: tuple[Generator[Any, None, None], ...]
    step: int = -1
    before: tuple[list[dict[str, Any]], KeptStates] | None = None
    until: int = -1
    asked: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the program has all slices behind it."""
        return _is_over(self.phases[-1])

    def ask(self) -> int:
        """Count an evaluation in these lines. Returns how many were before it."""
        self.asked += 1
        return self.asked - 1

    def run_again(self, settings: list[dict[str, Any]], kept: KeptStates, *, until: int) -> None:
        """Have these lines run on what they find, which is put back behind them, or before phase `until`."""
        self.before, self.until = (settings, kept), until

    def count(self) -> None:
        """Have the lines from here on count."""
        self.before = None


class LinesOnceMore:
    """Lines of a step that this member runs though they have run on the others, for what they leave to later ones.

    While they run, the program sees the position at which they ran. Behind them settings and kept objects are what they
    were before: nothing of what the lines do to these counts.
    """

    def __init__(self, member: Member, calls: CallSequence) -> None:
        self._member = member
        self._calls = calls

    @property
    def shown_step(self) -> int:
        """The committed steps that the program sees."""
        shown = self._calls.shown
        return self._member.progress.step if shown is None else shown.step

    def begin(self, running: ProgramStep, shown: FinishedCall, *, until: int = -1) -> None:
        """Have the lines of a step run so, all of them or those before phase `until`, and see what is `shown`."""
        held = self._member.held
        running.run_again(held.settings(), held.kept.copies(), until=until)
        self._calls.show(shown)

    def end(self, running: ProgramStep) -> None:
        """Have the lines of a step count from here on, where they ran once more."""
        if running.before is None:
            return
        settings, kept = running.before
        running.count()
        self._member.held.set(settings)
        self._member.held.kept.put(kept)
        self._calls.show(None)


class LineStreams:
    """What lines behind a step of a loop draw from, and the weights that hooks compute for them: the same on all
    members, whatever each has drawn and computed in its slices."""

    def __init__(self, member: Member, loop: BatchLoop) -> None:
        self._seed = member.spec.seed
        self._buffers = member.buffers
        self._loop = loop
        # Once: what the models consist of stays as it is in a loop, and to search a large one takes 2 ms.
        self._own = generators_of(member.held.models)
        self._derived = derived_of(member.held.models)

    def begin(self, step: int, *part: int | str) -> None:
        """Begin the lines behind that step, or behind a part of it."""
        seed_all(self._seed, "behind", step, *part)
        # A data set may have made some since.
        own = own_generators((self._loop.dataset, self._loop.collate))
        seed_own(chain(own, self._own), self._seed, "behind", step, *part)
        self._buffers.rewind()  # a slice's body may have changed them behind its step
        compute(self._derived)


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
        self._once_more = LinesOnceMore(member, calls)
        self._checks = checks
        self._evaluation = evaluation
        self._dry_turn = dry_turn
        self._casting = casting
        self._loop: BatchLoop | None = None
        self._streams: LineStreams | None = None
        self._running: ProgramStep | None = None
        self.ran = -1

    @property
    def inside(self) -> bool:
        """Whether the program is in a loop over `session.steps`."""
        return self._loop is not None

    def check_possible(self) -> None:
        """Raises StepMisuse: with this job's sync, no step is one that all workers commit together."""
        if not self._member.rules.commits_together:
            raise StepMisuse(
                "session.steps was called, but with this job's sync workers do not commit a step together: "
                "they lease items, or pass tokens.",
                hint="Use session.batches and evaluate between two loops, or sync: ring, local_sgd, or synchronous "
                "servers.",
            )

    def run(self, loop: BatchLoop, place: CodeLine, watched: Watch) -> Iterator[Any]:
        """The steps of the running loop, from the newest committed one on."""
        progress = self._member.progress
        self._loop, self._streams = loop, LineStreams(self._member, loop)
        self._steps.begin_steps(loop)
        self._member.functions.begin_steps()
        if progress.calls.offset and not progress.calls.is_finished(loop.number):
            for finding in missed_lines():
                self._member.variables.find(finding)
            at = progress.calls.evaluated
            if at is not None and at.step < progress.step:
                yield from self._again(loop, place, FinishedCall(None, at.step, at.loss))
            if progress.phases:
                yield from self._again(loop, place, FinishedCall(None, progress.step, progress.loss))
            else:
                yield from self._give(self._newest(loop, place))
        while not self._steps.over(loop):
            self._check_phases(loop)
            yield from self._give(self._next(loop, place, watched))

    def of_finished(self, loop: BatchLoop, place: CodeLine, ended: FinishedCall) -> Iterator[Any]:
        """A step of a loop that is over, without slices: the lines behind the loop may use what those inside it have
        made. These run as behind the newest step at which they evaluated."""
        self._loop, self._streams, at = loop, LineStreams(self._member, loop), ended.result
        yield from self._again(loop, place, ended if at is None else FinishedCall(None, at.step, at.loss))

    def leave(self) -> None:
        """End the loop, however the program has left it."""
        running = self._running
        if running is not None:
            if running.before is None and self._is_behind(running):
                self._member.lines.record()
                self._member.functions.lines_over()
            for slices in running.phases:
                slices.close()  # a variable of the program may hold them in their middle
        self._loop = self._running = None

    def evaluate(self, request: EvaluationRequest) -> dict[str, float]:
        """The scores behind the running step. Raises StepMisuse: the program is not there."""
        running, loop, member = *self._behind("evaluate"), self._member
        calls, number, step, asked = (
            member.progress.calls,
            loop.number,
            self._once_more.shown_step,
            running.ask(),
        )

        def known() -> Mapping[str, float] | None:
            scores = calls.evaluations_at(number, step)
            return scores[asked] if asked < len(scores) else None

        if running.before is None:
            member.lines.record()
            if known() is None:
                member.functions.lines_over()
        elif known() is None:
            raise StepMisuse(
                f"session.evaluate was called after step {step}, where the other workers did not call it.",
                hint=f"{BRANCH_ON} In a loop over session.steps, what one step's lines leave to those of a later step "
                f"belongs into session.keep.",
            )
        place = EvaluationPlace(number, ("evaluate", number, step, asked), known, member.progress.evaluate)
        with self._checks.calls.session_steps():
            scores = self._evaluation.result(place, request)
        seed_all(member.spec.seed, "behind", step, running.asked)
        return scores

    def runs_first(self, what: str) -> bool:
        """Whether the lines behind the running step run for the first time. Raises StepMisuse: `what` was called
        elsewhere."""
        running, _ = self._behind(what)
        return running.before is None

    def _behind(self, what: str) -> tuple[ProgramStep, BatchLoop]:
        """The step behind which the program is, and its loop. Raises StepMisuse: it is not behind one."""
        running, loop = self._running, self._loop
        # Nor where the last slice has just committed: other workers may be behind the loop over theirs.
        if running is None or loop is None or not (running.step < 0 or running.is_over):
            raise StepMisuse(
                f"session.{what} was called between two slices of a step, or two of its phases.",
                hint="Call it in the loop over session.steps, after the loops over the step's slices.",
            )
        return running, loop

    def _give(self, running: ProgramStep) -> Iterator[Any]:
        """Give the program a step; it comes back when it has run the lines behind."""
        self._running = running
        self.ran = -1 if self._loop is None else self._loop.number
        try:
            yield running.phases if self._loop is not None and self._loop.phases else running.phases[0]
        finally:
            counts = running.before is None
            self._once_more.end(running)
        if not self._is_behind(running):
            raise StepMisuse(
                "a step of session.steps was left before it was committed: each worker has slices of it.",
                hint="Iterate over each step to its end: for step in session.steps(…): for batch in step: … To end "
                "the loop, leave it by break before the first slice or after the last one, or call session.stop().",
            )
        if counts:
            self._end_lines()
        self._running = None

    def _again(self, loop: BatchLoop, place: CodeLine, shown: FinishedCall) -> Iterator[Any]:
        """A step whose lines have run on the other members, for what they leave to later lines."""
        running = self._without_slices(loop, place)
        self._once_more.begin(running, shown)
        yield from self._give(running)

    def _without_slices(self, loop: BatchLoop, place: CodeLine) -> ProgramStep:
        """A step that is committed already."""
        return ProgramStep(self._phases(loop, place, lambda _: iter(())))

    def _newest(self, loop: BatchLoop, place: CodeLine) -> ProgramStep:
        """The newest step, committed before this member came: the lines behind it count here, those between its phases
        are in the state that it was given."""
        running, progress = self._without_slices(loop, place), self._member.progress
        if len(loop.phases) > 1:
            shown = FinishedCall(None, progress.step - 1, progress.loss)
            self._once_more.begin(running, shown, until=len(loop.phases))
        return running

    def _next(self, loop: BatchLoop, place: CodeLine, watched: Watch) -> ProgramStep:
        """The next step, maybe in its middle."""
        progress = self._member.progress
        step, done = progress.stands

        def turns(phase: int) -> Iterator[Any]:
            # Not where this member was given the state behind that phase, or behind the step.
            if progress.stands == (step, phase) and not progress.calls.is_finished(loop.number):
                if phase:
                    self._steps.begin_phase(loop, phase)
                yield from watched(self._steps.step_turns(loop), phase)

        running = ProgramStep(self._phases(loop, place, turns), step)
        if done:
            self._once_more.begin(running, FinishedCall(None, step, progress.loss), until=done)
        return running

    def _phases(
        self, loop: BatchLoop, place: CodeLine, turns: Callable[[int], Iterator[Any]]
    ) -> tuple[Generator[Any, None, None], ...]:
        """What the program iterates over in a step: one without phases counts as one phase."""
        return tuple(self._slices(turns(n), loop, place, n) for n in range(len(loop.phases) or 1))

    def _check_phases(self, loop: BatchLoop) -> None:
        done = self._member.progress.phases
        if done and done >= len(loop.phases):
            raise StepMisuse(
                f"the job goes on after phase {done - 1} of a step, and this loop has {len(loop.phases)} phases.",
                hint="Go on with the program that made the checkpoint, up to its next one.",
            )

    def _begin_phase(self, phase: int) -> None:
        """Begin the slices of a phase, behind the lines before them. Raises StepMisuse: an earlier one is not over."""
        running = self._running
        if not phase or running is None:
            return
        if not _is_over(running.phases[phase - 1]):
            raise StepMisuse(
                f"phase {phase} of a step was begun before phase {phase - 1} was over.",
                hint="Each step runs all its phases, in their order, and each to its end. For several updates of one "
                "phase name its optimizer as often: phases=[critic_optimizer, critic_optimizer, generator_optimizer].",
            )
        if running.before is None:
            self._end_lines()

    def _end_lines(self) -> None:
        """End the lines behind the slices of a step, or of a phase."""
        self._member.settings.behind_step()
        self._member.lines.record()
        self._member.functions.lines_over()

    def _slices(
        self, turns: Iterator[Any], loop: BatchLoop, place: CodeLine, phase: int
    ) -> Generator[Any, None, None]:
        """The turns of a step, or of one of its phases; a dry one where the lines behind may need names of the body
        that no turn has made."""
        self._begin_phase(phase)
        self._steps.turns.enter(phase)
        dry = self._casting.turns(self._dry_turn.turns(place, loop, phase))
        for each in (turns, dry):
            while True:
                # The session commits in here where this worker has no slice.
                with self._checks.calls.session_steps(gives_slice=True):
                    batch = next(each, END)
                if batch is END:
                    break
                yield batch
        calls, running = self._member.progress.calls, self._running
        if calls.is_finished(loop.number) and running is not None and running.before is None:
            # It missed the commit, and was given the state of a member that has left the loop since.
            self._once_more.begin(running, calls.finished[loop.number])
        if running is not None and running.until == phase + 1:
            self._once_more.end(running)
        self._member.settings.begin_lines()
        stream = () if phase + 1 >= len(loop.phases) else ("phase", phase)
        if self._streams is not None:
            self._streams.begin(self._once_more.shown_step, *stream)
        self._checks.calls.watch_buffers()

    def _is_behind(self, running: ProgramStep) -> bool:
        """Whether the program is behind that step."""
        return running.is_over or self._member.progress.step > running.step


def _is_over(slices: Generator[Any, None, None]) -> bool:
    return getgeneratorstate(slices) == GEN_CLOSED
