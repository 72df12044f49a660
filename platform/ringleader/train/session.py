"""The session: everything of the platform that a training function uses."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.comm.timeline import Timeline
from ringleader.errors import NonFiniteLoss, StepMisuse
from ringleader.spec import JobSpec
from ringleader.train.best_weights import SCORE, WEIGHTS, BestScore, BestWeights
from ringleader.train.between_calls.session_calls import FinishedCall
from ringleader.train.body.autocast import Autocast
from ringleader.train.body.call_checks import CallChecks
from ringleader.train.body.dry_turn import CodeLine, DryTurn, calling_place
from ringleader.train.body.training_modes import TrainingModes
from ringleader.train.commit_callbacks import CallbackState
from ringleader.train.evaluation import Evaluation, EvaluationRequest, Score
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.environment_check import device_of
from ringleader.train.generation.member import Member
from ringleader.train.generation.saving.saver import CheckpointSaver
from ringleader.train.generation.settled_records import SettledRecords
from ringleader.train.generation.starting.initial_weights import Beginning
from ringleader.train.job_warnings import WARNING
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.registry import mode_of
from ringleader.train.ports import Coordinator, RecordSink
from ringleader.train.rows.cursor import Epoch, steps_in_epoch
from ringleader.train.rows.dataset_copies import Near, bring
from ringleader.train.rows.dataset_pass import DatasetPass
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.random_streams import seed_all
from ringleader.train.rows.short_batch import check_last_batch
from ringleader.train.rows.slices import Collate, check_dataset
from ringleader.train.source.counted_loops import check_not_counted
from ringleader.train.source.optimizer_attributes import carried_by
from ringleader.train.state.model_structure import ModelStructure
from ringleader.train.state.progress import Progress
from ringleader.train.state.registration import check_kept, check_model, check_optimizer, check_scheduler
from ringleader.train.state.schedules import give_back
from ringleader.train.state.served_optimizer_state import ServedOptimizerStates
from ringleader.train.state.training_state import Stateful, TrainingState
from ringleader.train.time_split import TimeSplit
from ringleader.train.weights_file import check_writable

NO_CUDA = "the worker has no CUDA device and trains on the CPU, as workers.device is auto."
M = TypeVar("M", bound=nn.Module)
O = TypeVar("O", bound=Optimizer)  # noqa: E741
S = TypeVar("S", bound=LRScheduler)


class Session:
    """The one argument of a training function: the same in every mode, for any number of workers.

    There is no rank and no world here. Branch only on what is equal everywhere: what `evaluate` returns, `loss`,
    `global_step` and `epoch`. What has to happen once per step goes through `scheduler`, `on_commit` and `keep`.
    """

    def __init__(
        self,
        spec: JobSpec,
        coordinator: Coordinator,
        sink: RecordSink,
        checkpoints: str | None = None,
        near: Near | None = None,
        *,
        device: torch.device | None = None,
        saver: CheckpointSaver | None = None,
        beginning: Beginning | None = None,
    ) -> None:
        self._spec = spec
        self._device = device or device_of(spec)
        self._sink = sink
        self._near = near
        self._held = TrainingState()
        progress = Progress()
        self._calls = progress.calls
        self._split = TimeSplit(Timeline() if spec.debug.trace else None)
        context = MemberContext(
            spec=spec,
            device=self._device,
            held=self._held,
            progress=progress,
            reporter=SettledRecords(sink),
            coordinator=coordinator,
            split=self._split,
        )
        self._member = Member(
            context,
            saver or CheckpointSaver(spec, checkpoints, sink),
            beginning or Beginning(spec.init_from, optimizers=spec.init_optimizers),
        )
        if spec.workers.gpus and self._device.type == "cpu":
            self._member.warnings.add("device", NO_CUDA, "Set workers.device: cuda to fail instead.")
        self._steps = mode_of(spec.sync)(self._member, sink, self._device)
        self._loaders = LoaderProcesses(spec.seed)
        self._casting = Autocast(spec.precision, self._device)
        self._evaluation = Evaluation(self._member, sink, self._device, self._casting)
        self._dry_turn = DryTurn(self._member, self._device)
        self._make_checks()
        self._begin_program()

    def _make_checks(self) -> None:
        """The parts that watch what the program does to its models and optimisers."""
        self._structure = ModelStructure(self._held)
        self._modes = TrainingModes(self._held, self._warn)
        self._states = ServedOptimizerStates(self._held, on=bool(self._spec.sync.server_count))
        self._held.calling_back = CallbackState(self._held, self._warn, around=self._states.hidden).watched
        self._checks = CallChecks(
            self._held,
            accumulates=lambda: self._steps.accumulates,
            warn=self._warn,
            states=self._states,
        )

    def _begin_program(self) -> None:
        """The place in the program before its first line."""
        self._epochs = 0
        self._total_steps: int | None = None
        self._open_call: int | None = None
        self._inside = self._closed = False
        self._diverged: Callable[[], NonFiniteLoss] | None = None
        self._past: FinishedCall | None = None
        self._dry_call: FinishedCall | None = None
        self._scores: dict[str, float] = {}

    @property
    def params(self) -> dict[str, Any]:
        """`params` of the job file."""
        return dict(self._spec.params)

    @property
    def device(self) -> torch.device:
        """The device of models and batches: CUDA where the job asks for a GPU, the CPU otherwise."""
        return self._device

    @property
    def global_step(self) -> int:
        """The number of committed steps."""
        return self._member.progress.step if self._past is None else self._past.step

    @property
    def epoch(self) -> int:
        """The number of `batches` loops before the running (or last) one."""
        return max(0, self._epochs - 1)

    @property
    def loss(self) -> float | None:
        """The weighted mean loss of the newest committed step over all rows; None before the first."""
        return self._member.progress.loss if self._past is None else self._past.loss

    def model(self, model: M) -> M:
        """Register a model: its parameters are kept in step, its buffers are those that the first shard leaves.

        Where the job has `init_from`, the model has those weights when this returns, on every worker alike.
        """
        self._before_first_call("model")
        check_model(model)
        self._held.models.append(model.to(self._device))
        self._member.beginning.give(model)
        return model

    def optimizer(self, optimizer: O, *, clip_norm: float | None = None) -> O:
        """Register an optimiser; the session steps it. `clip_norm` bounds the 2-norm of its whole gradient.

        Between two loops another one may take the place of one with the same parameters, in a ring, on synchronous
        servers and with local SGD.

        Raises:
            StepMisuse: for `clip_norm` with several `ssp` servers, unless each holds everything; for an optimiser that
                has some parameters of another one.
        """
        self._between("optimizer")
        check_optimizer(optimizer)
        sync = self._spec.sync
        if clip_norm is not None and sync.consistency == "ssp" and sync.in_parts:
            raise StepMisuse(
                f"clip_norm needs the whole gradient of a clock, which {sync.server_count} ssp servers hold in parts.",
                hint="Use one server (sync.servers: 1), consistency: sync, or no clip_norm.",
            )
        self._held.add_optimizer(optimizer, clip_norm)
        self._checks.optimizer(optimizer)
        self._states.add(optimizer)
        if sync.same_bits:
            for finding in carried_by(optimizer):
                self._member.variables.find(finding)
        return optimizer

    def scheduler(self, scheduler: S) -> S:
        """Register a learning-rate schedule; the session steps it once per committed step, and nobody else does.

        Raises:
            StepMisuse: it is none, or takes a metric at each step, as ReduceLROnPlateau does.
        """
        self._between("scheduler")
        check_scheduler(scheduler)
        self._held.add_scheduler(scheduler)
        return scheduler

    def keep(self, name: str, kept: Stateful) -> None:
        """Register an object with state_dict/load_state_dict: rolled back on replay, healed with the weights."""
        self._between("keep")
        check_kept(name, kept)
        self._held.kept[name] = kept

    def best(self, model: nn.Module, score: float, *, lowest: bool = False) -> bool:
        """Keep a copy of the model's weights if `score` is the best so far: committed state, healed and checkpointed.

        Call it between two loops, with a score that is equal everywhere; `load_best` gives the weights back.

        Args:
            lowest: a smaller score is better.

        Returns:
            whether it was the best.
        """
        best, weights = self._best()
        if not best.improves(float(score), lowest=lowest):
            return False
        # Watched reads would record all weights at this boundary; the copy ends up in committed state anyway.
        with self._member.sections.unwatched():
            weights.keep(model)
        return True

    def load_best(self, model: nn.Module) -> None:
        """Give the model the weights that `best` kept.

        Raises:
            StepMisuse: it kept none.
        """
        self._best()[1].put_back(model)

    def _best(self) -> tuple[BestScore, BestWeights]:
        kept = self._held.kept
        if SCORE not in kept:
            # Two objects: boundaries always record the small score, the weights only where the program touches them.
            self.keep(SCORE, BestScore())
            self.keep(WEIGHTS, BestWeights())
        best, weights = kept[SCORE], kept[WEIGHTS]
        assert isinstance(best, BestScore)
        assert isinstance(weights, BestWeights)
        return best, weights

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` once per committed step, on every worker, after the weights have changed.

        Where parameter servers publish the weights it may not change them: that fails the job, naming the parameter.
        """
        self._held.callbacks.append(callback)

    def total_steps(self, dataset: Any, *, epochs: int, drop_last: bool = False) -> int:
        """Steps that `epochs` passes over `dataset` take, for schedules and for the progress shown.

        Args:
            drop_last: as it is given to `batches`.
        """
        check_dataset(dataset)
        steps = steps_in_epoch(len(dataset), self._spec.batch.global_size, drop_last=drop_last)
        self._total_steps = epochs * steps
        return self._total_steps

    def batches(
        self,
        dataset: Any,
        *,
        shuffle: bool = True,
        collate: Collate | None = None,
        loader_workers: int = 0,
        drop_last: bool = False,
    ) -> Iterator[Any]:
        """One pass over a map-style dataset: the loop body runs once per non-empty slice this worker owns.

        Args:
            dataset: `len(dataset)` and `dataset[row]`, rows as dicts or tuples of tensors, arrays or numbers.
            shuffle: in an order that depends on seed and epoch only.
            collate: list of rows → batch; torch's default otherwise.
            loader_workers: processes that load ahead; 0 loads in the training thread.
            drop_last: leave out the rows behind the last whole batch of this pass.

        Raises:
            DatasetUnsupported: (a TypeError) for iterable datasets, and where the job's data is `replicated` and
                the dataset reads no file.
            CopyFailed: a file cannot be copied onto this node.
            StepMisuse: when a turn ends without `step`, a loop is left in the middle of a batch, or `drop_last`
                leaves no batch.
        """
        check_dataset(dataset)
        # Here and not in the generator, whose caller is whoever iterates: this frame's caller is the program's line.
        place = calling_place(0)
        check_not_counted(place, same_bits=self._member.same_bits)
        bring(dataset, self._near)
        run = partial(self._run_batches, dataset, place, shuffle=shuffle, collate=collate)
        return DatasetPass(partial(run, loader_workers=loader_workers, drop_last=drop_last))

    def step(self, loss: Tensor, *, weight: float | None = None, **metrics: Any) -> None:
        """End a turn of the loop: backward, and on the worker's last slice exchange, update and commit.

        Args:
            loss: () the mean loss of the slice's rows; several losses are added before.
            weight: how much the slice counts, its rows by default (tokens, for example). Asynchronous servers count it
                beside the mean weight of a row so far; a token ring refuses any but the rows.
            metrics: numbers or tensors; their weighted means over all rows are logged once the step is settled.

        Raises:
            StepMisuse: when called twice in a turn or outside the loop.
            NonFiniteLoss: when the loss over all rows is NaN or infinite.
        """
        # torch advises to run the backward outside autocast.
        self._casting.leave()
        if self._dry_turn.runs:
            self._past = self._dry_call
            return
        with self._checks.session_steps():
            if self._steps.turns.running is not None:
                self._structure.check_body()
                self._modes.at_step()
                self._member.settings.end_turn()
            try:
                self._steps.step(loss, weight, metrics)
            except NonFiniteLoss as error:
                self._raise_again(error)
                raise
            self._member.settings.step_returned()

    def evaluate(
        self, dataset: Any, score: Score, *, collate: Collate | None = None, loader_workers: int = 0
    ) -> dict[str, float]:
        """Mean of per-row scores over a dataset, in eval mode without gradients: one result for any world.

        The scores are logged under their names at the newest committed step, in place of a step's metric of that name.

        Args:
            dataset: map-style, as for `batches`.
            score: batch → {name: (rows,) tensor}.

        Returns:
            {name: mean over all rows}, equal on every worker.
        """
        check_dataset(dataset)
        if self._near is not None:
            self._near(dataset)
        self._structure.check()
        number = self._begin_call()
        if self._calls.is_finished(number):
            self._scores = dict(self._calls.finished[number].result)
        else:
            self._scores = self._evaluation.run(
                number, EvaluationRequest(dataset, score, collate, loader_workers, self._loaders)
            )
            self._tell_between()
        self._after(number)
        return dict(self._scores)

    def stop(self) -> None:
        """End the running loop for all workers: after this step when called before `step`, else after the next."""
        self._steps.request_stop()

    def _run_batches(
        self,
        dataset: Any,
        place: CodeLine,
        *,
        shuffle: bool,
        collate: Collate | None,
        loader_workers: int,
        drop_last: bool,
    ) -> Iterator[Any]:
        self._structure.check()
        number = self._begin_call()
        index, self._epochs = self._epochs, self._epochs + 1
        if index == 0:
            # Before the first step: else it would fail when the job's weights are written.
            check_writable(self._held.module)
            self._member.variables.warn()
        if not self._calls.is_finished(number) or self._dry_turn.needs(place, number):
            epoch = Epoch.shuffled(
                rows=len(dataset),
                batch=self._spec.batch.global_size,
                shards=self._spec.shards,
                seed=self._spec.seed,
                epoch=index,
                shuffle=shuffle,
                drop_last=drop_last,
            )
            check_last_batch(self._held.models, epoch, len(dataset), self._spec, self._member.warnings)
            loop = BatchLoop(
                number, index, epoch, dataset, collate, loader_workers, self._total_steps, self._loaders
            )
            try:
                yield from self._turns(loop, place)
                yield from self._run_dry(loop, place)
            except GeneratorExit:
                if not self._closed:  # an iterator that a traceback held
                    self._left(number)
                raise
        self._member.trained.left()
        self._after(number)

    def _turns(self, loop: BatchLoop, place: CodeLine) -> Iterator[Any]:
        """The loop's turns; `_inside` while its iterator is alive."""
        if self._calls.is_finished(loop.number):
            return
        self._open_call = loop.number
        self._inside, self._past = True, None
        try:
            turns = self._dry_turn.watch(place, loop.number, self._steps.run(loop))
            yield from self._checks.turns(self._settled(self._casting.turns(turns), loop.dataset))
            self._tell_between()
        except NonFiniteLoss as error:
            self._raise_again(error)
            raise
        finally:
            self._inside = False
            self._past = None

    def _raise_again(self, error: NonFiniteLoss) -> None:
        """Raise the error anew at the next session call, if the program catches it: no step can be made with that
        loss."""
        # Anew: the one that is raised holds, by its traceback, the loop's iterator.
        self._diverged = partial(NonFiniteLoss, error.message, hint=error.hint)

    def _settled(self, turns: Iterator[Any], dataset: Any) -> Iterator[Any]:
        """The same turns; each begins with the committed settings, and what it sets before its step goes with that
        step."""
        settings = self._member.settings
        settings.begin_loop()
        self._modes.begin_loop()
        self._member.carrying.begin_loop(dataset)
        for batch in turns:
            settings.begin_turn()
            self._modes.begin_turn()
            self._member.carrying.begin_turn()
            yield batch
            settings.behind_turn()

    def _run_dry(self, loop: BatchLoop, place: CodeLine) -> Iterator[Any]:
        """Run a dry turn behind a finished loop of which no turn ran here, for the names that its body gives."""
        ended = self._dry_call = self._calls.finished[loop.number]
        # What the last turn saw: a loop that was left showed its end before a step, any other one behind it.
        left = loop.number in self._calls.left
        self._past = ended if left else replace(ended, step=max(0, ended.step - 1))
        self._inside = True
        # Nothing of this turn is committed, so what it prints belongs to no step.
        self._sink.within(told=False)
        try:
            yield from self._casting.turns(self._dry_turn.turns(place, loop))
        finally:
            self._inside = False

    def _warn(self, about: str, message: str, hint: str) -> None:
        """Warn of something that a loop's body does; the first worker reports, which runs the body in every mode."""
        generation = self._member.current
        if generation is not None and generation.rank == 0:
            warning = {"about": about, "message": message, "hint": hint}
            self._sink.event(WARNING, generation.number, warning)
            print(f"ringleader: {message} {hint}")

    def _close(self) -> None:
        """Release everything at the end of the program; idempotent."""
        self._closed = True
        self._states.show()
        self._casting.leave()
        self._member.sections.end()
        self._checks.release()
        self._structure.release()
        self._loaders.close()
        # The program may go on with them after the session.
        for scheduler in self._held.schedulers:
            give_back(scheduler)
        self._member.close()

    def _tell_between(self) -> None:
        """Report that the program's own lines run, after a call in which this worker took part."""
        member = self._member
        if not member.seated:
            return
        self._sink.progress(
            step=member.progress.step, total_steps=None, epoch=member.progress.epoch, phase="between", rows=0
        )

    def _after(self, number: int) -> None:
        """Begin the lines behind a call: random streams start anew, and what is shown is what the call ended with."""
        self._past = self._calls.finished[number]
        self._begin_section(number)

    def _left(self, number: int) -> None:
        """Go back to the committed state after a `break` or an exception: the lines behind the loop begin on it."""
        self._member.trained.left()
        self._member.settings.left()
        if self._calls.is_finished(number):
            self._after(number)
            return
        self._steps.undo()
        self._member.take_back()
        # Behind both: the boundary is of the committed state.
        self._member.sections.finished(number)
        self._begin_section(number)

    def _begin_section(self, number: int) -> None:
        # The lines behind draw the same on all members, whatever each drew before.
        seed_all(self._spec.seed, "after", number)
        if not (self._spec.sync.order_free or self._spec.sync.circulates):
            self._member.forget_gradients()
        # A state dict that the program took without a copy has to show the weights: they go back into its memory.
        self._member.laying.bring_back()
        self._member.sections.begin(number)
        self._sink.between(number + 1)
        self._states.hide()

    def _begin_call(self) -> int:
        """Number the next call; a loop that was left by `break` is finished at its committed step."""
        if self._inside:
            raise StepMisuse(
                "a session call was made inside a loop over session.batches.",
                hint="Evaluate after the loop, or leave it first with break or session.stop(). A loop stays open "
                "while a "
                "variable or a generator holds its iterator: write for batch in session.batches(…), or in "
                "tqdm(session.batches(…)), directly.",
            )
        if self._diverged is not None:
            raise self._diverged()
        self._states.show()
        sections = self._member.sections
        sections.end()
        self._member.settings.check_left()
        self._end_left_loop()
        self._open_call = None
        self._steps.turns.leave()
        self._sink.within()
        number = self._calls.begin()
        self._member.variables.look(number)
        sections.arrive(number)
        if self._calls.is_finished(number):
            # A worker without a seat may pass many finished calls: if it is wanted, it asks for a seat here.
            self._member.heed()
        else:
            self._member.take_over()
        return number

    def _end_left_loop(self) -> None:
        """Agree on the end of a loop that was left by `break`, if the last one was."""
        if self._open_call is None or self._calls.is_finished(self._open_call):
            return
        if self._steps.mid_batch:
            raise StepMisuse(
                "the loop over session.batches was left in the middle of a batch.",
                hint="A worker computes several slices of a batch, and global_step and loss change after the "
                "last one. "
                "Leave just after they change, or call session.stop(), which ends the loop after the batch.",
            )
        # The lines behind a loop that was left have run before all agree on its end: what they made is
        # taken up again after.
        sections = self._member.sections
        sections.put_aside(self._open_call)
        self._steps.end(self._open_call)
        sections.take_up()

    def _between(self, what: str) -> None:
        """Refuse `what` inside a loop. Where optimisers step whenever an item comes, allow it only before the first
        call."""
        sync = self._spec.sync
        if self._inside:
            raise StepMisuse(
                f"session.{what} was called inside a loop over session.batches.",
                hint="Register objects at the top of the training function, or between two loops.",
            )
        if (sync.leased or sync.circulates) and what != "keep":
            self._before_first_call(what)

    def _before_first_call(self, what: str) -> None:
        if self._calls.next:
            raise StepMisuse(
                f"session.{what} was called after the first batches or evaluate call.",
                hint="Register models, optimisers, schedulers and kept objects at the top of the training function.",
            )
