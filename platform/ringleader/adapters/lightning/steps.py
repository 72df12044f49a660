"""The session's loops behind a fit of Lightning: one for each epoch, of which the trainer sees step by step.

For each batch that the trainer asks for it gets a `StepBatch`, which holds no rows: those of a step are on several
workers, as slices, and are trained on where it asks for its training step. What it does from one step to the next are
lines behind a step of `session.steps`, which run on every member.
"""

from collections.abc import Iterator
from typing import Any, NoReturn

from ringleader.adapters.lightning.state import FitState
from ringleader.adapters.session_loop import PassRows, refuse
from ringleader.train import Session

END: Iterator[Any] = iter(())


class StepBatch:
    """What the trainer and its hooks have in place of a batch."""

    def _refuse(self, *_: Any) -> NoReturn:
        refuse(
            "the batch in a hook (on_train_batch_start, on_train_batch_end)",
            "A step's rows are on several workers: do what reads them in training_step, and give self.log numbers.",
        )

    __getitem__ = __iter__ = __len__ = _refuse


class StepLoader:
    """The rows of one pass as the trainer counts them: each batch is that of all logical shards.

    Attributes:
        dataset: what is read.
        sampler: None, for the trainer, which would look for one.
    """

    sampler = None

    def __init__(self, fit: "FitSteps", rows: PassRows, batch_rows: int) -> None:
        self.dataset = rows.dataset
        self._fit = fit
        self._batches = rows.batches(batch_rows)

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[StepBatch]:
        # Endless: the trainer counts, also those batches that were committed before this worker came.
        while True:
            if self._fit.is_over_at_next():
                return
            yield StepBatch()


class FitSteps:
    """The steps of one fit.

    Attributes:
        rows: what is read.
        slices: this worker's slices of the step that the trainer is at.
        over: the fit was over for the other members when this one came.
    """

    def __init__(self, session: Session, trainer: Any, state: FitState, rows: PassRows) -> None:
        self._session = session
        self._trainer = trainer
        self._state = state
        self.rows = rows
        self._loop: Iterator[Iterator[Any]] = END
        self._taken = 0
        self._steps = rows.steps(session)
        self.slices: Iterator[Any] = END
        self.over = False

    @property
    def accumulates(self) -> bool:
        """Whether the step comes with a later batch."""
        return bool(self._trainer.fit_loop._should_accumulate())

    @property
    def step_rows(self) -> int:
        """The rows of the step that the trainer is at."""
        size: int = self._session._spec.batch.global_size
        step: int = (self._batch - 1) // self._trainer.accumulate_grad_batches
        return min(size, len(self.rows.dataset) - step * size)

    def is_over_at_next(self) -> bool:
        """Come to the trainer's next batch; returns whether there is none, as the fit was over before this worker
        came."""
        accumulated = self._trainer.accumulate_grad_batches
        if (self._batch + 1) % accumulated:
            # What the trainer does at a batch before the step's last one belongs to the lines behind the step before.
            return False
        self._state.take()
        if self._batch >= accumulated:
            self.slices = next(self._loop)
        else:
            self._begin_epoch()
        self._taken += 1
        return self.over

    def end(self) -> None:
        """End the fit, behind its last line."""
        if self.over:
            self._state.put()  # what hooks have made of it that ran for a second time
        else:
            self._state.take(over=True)
            self._end_loop()
        self._state.step_plateaus()

    def _begin_epoch(self) -> None:
        """Begin the session's loop of an epoch. A worker that came later passes over those that are over, and has the
        trainer stand where the others' do."""
        if self._taken and not self._taken_all:
            refuse(
                "on_train_batch_start returning -1",
                "Use Trainer(limit_train_batches=…), or trainer.should_stop = True to end the training.",
            )
        self._end_loop()
        calls = self._session._member.progress.calls
        while True:
            self._state.step_plateaus()
            number = calls.next
            self._loop = iter(self.rows.by_steps(self._session))
            self.slices = next(self._loop, END)
            if not calls.is_finished(number):
                break
            for _ in self._loop:
                pass
            self._state.put()
            if self._state.over:
                self.over = True
                return
        if self._state.given:
            self._state.put()
        self._taken = self._batch // self._trainer.accumulate_grad_batches

    def _end_loop(self) -> None:
        """End the session's loop behind its last step, or leave it where the trainer did."""
        loop, self._loop = self._loop, END
        if self._taken == self._steps:
            next(loop, END)
        elif loop is not END:
            loop.close()  # type: ignore[attr-defined]

    @property
    def _taken_all(self) -> bool:
        expected: int = -(-self._trainer.num_training_batches // self._trainer.accumulate_grad_batches)
        return self._taken == expected

    @property
    def _batch(self) -> int:
        """The number of batches of the epoch that the trainer has begun."""
        number: int = self._trainer.fit_loop.epoch_loop.batch_progress.current.ready
        return number
