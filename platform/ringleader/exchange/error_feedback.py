"""The residuals that coded gradients still owe: one per parameter name, kept by the worker that made the error.

Error feedback (Seide et al. 2014; Karimireddy et al. 2019, "Error Feedback Fixes SignSGD"): what an encoding loses is
added to the next gradient of the same parameter, so it arrives later instead of never. A worker loses in two places:
as a sender of other owners' spans, and as the owner of its own (Tang et al. 2019, "DoubleSqueeze"). Both errors are in
the unit of the sum and lie in disjoint spans, so one residual holds them, whoever owns what in the next generation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.comm.schedules.schedule import Span


class ErrorFeedback:
    """A worker's residuals, kept through every generation. A step's new ones count once it is committed.

    Heals and resizes: a worker keeps its residuals whoever else joins or leaves. A step that is done again starts from
    the committed ones. A worker that heals over a step which others have applied takes the ones it made for that step,
    because its messages are in the sum. A joiner starts with none. What a worker owes when it is lost or leaves is lost
    with it: at most what one message could not carry, and never part of the committed state.
    """

    def __init__(self) -> None:
        self._owed: dict[str, Tensor] = {}
        self._made: dict[str, Tensor] = {}
        self._spare: dict[str, Tensor] = {}

    def owed(self, name: str) -> Tensor | None:
        """The committed residual, (numel,) float32; None where nothing was ever lost."""
        return self._owed.get(name)

    def open(self, name: str, like: Tensor, *, joins: bool) -> "ParameterResidual":
        """The residual of one parameter in a step.

        Args:
            like: (numel,) the parameter's gradient.
            joins: whether the gradient takes the residual along: not where nothing reached the parameter, whose
                gradient may then be nobody's.
        """
        if name not in self._owed:
            self._owed[name] = torch.zeros_like(like)
        made = self._made.get(name)
        if made is None:
            # Not zeroed: `keep` writes every span of it before the step is committed.
            made = self._made[name] = self._spare.pop(name) if name in self._spare else torch.empty_like(like)
        return ParameterResidual(self._owed[name], made, joins)

    def commit(self) -> None:
        """Commit the residuals that were made."""
        # Not before: only now is their step part of the weights.
        for name, made in self._made.items():
            # Two tensors a parameter, swapped: a step allocates nothing.
            self._spare[name] = self._owed[name]
            self._owed[name] = made
        self._made = {}

    def roll_back(self) -> None:
        """Drop the residuals that were made: their step did not happen."""
        self._spare |= self._made
        self._made = {}

    def abandon(self) -> None:
        """Roll back without using the memory again."""
        # Not into `_spare`, as `roll_back` has it: a thread may still write there.
        self._made = {}


@dataclass(frozen=True, slots=True)
class ParameterResidual:
    """One parameter's residual in the running step.

    Attributes:
        owed: (numel,) the residual from the steps before.
        made: (numel,) the residual after this one.
    """

    owed: Tensor
    made: Tensor
    joins: bool

    def claim(self, gradient: Tensor) -> None:
        """Add what is owed to the parameter's gradient."""
        if self.joins:
            gradient.add_(self.owed)

    def keep(self, wanted: Tensor, sent: Tensor, at: Span) -> None:
        """Owe `wanted` less `sent` from now on, over the span `at`; what is not finite is dropped."""
        part = slice(*at)
        made = torch.sub(wanted, sent, out=self.made[part])
        # Nothing of the old residual was in `wanted`, so it is still owed.
        if not self.joins:
            made.add_(self.owed[part])
        # Kept, one NaN would be in every later gradient of this parameter.
        made.nan_to_num_(0.0, 0.0, 0.0)
