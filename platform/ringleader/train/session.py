"""The session: everything of the platform that a training function uses."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ringleader.errors import RingleaderError, StepMisuse
from ringleader.program_text.counted_loops import check_not_counted
from ringleader.program_text.current_line import calling_place
from ringleader.spec import JobSpec
from ringleader.train.best_weights import best_of
from ringleader.train.body.autocast import Autocast
from ringleader.train.body.body_checks import BodyChecks
from ringleader.train.body.phases import Phases, numbered
from ringleader.train.call_sequence import CallSequence
from ringleader.train.dataset_loops import DatasetLoops, LoopRequest
from ringleader.train.evaluation import Evaluation, EvaluationPlace, EvaluationRequest, Score
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.environment_check import device_of
from ringleader.train.generation.member import Member
from ringleader.train.generation.saving.saver import CheckpointSaver
from ringleader.train.generation.starting.initial_weights import Beginning
from ringleader.train.modes.registry import mode_of
from ringleader.train.ports import Coordinator, RecordSink
from ringleader.train.rows.dataset_copies import Near, bring
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.order.batch_sizes import steps_ahead
from ringleader.train.rows.order.skipped_steps import KeptSteps
from ringleader.train.rows.reading_ahead import may_read_ahead
from ringleader.train.rows.slices import (
    Collate,
    DatasetPass,
    check_dataset,
    check_loader_workers,
    check_switch,
)
from ringleader.train.session_base.registrations import Registrations
from ringleader.train.state.optimizers.schedules import give_back


class Session(Registrations):
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
        artifacts: Path | None = None,
    ) -> None:
        self._sink = sink
        self._near = near
        self._artifacts = artifacts
        device = device or device_of(spec)
        mode = mode_of(spec.sync)
        context = MemberContext(spec, device, coordinator, sink, mode.rules(spec.sync))
        member = Member(
            context,
            saver or CheckpointSaver(spec, checkpoints, sink),
            beginning or Beginning(spec.init_from, optimizers=spec.init_optimizers),
        )
        member.kernels.begin()
        self._steps = mode(member, sink, device)
        checks = BodyChecks(member, sink, self._steps)
        super().__init__(spec, device, member, CallSequence(member, sink, self._steps, checks.states), checks)
        self._loaders = LoaderProcesses(spec.seed, member.carrying.reads_on, member.carrying.reads_stale)
        casting = Autocast(spec.precision, device)
        self._evaluation = Evaluation(member, self._calls, device, casting)
        self._loops = DatasetLoops(
            member,
            self._steps,
            self._calls,
            checks,
            casting=casting,
            loaders=self._loaders,
            evaluation=self._evaluation,
        )

    def total_steps(self, dataset: Any, *, epochs: int, drop_last: bool = False) -> int:
        """Steps that `epochs` passes over `dataset` take from here on, for schedules and for the progress shown. Those
        that `data.skip` leaves out are not counted.

        Args:
            drop_last: as it is given to `batches`.
        """
        check_dataset(dataset)
        if type(epochs) is not int or epochs < 0:
            raise StepMisuse(
                f"session.total_steps got epochs={epochs!r}.",
                hint="Give a whole number of passes, 0 or more.",
            )
        steps = steps_ahead(self._spec.batch, self.global_step, len(dataset), epochs, drop_last=drop_last)
        kept = len(KeptSteps(steps, 0, self._spec.data.skip))
        self._loops.expect(self.global_step + kept)
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
        # Here and not in the generator, whose caller is whoever iterates: this frame's caller is the program's line.
        place = calling_place(0)
        return self._passed(LoopRequest(dataset, place, shuffle, collate, loader_workers, drop_last))

    def steps(
        self,
        dataset: Any,
        *,
        shuffle: bool = True,
        collate: Collate | None = None,
        loader_workers: int = 0,
        drop_last: bool = False,
        phases: Phases = (),
    ) -> Iterator[Any]:
        """One pass over a map-style dataset, step by step: each has this worker's slices, and ends with the commit.

            for step in session.steps(dataset):
                for x, y in step:
                    session.step(loss(net(x), y))
                if session.global_step % 100 == 0:
                    session.evaluate(test_set, score)

        Slices and weights are those of `batches`; with local SGD a step is a round of several. The lines behind a step
        run on every worker and server at every step, and may call `evaluate` and `best`. A worker that comes in late
        runs those behind the newest step, and before them those behind the newest one at which they evaluated; what
        one step's lines leave to those of another one belongs into `keep`.

        Args:
            dataset, shuffle, collate, loader_workers, drop_last: as for `batches`.
            phases: several optimizers by turns (GANs): a step is then one iterator for each, all with the same rows.
                Each ends with its optimizer's update, which the losses of the next one see, and trains nothing else:
                `for critic, generator in session.steps(images, phases=[critic_optimizer, generator_optimizer])`.

        Raises:
            DatasetUnsupported, CopyFailed, StepMisuse: as for `batches`. StepMisuse also where a step is left before
                its commit, and where workers do not commit together; with phases for local SGD or a codec.
        """
        self._loops.by_steps.check_possible()
        place, codec = calling_place(0), self._spec.sync.codec
        numbers = numbered(phases, self._member.rules, codec, self._held)
        # Behind a step nothing can be registered, and its lines may call `best`.
        best_of(self._held.kept, partial(self._keep, "steps"))
        request = LoopRequest(dataset, place, shuffle, collate, loader_workers, drop_last, True, numbers)
        return self._passed(request)

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
        self._calls.check_thread()
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
        check_loader_workers(loader_workers)
        if self._near is not None:
            self._near(dataset)
        self._checks.structure.check()
        request = EvaluationRequest(dataset, score, collate, loader_workers, self._loaders)
        try:
            return self._scores(request)
        except RingleaderError:
            raise
        except Exception as error:
            self._calls.raise_later(error)
            raise

    def checkpoint(self) -> bool:
        """Ask for a checkpoint behind the next step that commits, besides those that the job file asks for.

        It is enough that one worker asks. Where items are leased only lines between calls can ask.

        Returns:
            whether the job has a place for checkpoints; where it has none, as in a local session, it warns of that.
        """
        if self._member.securing.demand():
            return True
        self._member.warnings.add(
            "checkpoint",
            "session.checkpoint() was called, but this job has no checkpoints.",
            "Write checkpoint: {every_steps: 500} into the job file.",
        )
        return False

    def stop(self) -> None:
        """End the running loop for all workers: after this step when called before `step`, else after the next."""
        self._steps.request_stop()

    def _passed(self, request: LoopRequest) -> DatasetPass:
        check_dataset(request.dataset)
        check_switch("shuffle", request.shuffle)
        check_switch("drop_last", request.drop_last)
        check_loader_workers(request.loader_workers)
        bring(request.dataset, self._near)
        return DatasetPass(partial(self._run_batches, request))

    def _scores(self, request: EvaluationRequest) -> dict[str, float]:
        if self._loops.by_steps.inside:
            return self._loops.by_steps.evaluate(request)
        number = self._begin_call(request.dataset)
        scores = self._evaluation.result(EvaluationPlace.of_call(self._member, number), request)
        self._calls.after(number)
        return scores

    def _run_batches(self, request: LoopRequest) -> Iterator[Any]:
        self._checks.structure.check()
        check_not_counted(request.place, request.call, same_bits=self._member.same_bits)
        number = self._begin_call(request.dataset)
        # Lines behind a step may change the data set, too.
        ahead = not request.by_steps and may_read_ahead((request.dataset, request.collate), self, self._held)
        yield from self._loops.run(number, replace(request, reads_ahead=ahead))

    def _begin_call(self, dataset: Any = None) -> int:
        return self._calls.begin(dataset)

    def _close(self) -> None:
        """Release everything at the end of the program; idempotent."""
        self._checks.states.show()
        self._loops.close()
        self._member.sections.end()
        self._checks.release()
        self._loaders.close()
        # The program may go on with its schedules after the session.
        for scheduler in self._held.schedulers:
            give_back(scheduler)
        self._member.close()
        self._member.kernels.end()
