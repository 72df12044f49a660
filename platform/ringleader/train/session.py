"""The session: everything of the platform that a training function uses."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.spec import JobSpec
from ringleader.train.best_weights import best_of
from ringleader.train.body.autocast import Autocast
from ringleader.train.body.body_checks import BodyChecks
from ringleader.train.body.dry_turn import calling_place
from ringleader.train.call_sequence import CallSequence
from ringleader.train.dataset_loops import DatasetLoops, LoopRequest
from ringleader.train.evaluation import Evaluation, EvaluationRequest, Score
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.environment_check import device_of
from ringleader.train.generation.member import Member
from ringleader.train.generation.saving.saver import CheckpointSaver
from ringleader.train.generation.starting.initial_weights import Beginning
from ringleader.train.modes.registry import mode_of
from ringleader.train.ports import Coordinator, RecordSink
from ringleader.train.rows.batch_sizes import steps_ahead
from ringleader.train.rows.dataset_copies import Near, bring
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.skipped_steps import KeptSteps
from ringleader.train.rows.slices import Collate, DatasetPass, check_dataset
from ringleader.train.source.counted_loops import check_not_counted
from ringleader.train.state.registration import (
    check_clipping,
    check_kept,
    check_model,
    check_optimizer,
    check_scheduler,
)
from ringleader.train.state.training_state import Stateful

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
        context = MemberContext(spec, self._device, coordinator, sink)
        self._held = context.held
        self._member = Member(
            context,
            saver or CheckpointSaver(spec, checkpoints, sink),
            beginning or Beginning(spec.init_from, optimizers=spec.init_optimizers),
        )
        self._member.kernels.begin()
        self._steps = mode_of(spec.sync)(self._member, sink, self._device)
        self._loaders = LoaderProcesses(spec.seed)
        casting = Autocast(spec.precision, self._device)
        self._checks = BodyChecks(self._member, sink, self._steps)
        self._calls = CallSequence(self._member, sink, self._steps, self._checks.states)
        self._evaluation = Evaluation(self._member, self._calls, self._device, casting)
        self._loops = DatasetLoops(
            self._member, self._steps, self._calls, self._checks, casting=casting, loaders=self._loaders
        )

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
        return self._member.progress.step if self._calls.shown is None else self._calls.shown.step

    @property
    def epoch(self) -> int:
        """The number of `batches` loops before the running (or last) one."""
        return max(0, self._loops.epochs - 1)

    @property
    def loss(self) -> float | None:
        """The weighted mean loss of the newest committed step over all rows; None before the first."""
        return self._member.progress.loss if self._calls.shown is None else self._calls.shown.loss

    @property
    def global_batch(self) -> int:
        """The rows of a global batch behind `global_step`: `batch.global_size`, or what `batch.schedule` says."""
        return self._spec.batch.size_at(self.global_step)

    def model(self, model: M) -> M:
        """Register a model: its parameters are kept in step, its buffers are those that the first shard leaves.

        Where the job has `init_from`, the model has those weights when this returns, on every worker alike.
        """
        self._calls.check_first("model")
        check_model(model)
        self._held.models.append(model.to(self._device))
        self._member.beginning.give(model)
        return model

    def optimizer(self, optimizer: O, *, clip_norm: float | None = None) -> O:
        """Register an optimiser; the session steps it. `clip_norm` bounds the 2-norm of its whole gradient.

        Between two loops another one may take the place of those whose parameters it has, in a ring, on synchronous
        servers and with local SGD.

        Raises:
            StepMisuse: for `clip_norm` with several `ssp` servers, unless each holds everything; for an optimiser that
                has some parameters of another one.
        """
        self._calls.check_between("optimizer")
        check_optimizer(optimizer)
        check_clipping(self._spec.sync, clip_norm)
        self._held.add_optimizer(optimizer, clip_norm)
        self._checks.optimizer(optimizer)
        return optimizer

    def scheduler(self, scheduler: S) -> S:
        """Register a learning-rate schedule; the session steps it once per committed step, and nobody else does.

        Raises:
            StepMisuse: it is none, or takes a metric at each step, as ReduceLROnPlateau does.
        """
        self._calls.check_between("scheduler")
        check_scheduler(scheduler)
        self._held.add_scheduler(scheduler)
        return scheduler

    def keep(self, name: str, kept: Stateful) -> None:
        """Register an object with state_dict/load_state_dict: rolled back on replay, healed with the weights."""
        self._calls.check_between("keep")
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
        best, weights = best_of(self._held.kept, self.keep)
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
        best_of(self._held.kept, self.keep)[1].put_back(model)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` once per committed step, on every worker, after the weights have changed.

        Where parameter servers publish the weights it may not change them: that fails the job, naming the parameter.
        """
        self._held.callbacks.append(callback)

    def total_steps(self, dataset: Any, *, epochs: int, drop_last: bool = False) -> int:
        """Steps that `epochs` passes over `dataset` take from here on, for schedules and for the progress shown. Those
        that `data.skip` leaves out are not counted.

        Args:
            drop_last: as it is given to `batches`.
        """
        check_dataset(dataset)
        steps = steps_ahead(self._spec.batch, self.global_step, len(dataset), epochs, drop_last=drop_last)
        kept = len(KeptSteps(steps, 0, self._spec.data.skip))
        self._loops.expect(kept)
        return kept

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
        request = LoopRequest(dataset, place, shuffle, collate, loader_workers, drop_last)
        return DatasetPass(partial(self._run_batches, request))

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
        self._loops.step(loss, weight, metrics)

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
        self._checks.structure.check()
        number = self._begin_call()
        request = EvaluationRequest(dataset, score, collate, loader_workers, self._loaders)
        scores = self._evaluation.result(number, request)
        self._calls.after(number)
        return scores

    def stop(self) -> None:
        """End the running loop for all workers: after this step when called before `step`, else after the next."""
        self._steps.request_stop()

    def _run_batches(self, request: LoopRequest) -> Iterator[Any]:
        self._checks.structure.check()
        yield from self._loops.run(self._begin_call(), request)

    def _begin_call(self) -> int:
        return self._calls.begin()

    def _close(self) -> None:
        """Release everything at the end of the program; idempotent."""
        self._checks.states.show()
        self._loops.close()
        self._member.sections.end()
        self._checks.release()
        self._loaders.close()
        self._held.give_back_schedulers()
        self._member.close()
        self._member.kernels.end()
