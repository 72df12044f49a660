"""The loss scale of fp16: losses are multiplied by it so that small gradients do not vanish in 16 bits.

Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", 2018) by the rules and numbers of
torch.amp.GradScaler. The scale is committed state like the weights, and a power of two: to divide by it changes no bit.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ringleader.errors import NonFiniteLoss
from ringleader.train.state.norms import scale_all

# 32 halvings lead from the first to the least: an overflow even there is no matter of scale. The most is the largest
# power of two in float32.
FIRST, LEAST, MOST = 2.0**16, 2.0**-16, 2.0**127
GROWTH, BACKOFF = 2.0, 0.5
GROWTH_INTERVAL = 2000
"""Updates in a row after which the scale grows."""


class LossScale:
    """One job's loss scale, the same on all members.

    Attributes:
        scale: the factor of the running step's losses.
        good: updates since the scale changed last.
        skipped: committed steps whose gradient had overflowed: they changed no weight.
    """

    def __init__(self) -> None:
        self.scale = FIRST
        self.good = 0
        self.skipped = 0

    def commit(self, *, overflowed: bool) -> None:
        """Adapt the scale as a step is committed."""
        if overflowed:
            self.skipped += 1
            self.scale, self.good = self.scale * BACKOFF, 0
            return
        self.good += 1
        if self.good == GROWTH_INTERVAL:
            self.scale, self.good = min(self.scale * GROWTH, MOST), 0

    def check(self, step: int) -> None:
        """Check, where the gradient of `step` has overflowed, that a smaller scale can help.

        Raises:
            NonFiniteLoss: it cannot: the scale is at its least, after as many steps that overflowed.
        """
        if self.scale <= LEAST:
            raise NonFiniteLoss(
                f"the gradients of step {step} and the steps before it are not finite, although the loss scale is down "
                f"to {self.scale:g}.",
                hint="The loss scale is not the cause: look for a division by zero, or use precision: bf16.",
            )

    def told(self) -> dict[str, float]:
        """The values that go into a step's record."""
        return {"loss_scale": self.scale, "skipped_updates": float(self.skipped)}

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "good": self.good, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.good, self.skipped = state["scale"], state["good"], state["skipped"]


def finite(parameters: Sequence[Parameter]) -> bool:
    """Whether the gradients that are here are all finite."""
    values = [each for each in _values(parameters) if each.numel()]
    if values and values[0].is_cuda:
        # A few kernels for all, and one wait. Where one value is NaN, so is the largest magnitude.
        types = {each.dtype for each in values}
        largest = (torch._foreach_norm([v for v in values if v.dtype == t], float("inf")) for t in types)
        return all(bool(torch.isfinite(torch.stack(each)).all()) for each in largest)
    # The least and the largest are NaN where one is; isfinite() of all would take 15 times as long.
    ends = [torch.stack(torch.aminmax(each)).double() for each in values]
    return not ends or bool(torch.isfinite(torch.stack(ends)).all())


def unscale(parameters: Sequence[Parameter], scale: float) -> None:
    """Take the scale out of the gradients that are here."""
    scale_all([p.grad for p in parameters if p.grad is not None], 1 / scale)


def _values(parameters: Sequence[Parameter]) -> list[Tensor]:
    gradients = [p.grad for p in parameters if p.grad is not None]
    return [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
