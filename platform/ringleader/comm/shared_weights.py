"""Weights in shared memory: the parameters that a server owns live in an arena, where the other members read them."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter


def point_at(parameter: Parameter, memory: Tensor) -> None:
    """Have the parameter's values be those of this memory from now on."""
    # By `.data`: the program and its optimizers keep their parameter object, and no operation runs that autograd sees.
    parameter.data = memory


class BucketWeights:
    """The parameters of one bucket in shared memory. Contiguous ones live there; others stay where they are, as kernels
    round by layout, and are copied.

    Args:
        members: (number, parameter, its part of `memory`) each.

    Attributes:
        memory: (length,) in the arena.
        former: by parameter number, its memory before it moved in, if the program still holds that: a state dict
            without a copy.
    """

    def __init__(self, memory: Tensor, members: Sequence[tuple[int, Parameter, Tensor]]) -> None:
        self.memory = memory
        self.former: dict[int, Tensor] = {}
        self._members = members
        self._apart: list[tuple[Tensor, Tensor]] = []
        # Whether the parameters have memory of their own again.
        self._outside = True

    def settle(self, inherited: set[Parameter]) -> None:
        """Move the parameters in where they are not, and copy the values of those that stay apart.

        Args:
            inherited: parameters in memory of an arena before this one; those that move in are taken out of it.
        """
        if self._outside or not self._all_here():
            self._apart = []
            self._move_in(inherited)
            self._outside = False
        for weights, part in self._apart:
            part.copy_(weights)

    def move_out(self) -> None:
        """Give the parameters memory of their own."""
        if not self._outside:
            self._move_out([number for number, _, _ in self._members])
            self._outside = True

    def bring_back(self) -> None:
        """Move parameters back into memory that the program still holds."""
        if self.former:
            self._move_out(self.former)

    def here(self) -> set[Parameter]:
        """The parameters that live in this memory now."""
        return {p for _, p, part in self._members if p.data_ptr() == part.data_ptr()}

    def _all_here(self) -> bool:
        """Whether the contiguous parameters still live here: `parameter.data = …` gives one other memory."""
        elsewhere = sum(p.data_ptr() != part.data_ptr() for _, p, part in self._members)
        # Those that are not contiguous always live elsewhere.
        return elsewhere == len(self._apart)

    def _move_in(self, inherited: set[Parameter]) -> None:
        for number, parameter, part in self._members:
            self.former.pop(number, None)
            former = parameter.detach()
            if not parameter.is_contiguous():
                self._apart.append((former, part))
                continue
            # An arena's memory, this one's or the one's before, is not the program's: it is not kept.
            in_arena = parameter in inherited or former.data_ptr() == part.data_ptr()
            # Two holders are the parameter and `former`; a third one is the program's.
            if not in_arena and holders(former) > 2:
                self.former[number] = former
            inherited.discard(parameter)
            point_at(parameter, part.copy_(former))

    def _move_out(self, numbers: Collection[int]) -> None:
        for number, parameter, part in self._members:
            former = self.former.get(number)
            # Where the program has given it other memory (`.data = …`), it is left there.
            if number not in numbers or parameter.data_ptr() != part.data_ptr():
                continue
            with torch.no_grad():
                point_at(parameter, part.clone() if former is None else former.copy_(part))


class SharedWeights:
    """The weights of a list of buckets in shared memory, by the bucket's number.

    Args:
        inherited: the parameters that live in the arena of the buckets before these.
    """

    def __init__(self, inherited: set[Parameter]) -> None:
        self._inherited = inherited
        self.buckets: dict[int, BucketWeights] = {}

    def add(self, bucket: int, memory: Tensor, members: Sequence[tuple[int, Parameter, Tensor]]) -> None:
        """Give a bucket memory, as `BucketWeights` takes it."""
        self.buckets[bucket] = BucketWeights(memory, members)

    def settle(self, bucket: int) -> Tensor:
        """Move the bucket's parameters in where they are not. Returns their memory."""
        weights = self.buckets[bucket]
        weights.settle(self._inherited)
        return weights.memory

    def move_out(self) -> None:
        """Give settled parameters memory of their own."""
        # Peers that share the arena may still be reading what was published there, and the program is about to change
        # the weights.
        for weights in self.buckets.values():
            weights.move_out()

    def bring_back(self) -> None:
        """Move parameters back into memory that the program still holds, before it runs."""
        # What the program holds then shows the parameters' values, as in one process.
        for weights in self.buckets.values():
            weights.bring_back()

    def here(self) -> set[Parameter]:
        """The parameters that live in the arena now."""
        return set().union(*(weights.here() for weights in self.buckets.values()))


def holders(tensor: Tensor) -> int:
    """The number of tensors over the same storage, this one included."""
    storage = tensor.untyped_storage()  # holds it, too
    return torch._C._storage_Use_Count(storage._cdata) - 1
