"""What `accelerator.prepare` gives back to a loop on a session: its optimizers and schedules."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.adapters.library import needed
from ringleader.adapters.loop_turns import LoopTurn
from ringleader.adapters.session_loop import refuse

with needed("accelerate", "accelerate"):
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler


class PreparedOptimizer(AcceleratedOptimizer):  # type: ignore[misc]
    """A registered optimizer as the loop sees it."""

    def __init__(self, optimizer: Optimizer, turn: LoopTurn) -> None:
        super().__init__(optimizer, device_placement=False)
        self._turn = turn

    def step(self, closure: Any = None) -> None:
        """Nothing: the session has stepped it with the step's last slice."""
        self._turn.check_update(closure)

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
        self._turn.check_ended("scheduler.step()")


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
