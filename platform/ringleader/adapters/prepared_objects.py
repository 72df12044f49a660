"""What `accelerator.prepare` gives back to a loop on a session: its loaders, optimisers and schedules."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ringleader.adapters.gradient_lines import check_no_gradient_lines
from ringleader.adapters.library import needed
from ringleader.adapters.session_loop import Rows, check_batch_size, program_place, refuse
from ringleader.train import Session
from ringleader.train.rows.slices import to_device

with needed("accelerate", "accelerate"):
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler

GRADIENTS = (
    "Clip by ElasticAccelerator(session, clip_norm=1.0), and change what each slice adds by p.register_hook at the "
    "top."
)


class LoopTurn:
    """The turn of a training loop that the program is in.

    Attributes:
        looping: a loop over the session's batches is under way.
        inside: a turn of it is.
        ended: its backward was called.
        committed: which committed a step.
        values: the metrics of the turn so far.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.looping = self.inside = self.ended = self.committed = False
        self.values: dict[str, Any] = {}

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The turns of one loop."""
        self.looping = True
        try:
            for batch in batches:
                self.inside, self.ended, self.committed, self.values = True, False, False, {}
                yield batch
        finally:
            self.looping = self.inside = False

    def step(self, loss: Tensor, weight: float | None) -> None:
        """End the turn."""
        before = self._session.global_step
        self._session.step(loss, weight=weight, **self.values)
        self.ended, self.committed = True, self._session.global_step != before


class PreparedLoader:
    """A loader of the program. Where a registered model is in training mode a loop over it is the session's; else it
    goes over all rows on every worker, for an evaluation.

    Attributes:
        dataset, collate_fn, sampler: the loader's.
    """

    def __init__(self, accelerator: Any, loader: DataLoader[Any]) -> None:
        self._accelerator = accelerator
        self._loader = loader
        self._rows = Rows.of_loader(loader)
        self.dataset, self.collate_fn, self.sampler = loader.dataset, loader.collate_fn, loader.sampler

    @property
    def total_batch_size(self) -> int:
        """Rows of a batch of all processes together."""
        size = self._rows.batch_size or 1
        return size if self._accelerator.split_batches else size * self._accelerator.num_processes

    def __len__(self) -> int:
        """Batches of all processes together: steps, where none are accumulated."""
        whole, rest = divmod(len(self._rows.dataset), self.total_batch_size)
        return whole if self._rows.drop_last else whole + bool(rest)

    def __iter__(self) -> Iterator[Any]:
        accelerator = self._accelerator
        if not torch.is_grad_enabled() or not any(model.training for model in accelerator._trained):
            return self._all_rows()
        check_batch_size(
            accelerator.session,
            self._rows.batch_size or 1,
            accelerator.gradient_accumulation_steps,
            whole=accelerator.split_batches,
        )
        check_no_gradient_lines(program_place(), GRADIENTS)
        turn: LoopTurn = accelerator.turn
        return turn.of(iter(self._rows.turns(accelerator.session)))

    def set_epoch(self, epoch: int) -> None:
        """Nothing: the order of rows follows from the job's seed and the number of the loop."""

    def _all_rows(self) -> Iterator[Any]:
        rows = self._rows
        batches = DataLoader(
            rows.dataset,
            self.total_batch_size,
            collate_fn=rows.collate,
            num_workers=rows.loader_workers,
            drop_last=rows.drop_last,
        )
        return (to_device(batch, self._accelerator.device) for batch in batches)


class PreparedOptimizer(AcceleratedOptimizer):  # type: ignore[misc]
    """A registered optimiser as the loop sees it."""

    def __init__(self, optimizer: Optimizer, turn: LoopTurn) -> None:
        super().__init__(optimizer, device_placement=False)
        self._turn = turn

    def step(self, closure: Any = None) -> None:
        """Nothing: the session has stepped it with the step's last slice."""
        if closure is not None:
            refuse("optimizer.step(closure)", "A step has one gradient: LBFGS and the like cannot be kept.")
        _check_stepped("optimizer.step()", self._turn)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Nothing: each slice's gradient begins at zero."""


class PreparedScheduler(AcceleratedScheduler):  # type: ignore[misc]
    """A registered schedule as the loop sees it."""

    def __init__(self, scheduler: LRScheduler, optimizers: Sequence[Optimizer], turn: LoopTurn) -> None:
        super().__init__(scheduler, optimizers)
        self._turn = turn

    def step(self, *given: Any, **named: Any) -> None:
        """Nothing: the session advances it with each step."""
        if not self._turn.looping:
            refuse(
                "scheduler.step() between loops of a prepared schedule, which advances with each step",
                "For a schedule by epochs write ElasticAccelerator(session, step_scheduler_with_optimizer=False).",
            )
        _check_stepped("scheduler.step()", self._turn)


class ScheduleByProcess:
    """A schedule that advances once for each process in a step, as Accelerate's do: programs count its steps in batches
    of one process."""

    def __init__(self, schedule: LRScheduler, processes: int) -> None:
        self.optimizer = schedule.optimizer
        self._schedule = schedule
        self._processes = processes

    def step(self) -> None:
        """Advance, but not beyond the end that the schedule has."""
        for _ in range(self._processes):
            last = getattr(self._schedule, "total_steps", None)
            if last is None or self._schedule._step_count <= last:
                self._schedule.step()

    def state_dict(self) -> dict[str, Any]:
        return self._schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._schedule.load_state_dict(state)


def _check_stepped(what: str, turn: LoopTurn) -> None:
    if not turn.ended:
        refuse(f"{what} before backward()", "Call accelerator.backward(loss) once in each turn, before it.")
