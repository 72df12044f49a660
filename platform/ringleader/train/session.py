"""What a training function sees of the platform."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.comm.timeline import Timeline
from ringleader.errors import StepMisuse
from ringleader.spec import JobSpec
from ringleader.train.calls import Calls, Ended
from ringleader.train.casting import Casting
from ringleader.train.clock import Split
from ringleader.train.cursor import Epoch, steps_in_epoch
from ringleader.train.evaluation import Evaluation, Question, Score
from ringleader.train.group import Group
from ringleader.train.held import Held, Stateful
from ringleader.train.laps import Laps
from ringleader.train.leasing import Leasing
from ringleader.train.machines import device_of
from ringleader.train.near import Near, bring
from ringleader.train.rehearsal import Place, Rehearsal, calling_place
from ringleader.train.reporter import Reporter
from ringleader.train.rounds import Rounds
from ringleader.train.saving import Saver
from ringleader.train.seams import Coordinator, Outlet
from ringleader.train.slices import Collate, check_dataset
from ringleader.train.steps import Loop, Steps
from ringleader.train.streams import seed_all
from ringleader.train.weights import check_writable

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
        outlet: Outlet,
        checkpoints: str | None = None,
        near: Near | None = None,
    ) -> None:
        self._spec = spec
        self._outlet = outlet
        self._near = near
        self._held = Held()
        self._calls = Calls()
        self._split = Split(Timeline() if spec.debug.trace else None)
        self._group = Group(
            spec=spec,
            held=self._held,
            calls=self._calls,
            reporter=Reporter(outlet),
            coordinator=coordinator,
            split=self._split,
            saver=Saver(spec, checkpoints, outlet),
        )
        self._device = device_of(spec)
        self._steps = _transaction(spec)(self._group, outlet, self._device)
        self._casting = Casting(spec.precision, self._device)
        self._evaluation = Evaluation(self._group, outlet, self._device, self._casting)
        self._rehearsal = Rehearsal(self._group, self._device)
        self._epochs = 0
        self._total_steps: int | None = None
        self._open_call: int | None = None
        self._inside = False
        self._past: Ended | None = None
        self._scores: dict[str, float] = {}

    @property
    def params(self) -> dict[str, Any]:
        """`params` of the job file."""
        return dict(self._spec.params)

    @property
    def device(self) -> torch.device:
        """Where models and batches live: CUDA where the job asks for GPUs, the CPU otherwise."""
        return self._device

    @property
    def global_step(self) -> int:
        """Committed steps."""
        return self._group.step if self._past is None else self._past.step

    @property
    def epoch(self) -> int:
        """How many `batches` loops came before the running (or last) one."""
        return max(0, self._epochs - 1)

    @property
    def loss(self) -> float | None:
        """The weighted mean loss of the newest committed step over all rows; None before the first."""
        return self._group.loss if self._past is None else self._past.loss

    def model(self, model: M) -> M:
        """Register a model: its parameters are kept in step, its buffers are those that the first shard leaves."""
        self._before_first_call("model")
        self._held.models.append(model.to(self._device))
        return model

    def optimizer(self, optimizer: O, *, clip_norm: float | None = None) -> O:
        """Register an optimiser; the session steps it. `clip_norm` bounds the 2-norm of its whole gradient.

        Raises:
            StepMisuse: for `clip_norm` with several `ssp` servers, unless each holds everything.
        """
        self._before_first_call("optimizer")
        sync = self._spec.sync
        if clip_norm is not None and sync.consistency == "ssp" and sync.in_parts:
            raise StepMisuse(
                f"clip_norm needs the whole gradient of a clock, which {sync.server_count} ssp servers hold in parts.",
                hint="Use one server (sync.servers: 1), consistency: sync, or no clip_norm.",
            )
        self._held.optimizers.append((optimizer, clip_norm))
        return optimizer

    def scheduler(self, scheduler: S) -> S:
        """Register a learning-rate schedule; the session steps it once per committed step."""
        self._before_first_call("scheduler")
        self._held.add_scheduler(scheduler)
        return scheduler

    def keep(self, name: str, kept: Stateful) -> None:
        """Register an object with state_dict/load_state_dict: rolled back on replay, healed with the weights."""
        self._before_first_call("keep")
        self._held.kept[name] = kept

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` once per committed step, on every worker, after the weights have changed.

        Where parameter servers publish the weights it may not change them: that fails the job, naming the parameter.
        """
        self._held.callbacks.append(callback)

    def total_steps(self, dataset: Any, *, epochs: int) -> int:
        """Steps that `epochs` passes over `dataset` take, for schedules and for the progress shown."""
        check_dataset(dataset)
        self._total_steps = epochs * steps_in_epoch(len(dataset), self._spec.batch.global_size)
        return self._total_steps

    def batches(
        self, dataset: Any, *, shuffle: bool = True, collate: Collate | None = None, loader_workers: int = 0
    ) -> Iterator[Any]:
        """One pass over a map-style dataset: the loop body runs once per non-empty slice this worker owns.

        Args:
            dataset: `len(dataset)` and `dataset[row]`, rows as dicts or tuples of tensors, arrays or numbers.
            shuffle: in an order that depends on seed and epoch only.
            collate: list of rows → batch; torch's default otherwise.
            loader_workers: processes that load ahead; 0 loads in the training thread.

        Raises:
            DatasetUnsupported: (a TypeError) for iterable datasets, and where the job's data is `replicated` and
                the dataset reads no file.
            CopyFailed: a file cannot be copied onto this node.
            StepMisuse: when a turn ends without `step`, or a loop is left in the middle of a batch.
        """
        check_dataset(dataset)
        bring(dataset, self._near)
        return self._run_batches(dataset, shuffle, collate, loader_workers, calling_place(0))

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
        self._casting.leave()
        if not self._rehearsal.runs:
            self._steps.step(loss, weight, metrics)

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
        number = self._begin_call()
        if self._calls.is_finished(number):
            self._scores = dict(self._calls.finished[number].result)
        else:
            self._scores = self._evaluation.run(number, Question(dataset, score, collate, loader_workers))
            self._tell_between()
        self._after(number)
        return dict(self._scores)

    def stop(self) -> None:
        """End the running loop for all workers: after this step when called before `step`, else after the next."""
        self._steps.request_stop()

    def _run_batches(
        self, dataset: Any, shuffle: bool, collate: Collate | None, loader_workers: int, place: Place
    ) -> Iterator[Any]:
        number = self._begin_call()
        index, self._epochs = self._epochs, self._epochs + 1
        if index == 0:
            check_writable(self._held.module)
        if not (self._calls.is_finished(number) and self._rehearsal.knows(place)):
            epoch = Epoch.shuffled(
                rows=len(dataset),
                batch=self._spec.batch.global_size,
                shards=self._spec.shards,
                seed=self._spec.seed,
                epoch=index,
                shuffle=shuffle,
            )
            loop = Loop(number, index, epoch, dataset, collate, loader_workers, self._total_steps)
            yield from self._turns(loop, place)
            yield from self._rehearse(loop, place)
        self._after(number)

    def _turns(self, loop: Loop, place: Place) -> Iterator[Any]:
        """The loop's turns; `_inside` while its iterator is alive."""
        if self._calls.is_finished(loop.number):
            return
        self._open_call = loop.number
        self._inside, self._past = True, None
        try:
            yield from self._casting.turns(self._rehearsal.watch(place, self._steps.run(loop)))
            self._tell_between()
        finally:
            self._inside = False
            self._past = None

    def _rehearse(self, loop: Loop, place: Place) -> Iterator[Any]:
        """The loop is over: a turn for its names where there was none."""
        self._past = self._calls.finished[loop.number]
        self._inside = True
        try:
            yield from self._casting.turns(self._rehearsal.turns(place, loop))
        finally:
            self._inside = False

    def _tell_between(self) -> None:
        """A call is over that this worker took part in: the program goes on."""
        group = self._group
        self._outlet.progress(step=group.step, total_steps=None, epoch=group.epoch, phase="between", rows=0)

    def _after(self, number: int) -> None:
        """Between two calls: the random streams start anew, and what is shown is what the call ended with."""
        seed_all(self._spec.seed, "after", number)
        self._past = self._calls.finished[number]

    def _begin_call(self) -> int:
        """Number the next call; a loop that was left by `break` is finished at its committed step."""
        if self._inside:
            raise StepMisuse(
                "a session call was made inside a loop over session.batches.",
                hint="Evaluate after the loop, or leave it first: break, or session.stop().",
            )
        if self._open_call is not None and not self._calls.is_finished(self._open_call):
            if self._steps.mid_batch:
                raise StepMisuse(
                    "the loop over session.batches was left in the middle of a batch.",
                    hint="A worker computes several slices of a batch; global_step and loss change behind the last. "
                    "Leave where they have just changed, or call session.stop(), which ends the loop behind a batch.",
                )
            self._steps.end(self._open_call)
            seed_all(self._spec.seed, "after", self._open_call)
        self._open_call = None
        self._steps.turns.leave()
        return self._calls.begin()

    def _before_first_call(self, what: str) -> None:
        if self._calls.next:
            raise StepMisuse(
                f"session.{what} was called after the first batches or evaluate call.",
                hint="Register models, optimisers, schedulers and kept objects at the top of the training function.",
            )


def _transaction(spec: JobSpec) -> type[Steps] | type[Rounds] | type[Laps] | type[Leasing]:
    """What commits: a batch, a round of several, items that workers lease, or a slice in a span of the weights."""
    if spec.sync.leased:
        return Leasing
    if spec.sync.circulates:
        return Laps
    return Rounds if spec.sync.architecture == "local_sgd" else Steps
