"""The weights W as one flat tensor that the parameters are views into."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from ringleader.comm.shared_weights import point_at
from ringleader.errors import StepMisuse

ALIGNED = 16
"""Parameters begin at multiples of this many elements."""


class FlatWeights:
    """W at this member. Belongs to the training thread.

    Attributes:
        values: (elements,) the live weights.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        like = _like(parameters)
        starts = [0]
        for parameter in parameters:
            starts.append(starts[-1] + -(-parameter.numel() // ALIGNED) * ALIGNED)
        self._parameters = list(parameters)
        self._starts = starts[:-1]
        self.values = torch.zeros(starts[-1], dtype=like.dtype, device=like.device)
        for _, parameter, view in self._views(self.values):
            view.copy_(parameter.detach())
            point_at(parameter, view)

    @torch.no_grad()
    def gradients(self, *, void: bool) -> Tensor:
        """(elements + parameters + 1,) the gradients, which parameters the backward reached, and whether it is void."""
        size = len(self.values)
        sent = torch.zeros(size + len(self._parameters) + 1, dtype=self.values.dtype)
        for number, parameter, view in self._views(sent):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
                sent[size + number] = 1
        sent[-1] = void
        return sent

    def take_gradients(self, added: Tensor) -> bool:
        """Make sums of `gradients` the parameters' own, None where no member's backward came. Returns whether any of
        them was void."""
        size = len(self.values)
        for number, parameter, view in self._views(added.to(self.values.device)):
            parameter.grad = view if bool(added[size + number]) else None
        return bool(added[-1])

    def _views(self, flat: Tensor) -> Iterator[tuple[int, Parameter, Tensor]]:
        """Each parameter with its number and its place in a tensor that begins like W."""
        for number, (parameter, start) in enumerate(zip(self._parameters, self._starts, strict=True)):
            yield number, parameter, flat[start : start + parameter.numel()].view(parameter.shape)


def _like(parameters: Sequence[Parameter]) -> Parameter:
    """One of them: all have the same type and device.

    Raises:
        StepMisuse: they have not.
    """
    kinds = sorted({f"{p.dtype} on {p.device}" for p in parameters})
    if len(kinds) == 1:
        return parameters[0]
    raise StepMisuse(
        f"the trainable parameters are {', '.join(kinds) or 'none'}.",
        hint="With sync: token_ring the weights travel as one vector: give all of them one type and one device.",
    )
