"""The memory of registered models' weights and persistent buffers: what is a view of it is committed with it.

`self.mean = self.statistics[0]` is another name for a part of a buffer. Weights and buffers are given the state of a
commit in place, so that such views have it, too.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


class CommittedMemory:
    """The places in memory that these models' weights and persistent buffers have when first asked."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models

    @cached_property
    def _places(self) -> list[tuple[int, int, int]]:
        return [
            place
            for tensor in _committed(self._models)
            if (place := _place_of(tensor)) is not None and tensor.is_contiguous()
        ]

    def has(self, tensor: Tensor) -> bool:
        """Whether all of the tensor lies in one of them."""
        place = _place_of(tensor)
        return place is not None and any(
            storage == place[0] and begin <= place[1] and place[2] <= end
            for storage, begin, end in self._places
        )


def _committed(models: Sequence[nn.Module]) -> Iterator[Tensor]:
    for part in (part for model in models for part in model.modules()):
        yield from (each for each in part._parameters.values() if each is not None)
        buffers = part._buffers.items()
        yield from (
            b for name, b in buffers if b is not None and name not in part._non_persistent_buffers_set
        )


def _place_of(tensor: Tensor) -> tuple[int, int, int] | None:
    """The storage of a tensor, and the first and the last byte there; None where it has none, or no element."""
    if tensor.layout is not torch.strided or tensor.is_meta or is_lazy(tensor) or not tensor.numel():
        return None
    last = sum(
        int(size - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return tensor.untyped_storage().data_ptr(), begin, begin + (last + 1) * tensor.element_size()
