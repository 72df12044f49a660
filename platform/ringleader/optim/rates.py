"""Learning rates that follow from the global batch, and their warm-up."""

from math import isfinite
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

Scaling = Literal["linear", "sqrt"]


def scaled_rate(base: float, base_batch: int, batch: int, how: Scaling = "linear") -> float:
    """The learning rate for a global batch, from one that fits another batch.

    Linear scaling is for SGD and LARS (Goyal et al., "Accurate, Large Minibatch SGD", 2017); the square root for Adam
    and LAMB (You et al., 2019; Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014).

    Args:
        base: the rate that fits `base_batch` rows.
        batch: the rows of the global batch, for example `session.global_batch`.
        how: `linear` or `sqrt` in the ratio of the batches.

    Raises:
        ValueError: a rate that is not above 0, a batch below 1, or another scaling.
    """
    if not (isfinite(base) and base > 0):
        raise ValueError(f"scaled_rate got base={base:g}; allowed: a rate above 0.")
    for name, rows in (("base_batch", base_batch), ("batch", batch)):
        if rows < 1:
            raise ValueError(f"scaled_rate got {name}={rows}; allowed: 1 row or more.")
    ratio = batch / base_batch
    if how == "linear":
        return base * ratio
    if how == "sqrt":
        return float(base * ratio**0.5)
    raise ValueError(f"scaled_rate got how={how!r}; allowed: 'linear' or 'sqrt'.")


class WarmUp(LRScheduler):
    """A learning-rate schedule that begins low: the rate grows in equal steps to the optimizer's own, then stays, or
    falls to 0 along a power of what is left.

    The rate is a function of the number of the step alone. Register it: `session.scheduler(WarmUp(optimizer, 100))`.

    Args:
        steps: at the last of them the rate is the optimizer's own; 0: there is no warm-up.
        total_steps: where the rate is 0, for example `session.total_steps(…)`; None: it stays.
        power: of the part of the steps behind the warm-up that is left: 1 falls evenly, 2 as in the paper on LARS.

    Raises:
        ValueError: numbers of steps that are below 0 or not in order, or a power that is not above 0.
    """

    def __init__(
        self, optimizer: Optimizer, steps: int, *, total_steps: int | None = None, power: float = 1.0
    ) -> None:
        if steps < 0:
            raise ValueError(f"WarmUp got steps={steps}; allowed: 0 or more.")
        if total_steps is not None and total_steps <= steps:
            raise ValueError(f"WarmUp got total_steps={total_steps}; allowed: more than steps={steps}.")
        if not (isfinite(power) and power > 0):
            raise ValueError(f"WarmUp got power={power:g}; allowed: a number above 0.")
        self.steps = steps
        self.total_steps = total_steps
        self.power = power
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        """The rates of the groups in the step that comes next."""
        factor = self._factor(self.last_epoch)
        return [rate * factor for rate in self.base_lrs]

    def _factor(self, step: int) -> float:
        if step < self.steps:
            return (step + 1) / self.steps
        if self.total_steps is None:
            return 1.0
        # A job may train beyond the total: a negative part has no power.
        left = max(0, self.total_steps - step) / (self.total_steps - self.steps)
        return float(left**self.power)
