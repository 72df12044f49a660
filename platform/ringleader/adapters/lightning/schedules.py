"""Lightning's learning-rate schedules on a session: by step and by epoch with the commits, plateaus between epochs."""

from collections.abc import Callable
from typing import Any, NoReturn

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ringleader.adapters.session_loop import refuse


class ScheduleOfEpochs:
    """A schedule as the session has it, which asks it once for each committed step.

    Args:
        interval, frequency: as Lightning has them: every so many batches of an epoch, or every so many epochs.
        first_epoch: the epochs that the trainer had behind it.
        sizes: batches of an epoch, and how many of them make a step; known once the loaders are.
    """

    def __init__(
        self,
        schedule: LRScheduler,
        interval: str,
        frequency: int,
        *,
        first_epoch: int,
        sizes: Callable[[], tuple[int, int]],
    ) -> None:
        self.optimizer = schedule.optimizer
        self._schedule = schedule
        self._interval, self._frequency = interval, frequency
        self._first_epoch = first_epoch
        self._sizes = sizes
        self._steps = 0

    def step(self) -> None:
        """Count a step, and advance where one is due."""
        batches, accumulated = self._sizes()
        epoch, step = divmod(self._steps, -(-batches // accumulated))
        self._steps += 1
        batch = min((step + 1) * accumulated, batches)
        if self._interval == "step":
            due = batch % self._frequency == 0
        else:
            due = batch == batches and (self._first_epoch + epoch + 1) % self._frequency == 0
        if due:
            self._schedule.step()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        self._schedule.load_state_dict(state["schedule"])


class ScheduleOfTrainer:
    """The same schedule as the trainer and the program have it: the session advances it with the step's commit."""

    def __init__(self, schedule: LRScheduler) -> None:
        self.optimizer = schedule.optimizer
        self.state_dict, self.get_last_lr = schedule.state_dict, schedule.get_last_lr

    def step(self, *given: Any) -> NoReturn:
        """Refused: it is the program's own step. The trainer's are `step_of_trainer`."""
        refuse(
            "self.lr_schedulers().step()",
            "Leave the line out: a schedule of configure_optimizers advances by its interval and frequency.",
        )


class PlateauAtEpochs:
    """A `ReduceLROnPlateau` as the trainer has it: rates change between two loops of the session."""

    def __init__(self, schedule: ReduceLROnPlateau) -> None:
        self.optimizer = schedule.optimizer
        self._schedule = schedule
        self._monitored: float | None = None

    def step(self, metrics: Any) -> None:
        """Note what was monitored."""
        self._monitored = float(metrics)

    def catch_up(self) -> bool:
        """Take the step that was asked for in the epoch before. Returns whether there was one."""
        monitored, self._monitored = self._monitored, None
        if monitored is not None:
            self._schedule.step(monitored)
        return monitored is not None

    def state_dict(self) -> dict[str, Any]:
        return {"monitored": self._monitored, "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._monitored = state["monitored"]
        self._schedule.load_state_dict(state["schedule"])


def step_of_trainer(schedule: "ScheduleOfTrainer | PlateauAtEpochs", metric: Any) -> None:
    """What the trainer does where a schedule of its module is due: the hook `lr_scheduler_step`."""
    if isinstance(schedule, PlateauAtEpochs):
        schedule.step(metric)


def plateau_of(config: Any) -> PlateauAtEpochs:
    """The plateau of a schedule's configuration. Raises StepMisuse: its rates would change inside of an epoch."""
    if config.interval != "epoch":
        refuse(
            "ReduceLROnPlateau with interval: step",
            "Rates follow a monitored value between epochs: write interval: epoch.",
        )
    return PlateauAtEpochs(config.scheduler)
