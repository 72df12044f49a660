"""Learning rates: registered schedules, which the session alone steps, and a factor on the rates of one update."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any, TypeGuard

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.errors import StepMisuse

MOST_RATES = 1024
"""The updates whose rates are remembered: a round of local SGD makes that many at most before its records."""


def take(scheduler: LRScheduler) -> None:
    """Let only `advance` step a schedule from now on. An attribute would become part of its `state_dict`, so it gets a
    subclass of the same name instead; copies and pickles of it have the old class again.

    Raises:
        StepMisuse: its `step` needs an argument.
    """
    _check(scheduler)
    own = type(scheduler)
    if "_ringleader_steps" in vars(own):
        return
    members = {
        "__module__": own.__module__,
        "__qualname__": own.__qualname__,
        "__doc__": own.__doc__,
        "_ringleader_steps": own.step,
        "step": _refuse,
        "__reduce_ex__": _as_before,
    }
    scheduler.__class__ = type(own.__name__, (own,), members)


def give_back(scheduler: LRScheduler) -> None:
    """Let the program step a schedule again; idempotent."""
    if "_ringleader_steps" in vars(type(scheduler)):
        scheduler.__class__ = type(scheduler).__bases__[0]


def stepped(schedulers: Iterable[LRScheduler], replaced: Collection[Optimizer]) -> list[LRScheduler]:
    """The schedules that a committed step advances: none of an optimizer that another one has replaced."""
    return [scheduler for scheduler in schedulers if scheduler.optimizer not in replaced]


def advance(scheduler: LRScheduler) -> None:
    """Step a schedule, for one more committed step."""
    getattr(type(scheduler), "_ringleader_steps", type(scheduler).step)(scheduler)


class LearningRates:
    """The learning rates of the newest updates, for the records of their steps."""

    def __init__(self) -> None:
        self._of: dict[int, list[float]] = {}

    def add(self, step: int, optimizers: Iterable[Optimizer]) -> None:
        """Note the rate of every parameter group with which `step` is made. One that lies on a device is left out: to
        read it would wait for that."""
        rates = [group.get("lr") for optimizer in optimizers for group in optimizer.param_groups]
        self._of[step] = [float(rate) for rate in rates if _on_host(rate)]
        self._of.pop(step - MOST_RATES, None)

    def told(self, step: int) -> dict[str, float]:
        """Those of a step as metrics; none where this member has not made that update."""
        rates = self._of.get(step, [])
        return {"lr": rates[0]} if len(rates) == 1 else {f"lr/{n}": rate for n, rate in enumerate(rates)}


def _on_host(rate: Any) -> TypeGuard[float | Tensor]:
    if isinstance(rate, Tensor):
        return rate.numel() == 1 and rate.device.type == "cpu"
    return isinstance(rate, int | float)


@contextmanager
def at_rate(optimizers: Iterable[Optimizer], factor: float) -> Iterator[None]:
    """Multiply every learning rate by `factor` while the block lasts.

    Raises:
        StepMisuse: an optimizer has no `lr`.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if any("lr" not in group for group in groups):
        raise StepMisuse(
            "an optimizer has no learning rate `lr` in its parameter groups.",
            hint="consistency: async scales `lr` by an item's share of the batch; use another consistency.",
        )
    rates = [group["lr"] for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate


def _check(scheduler: LRScheduler) -> None:
    """Refuse a schedule whose `step` needs an argument: the session has none to give it."""
    arguments = signature(scheduler.step).parameters.values()
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    needed = [a.name for a in arguments if a.default is Parameter.empty and a.kind in kinds]
    if needed:
        raise StepMisuse(
            f"{type(scheduler).__name__} needs {', '.join(needed)} at each step, which the session cannot give: it "
            f"steps "
            f"registered schedules once per committed step.",
            hint="Leave it unregistered and step it between two loops, for example "
            'schedule.step(session.evaluate(test_set, score)["loss"]).',
        )


def _refuse(scheduler: LRScheduler, *_arguments: Any, **_named: Any) -> None:
    raise StepMisuse(
        f"{type(scheduler).__name__}.step() was called: the session steps registered schedules once per committed "
        f"step, so each step would be made twice.",
        hint="Delete the line. Do not register a schedule that advances by epochs: leave session.scheduler(...) out "
        "and "
        "call step() between two loops.",
    )


def _as_before(scheduler: LRScheduler, _protocol: Any) -> Any:
    # Past `__init__`, in which torch makes a first step.
    return object.__new__, (type(scheduler).__bases__[0],), scheduler.__getstate__()
