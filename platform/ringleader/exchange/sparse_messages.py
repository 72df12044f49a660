"""The wire format of rows: indices, then values, of one table after the other."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringleader.comm.rows import SparseRows

# An odd number of 4-byte indices must not leave float64 values unaligned.
ALIGN_BYTES = 8
COUNT_BYTES = 8
SHORT_INDEX = 1 << 31


def message_bytes(counts: Sequence[int], tables: Sequence[Tensor]) -> int:
    """Bytes of one sender's messages to one receiver: a header, then the rows of each partial sum.

    Args:
        counts: the touched rows of each partial sum.
        tables: the table of each.
    """
    return COUNT_BYTES * len(counts) + body_bytes(counts, tables)


def packed(rows: Sequence[tuple[Tensor, SparseRows]]) -> Tensor:
    """Pack rows of these tables into (n,) uint8."""
    body = torch.empty(body_bytes([part.count for _, part in rows], [t for t, _ in rows]), dtype=torch.uint8)
    at = 0
    for table, part in rows:
        size = sum(_sizes(part.count, table))
        indices, values = _views(body[at : at + size], part.count, table)
        indices.copy_(part.indices)
        values.copy_(part.values)
        at += size
    return body


def unpacked(body: Tensor, counts: Sequence[int], tables: Sequence[Tensor]) -> list[SparseRows]:
    """The rows of a body, in the order in which they were packed."""
    read, at = [], 0
    for count, table in zip(counts, tables, strict=True):
        size = sum(_sizes(count, table))
        indices, values = _views(body[at : at + size], count, table)
        read.append(SparseRows(indices.to(table.device, torch.int64), values.to(table.device)))
        at += size
    return read


def body_bytes(counts: Sequence[int], tables: Sequence[Tensor]) -> int:
    """Bytes of `counts` rows of the tables."""
    return sum(sum(_sizes(count, table)) for count, table in zip(counts, tables, strict=True))


def _views(memory: Tensor, count: int, table: Tensor) -> tuple[Tensor, Tensor]:
    """(count,) indices and (count, width) values in a message."""
    short = _sizes(count, table)[0]
    kind, width = _index_type(table), table.shape[1]
    indices = memory[: count * kind.itemsize].view(kind)
    values = memory[short : short + count * width * table.element_size()].view(table.dtype)
    return indices, values.view(count, width)


def _sizes(count: int, table: Tensor) -> tuple[int, int]:
    """Bytes of `count` indices and of as many rows of values, each rounded up."""
    return (
        _rounded(count * _index_type(table).itemsize),
        _rounded(count * table.shape[1] * table.element_size()),
    )


def _index_type(table: Tensor) -> torch.dtype:
    return torch.int32 if table.shape[0] < SHORT_INDEX else torch.int64


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
