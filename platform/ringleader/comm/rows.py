"""Gradients of which only some rows exist: what `nn.Embedding(sparse=True)` leaves, summed without a dense copy.

A table is a parameter of (rows, width) whose gradients come as torch's sparse COO tensors. It has no bucket. A slice's
gradient becomes its touched rows, each once and in ascending order; two partial sums are added row by row, where a row
that only one of them has stays as it is. So sums associate along the same tree as those of buckets, whoever owned the
slices, and equal them (but for the sign of a zero); what nobody touched is neither held nor sent nor updated.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.sparse import check_sparse_tensor_invariants

from ringleader.errors import StepMisuse


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Some rows of a table.

    Attributes:
        indices: (n,) int64, ascending, each once.
        values: (n, width) in the table's dtype.
    """

    indices: Tensor
    values: Tensor

    @property
    def count(self) -> int:
        return self.indices.numel()

    @property
    def nbytes(self) -> int:
        return self.indices.nbytes + self.values.nbytes


def no_rows(table: Tensor) -> SparseRows:
    return SparseRows(
        torch.empty(0, dtype=torch.int64, device=table.device), table.new_empty(0, table.shape[1])
    )


def rows_of(gradient: Tensor) -> SparseRows:
    """The rows of a sparse gradient; those that occur more than once are added in the order in which they occur."""
    # The raw ones: `indices()` refuses a gradient that was not coalesced.
    # Not by `coalesce`, which sorts in an order that depends on the kind of processor.
    indices, values = gradient._indices()[0], gradient._values()
    # Only on the CPU does index_add_ go in the order of its index; on a device its adds race.
    if values.device.type == "cpu":
        once, place = torch.unique(indices, return_inverse=True)
        return SparseRows(once, values.new_zeros(len(once), values.shape[1]).index_add_(0, place, values))
    # Stable, so that equal indices keep the order in which they occur.
    ascending, order = indices.sort(stable=True)
    once, counts = torch.unique_consecutive(ascending, return_counts=True)
    # `unsafe` leaves out a check of the counts, for which the host would have to wait for the device.
    return SparseRows(once, torch.segment_reduce(values[order], "sum", lengths=counts, axis=0, unsafe=True))


def added(one: SparseRows, other: SparseRows) -> SparseRows:
    """The sum of two partial sums, row by row."""
    if not one.count or not other.count:
        return one if one.count else other
    # `unique` sorts, and rows have to ascend.
    indices, place = torch.unique(torch.cat([one.indices, other.indices]), return_inverse=True)
    values = one.values.new_zeros(len(indices), one.values.shape[1])
    values.index_copy_(0, place[: one.count], one.values)
    return SparseRows(indices, values.index_add_(0, place[one.count :], other.values))


def give_rows(table: Tensor, rows: SparseRows | None) -> None:
    """Make these rows the table's `.grad`; None: it has none."""
    table.grad = None if rows is None else as_gradient(rows, table)


def as_gradient(rows: SparseRows, table: Tensor) -> Tensor:
    """A coalesced sparse COO gradient of the table's shape, over the same memory."""
    return torch.sparse_coo_tensor(
        rows.indices[None], rows.values, table.shape, check_invariants=False, is_coalesced=True
    )


class SparseTables:
    """The row gradients of one step on one member. Lives as long as the buckets it belongs to.

    Attributes:
        names: the tables' names, by parameter number.
        parameters: all parameters of the buckets, tables and others.
        changed: by parameter number: (n,) int64, the rows that the newest update of this member's part changed.
        wire_bytes: bytes of rows that this member has sent, indices and counts included.
    """

    def __init__(self, parameters: Sequence[Parameter], names: Mapping[int, str]) -> None:
        self.names = dict(sorted(names.items()))
        self.changed: dict[int, Tensor] = {}
        self.wire_bytes = 0
        self.parameters = parameters
        self._stacks: dict[int, list[SparseRows]] = {number: [] for number in self.names}
        self._place = 0
        self._adds = 0
        if self.names and not check_sparse_tensor_invariants.is_enabled():  # type: ignore[no-untyped-call]
            # Set explicitly: torch warns all callers that leave it open, its own optimizers among them.
            check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]

    def go_on(self, before: "SparseTables") -> None:
        """Take over the changed rows and the bytes sent from the tables that these replace."""
        self.changed, self.wire_bytes = before.changed, before.wire_bytes

    def have_changed(self, rows: dict[int, Tensor]) -> None:
        """Record which rows updates of this member's part have changed since they were last published."""
        self.changed = rows

    def sent(self, nbytes: int) -> None:
        """Count bytes of rows that this member has sent."""
        self.wire_bytes += nbytes

    @property
    def nbytes(self) -> int:
        """The bytes of all partial sums that are held."""
        return sum(rows.nbytes for stack in self._stacks.values() for rows in stack)

    def __iter__(self) -> Iterator[tuple[int, Parameter]]:
        """(number, parameter) of each table, in ascending order."""
        return ((number, self.parameters[number]) for number in self.names)

    def all_changed(self, parameters: Collection[Parameter]) -> None:
        """Mark all rows of these tables as changed, so that they are published whole once: their updates were made
        elsewhere, and which rows the others lack is not known."""
        wanted = {id(p) for p in parameters}
        for number in self.names:
            if id(table := self.parameters[number]) in wanted:
                self.changed[number] = torch.arange(len(table), device=table.device)

    def begin_step(self) -> None:
        for stack in self._stacks.values():
            stack.clear()

    def begin_slice(self, place: int, adds: int) -> None:
        """Take the next gradients as partial sum `place`, then merge the two top ones `adds` times."""
        self._place, self._adds = place, adds

    def take(self, number: int, gradient: Tensor) -> None:
        """Take a slice's gradient of one table. Raises StepMisuse where it is dense."""
        if not gradient.is_sparse:
            raise StepMisuse(
                f"the weight {self.names[number]!r} of an embedding with sparse=True received a dense gradient: "
                "something else uses it as well.",
                hint="Make the embedding with sparse=False, or do not tie its weight.",
            )
        self._put(number, rows_of(gradient.detach()))

    def end_slice(self) -> None:
        """Close the slice: tables that the backward did not reach have no rows in it."""
        for number, table in self:
            if len(self._stacks[number]) == self._place:
                self._put(number, no_rows(table))
        for stack in self._stacks.values():
            for _ in range(self._adds):
                right = stack.pop()
                stack.append(added(stack.pop(), right))

    def partials(self, number: int) -> list[SparseRows]:
        """This member's partial sums, in ascending order of the tree's nodes."""
        return self._stacks[number]

    def expose(self, number: int, total: SparseRows) -> None:
        """Make this sum the table's gradient, and drop the partial sums."""
        give_rows(self.parameters[number], total)
        self._stacks[number].clear()

    def _put(self, number: int, rows: SparseRows) -> None:
        self._stacks[number].append(rows)
