"""Marks of tensors, which show that one was changed in place or has given way to another."""

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer


def version_of(tensor: Tensor) -> int:
    """The tensor's version, which grows with each change in place; 0 for one that was made in inference mode, which has
    none and raises where it is read."""
    return 0 if tensor.is_inference() else tensor._version


def marks(weights: Iterable[Parameter], optimizers: Sequence[Optimizer]) -> list[tuple[int, int]]:
    """Marks that differ from earlier ones once a weight or an optimizer's state was changed in place, or replaced by
    another tensor. A change in place through `parameter.data` leaves no mark."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [
        *((p.data_ptr(), version_of(p)) for p in weights),
        *((id(tensor), version_of(tensor)) for tensor in _states(optimizers)),
        *((number, len(group["params"])) for number, group in enumerate(groups)),
    ]


def places(weights: Iterable[Parameter], optimizers: Sequence[Optimizer]) -> frozenset[int]:
    """The addresses of all that `marks` watches: weights and optimizers' states."""
    return frozenset(tensor.data_ptr() for tensor in (*weights, *_states(optimizers)))


def _states(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    states = (state for optimizer in optimizers for state in optimizer.state.values())
    return (tensor for state in states for tensor in state.values() if isinstance(tensor, Tensor))
