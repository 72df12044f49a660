"""The rows of a server's tables that have changed in a loop, and since when: those that a worker has to be sent."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from ringleader.comm.rows import SparseRows


class ChangedRows:
    """One loop's changed rows, in the tables of one server. A version is a number of updates; the loop begins with 0,
    when all members have the same rows.

    Args:
        tables: (rows, width) by parameter number.
    """

    def __init__(self, tables: Mapping[int, Tensor]) -> None:
        self._tables = tables
        self._since = {n: torch.zeros(len(table), dtype=torch.int32) for n, table in tables.items()}

    def update(self, sums: Sequence[SparseRows], version: int) -> None:
        """Mark the rows of these sums, one for each table, as new since that version."""
        for since, rows in zip(self._since.values(), sums, strict=True):
            since[rows.indices.cpu()] = version

    def all_new(self, version: int) -> None:
        """Mark every row as new for readers of any version before: which ones changed is not known here."""
        for since in self._since.values():
            # Not 0: a reader that has the loop's start, version 0, lacks them too.
            since.fill_(max(version, 1))

    def after(self, version: int) -> dict[int, Tensor]:
        """The rows that have changed since that version, (n,) int64 by parameter number; a negative version means that
        the reader has what it had at the loop's start."""
        return {
            number: (since > max(version, 0)).nonzero()[:, 0].to(self._tables[number].device)
            for number, since in self._since.items()
        }

    def news(self, version: int, numbers: Collection[int]) -> list[tuple[Tensor, SparseRows]]:
        """The changed rows of some of the tables, as they are now."""
        found = []
        for number, indices in self.after(version).items():
            if number in numbers:
                table = self._tables[number].detach()
                found.append((table, SparseRows(indices, table[indices])))
        return found
