"""The loops of a session over its data sets: their turns, what is checked in each, and the dry turn behind one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ringleader.errors import NonFiniteLoss
from ringleader.program_text.current_line import CodeLine
from ringleader.train.between_calls.loop_names import warn_of_bodies
from ringleader.train.between_calls.session_calls import FinishedCall
from ringleader.train.body.autocast import Autocast
from ringleader.train.body.behind_step import leaves_behind_step
from ringleader.train.body.body_checks import BodyChecks
from ringleader.train.body.call_checks import CLIP_NORM
from ringleader.train.body.dry_turn import DryTurn
from ringleader.train.body.step_loops import StepLoops
from ringleader.train.body.unready_gradient import reads_gradients
from ringleader.train.call_sequence import CallSequence
from ringleader.train.evaluation import Evaluation
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.mode import Mode
from ringleader.train.rows.blocks import blocks_of, order_for, warn_of_decoding
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.order.batch_sizes import steps_in_epoch
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.rows.order.skipped_steps import KeptSteps, StepNumbers
from ringleader.train.rows.random_streams import (
    Generator,
    generators_of,
    own_generators,
    resumed_behind,
)
from ringleader.train.rows.short_batch import check_last_batch
from ringleader.train.rows.slices import Collate
from ringleader.train.weights_file import check_writable


@dataclass(frozen=True, slots=True)
class LoopRequest:
    """One `session.batches` or `session.steps`: its arguments, and the place of the loop in the program.

    Attributes:
        by_steps: the program goes step by step, with lines behind each.
        phases: see `BatchLoop`.
        clips: what the program writes to have its gradients clipped.
        reads_ahead: see `BatchLoop`.
    """

    dataset: Any
    place: CodeLine
    shuffle: bool
    collate: Collate | None
    loader_workers: int
    drop_last: bool
    by_steps: bool = False
    phases: tuple[tuple[int, ...], ...] = ()
    clips: str = CLIP_NORM
    reads_ahead: bool = True

    @property
    def call(self) -> str:
        """The call, as the program writes it."""
        return "session.steps" if self.by_steps else "session.batches"


class DatasetLoops:
    """One session's loops, one after the other.

    Attributes:
        epochs: the number of loops that have begun.
        total_steps: the steps of all of them together; None where the program has not told.
        dry_turn: runs a finished loop's body once where no turn of it ran.
        by_steps: those that go step by step.
    """

    def __init__(
        self,
        member: Member,
        steps: Mode,
        calls: CallSequence,
        checks: BodyChecks,
        *,
        casting: Autocast,
        loaders: LoaderProcesses,
        evaluation: Evaluation,
    ) -> None:
        self.epochs = 0
        self.total_steps: int | None = None
        self.dry_turn = DryTurn(member, member.device)
        self.by_steps = StepLoops(
            member, steps, calls, checks, evaluation=evaluation, dry_turn=self.dry_turn, casting=casting
        )
        self._member = member
        self._steps = steps
        self._calls = calls
        self._checks = checks
        self._casting = casting
        self._loaders = loaders
        self._numbers = StepNumbers(member.spec.data.skip)
        self._closed = False
        self._dry_call: FinishedCall | None = None
        # What is shown is of a step that is computed once more.
        self._shows_ahead = False
        # How often this member was healed when the running loop's files were checked; -1: they were not.
        self._checked = -1

    def expect(self, steps: int) -> None:
        """Note the steps of all loops together, those that are over included, for the progress that is shown."""
        self.total_steps = steps

    def run(self, number: int, request: LoopRequest) -> Iterator[Any]:
        """The turns of call `number`'s loop on this worker; none where it is over, but for a dry one."""
        member, calls = self._member, self._member.progress.calls
        index, self.epochs = self.epochs, self.epochs + 1
        if index == 0:
            # Before the first step: else it would fail when the job's weights are written.
            check_writable(member.held.module)
            warn_of_bodies(member.warnings, member.held.models)
        kept = self._kept(number, request)
        if request.by_steps or not calls.is_finished(number) or self.dry_turn.needs(request.place, number):
            loop = self._loop(number, index, request, kept)
            try:
                with resumed_behind(self._generators(request)):
                    yield from self._turns(loop, request)
                    yield from self._run_dry(loop, request)
            except GeneratorExit:
                if not self._closed:  # an iterator that a traceback held
                    self._calls.left(number)
                raise
        member.trained.left()
        self._calls.after(number)

    def step(self, loss: Tensor, weight: float | None, values: dict[str, Any]) -> None:
        """End a turn. Raises StepMisuse, and NonFiniteLoss, which the next call raises again."""
        # torch advises to run the backward outside autocast.
        self._casting.leave()
        if self.dry_turn.runs:
            if self.by_steps.inside:
                self._steps.turns.learn(values)
            if self._dry_call is not None:
                self._calls.show(self._dry_call)
            return
        with self._checks.calls.session_steps():
            if self._steps.turns.running is not None:
                self._checks.structure.check_body()
                self._checks.modes.at_step()
                self._member.settings.end_turn()
            try:
                self._steps.step(loss, weight, values)
            except NonFiniteLoss as error:
                self._calls.raise_again(error)
                raise
            self._member.settings.step_returned()
            shown = self._member.beside.repeated.shown
            if shown is not None:
                self._calls.show(shown)
                self._shows_ahead = True

    def close(self) -> None:
        """End with the session, inside a turn too."""
        self._closed = True
        self._casting.leave()

    def _generators(self, request: LoopRequest) -> Iterator[tuple[str, Generator]]:
        """The program's own generators that start anew for each slice."""
        yield from own_generators((request.dataset, request.collate))
        yield from generators_of(self._member.held.models)

    def _kept(self, number: int, request: LoopRequest) -> KeptSteps | None:
        """The steps of a loop that `data.skip` does not leave out; None where it names none."""
        spec = self._member.spec
        if not spec.data.skip:
            return None
        rows, ended = len(request.dataset), [call.step for call in self._member.progress.calls.finished]
        steps = steps_in_epoch(rows, spec.batch.global_size, drop_last=request.drop_last)
        return self._numbers.begin(number, steps, ended)

    def _loop(self, number: int, index: int, request: LoopRequest, kept: KeptSteps | None) -> BatchLoop:
        spec, dataset = self._member.spec, request.dataset
        data = order_for(spec, dataset)
        by_blocks = request.shuffle and data.order == "block"
        if request.shuffle and not by_blocks:
            warn_of_decoding(dataset, -(-spec.batch.global_size // spec.shards), self._member.warnings)
        # Not the steps committed now: a dry turn is one of a loop that is over.
        before = self._member.progress.calls.before(number)
        epoch = Epoch.shuffled(
            rows=len(dataset),
            batch=spec.batch.size_at(before),
            shards=spec.shards,
            seed=spec.seed,
            epoch=index,
            shuffle=request.shuffle,
            drop_last=request.drop_last,
            data=data,
            block_rows=blocks_of(dataset, self._member.warnings) if by_blocks else None,
            changes=spec.batch.changes_behind(before),
        )
        check_last_batch(self._member, epoch, len(dataset))
        if kept is not None:
            epoch = epoch.keeping(kept)
        code, line = request.place
        return BatchLoop(
            number,
            index,
            f"{Path(code.co_filename).name}:{line}",
            epoch,
            dataset,
            request.collate,
            request.loader_workers,
            self.total_steps,
            self._loaders,
            leaves_behind_step(request.place),
            request.phases,
            request.reads_ahead,
        )

    def _turns(self, loop: BatchLoop, request: LoopRequest) -> Iterator[Any]:
        """The loop's turns, or its steps."""
        if self._member.progress.calls.is_finished(loop.number):
            return
        self._calls.open_loop(loop.number, request.call)
        self._begin_watch(request)
        watched = partial(self._watched, loop, request.place)
        try:
            by_steps = request.by_steps
            turns = (
                self.by_steps.run(loop, request.place, watched)
                if by_steps
                else watched(self._steps.run(loop))
            )
            reads = reads_gradients(request.place)
            yield from self._checks.calls.turns(turns, request.call, request.clips, reads_gradients=reads)
            if self._steps.in_step:
                # What a body does to buffers behind its last step differs by worker.
                self._member.buffers.rewind()
            self._calls.tell_between()
        except NonFiniteLoss as error:
            self._calls.raise_again(error)
            raise
        finally:
            self.by_steps.leave()
            self._calls.close_loop()

    def _begin_watch(self, request: LoopRequest) -> None:
        self._checked = -1
        self._member.settings.begin_loop()
        self._checks.modes.begin_loop(request.call)
        self._member.carrying.begin_loop(request.dataset, by_steps=request.by_steps)

    def _watched(
        self, loop: BatchLoop, place: CodeLine, turns: Iterator[Any], phase: int = 0
    ) -> Iterator[Any]:
        """The same turns; each begins with the committed settings, and what it sets before its step goes with that
        step."""
        settings, carrying, modes = self._member.settings, self._member.carrying, self._checks.modes
        progress = self._member.progress
        for batch in self._casting.turns(self.dry_turn.watch(place, loop.number, turns, phase)):
            # Behind each healing: only now is it known with which files others have begun.
            if self._checked != progress.heals:
                self._member.files.check(loop.number, loop.dataset)
                self._checked = progress.heals
            if self._shows_ahead:
                self._calls.show(None)
                self._shows_ahead = False
            settings.begin_turn()
            modes.begin_turn()
            carrying.begin_turn()
            yield batch
            carrying.end_turn()
            self._member.update_inputs.end_turn()
            settings.behind_turn()

    def _run_dry(self, loop: BatchLoop, request: LoopRequest) -> Iterator[Any]:
        """Run a dry turn behind a finished loop of which no turn ran here, for the names that its body gives."""
        calls, number = self._member.progress.calls, loop.number
        ended = calls.finished[number]
        if request.by_steps:
            # Also where turns ran here of earlier loops: the scores that the lines have are of this one.
            if self.by_steps.ran == number:
                return
            turns, shown = self.by_steps.of_finished(loop, request.place, ended), ended
        else:
            self._dry_call = ended
            turns = self._casting.turns(self.dry_turn.turns(request.place, loop))
            # What the last turn saw: a loop that was left showed its end before a step, any other one behind it.
            shown = ended if number in calls.left else replace(ended, step=max(0, ended.step - 1))
        self._calls.open_dry(shown, request.call)
        try:
            yield from turns
        finally:
            self.by_steps.leave()
            self._dry_call = None
            self._calls.close_dry()
