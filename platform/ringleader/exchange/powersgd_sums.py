"""Sums of low-rank factors (PowerSGD): two small sums for a matrix, and plain sums for what is beside it in the bucket.

The first factor is added up by one rank, which also makes it orthogonal: everybody multiplies by the same bits. The
second one travels with the bucket's small tensors. Power iteration starts anew with each generation, so that a joiner
needs nothing from the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor

from ringleader.comm.codecs import powersgd
from ringleader.comm.codecs.messages import CodecRun
from ringleader.comm.executor import Scratch, execute
from ringleader.comm.schedules import SCHEDULES, Send, Step
from ringleader.comm.schedules.schedule import Span, size
from ringleader.comm.schedules.star import pull, push
from ringleader.comm.transports import Transport
from ringleader.exchange.error_feedback import ParameterResidual
from ringleader.exchange.side_channel import everyones_part


@dataclass(frozen=True, slots=True)
class CodedMatrix:
    """One coded parameter of a bucket.

    Attributes:
        left, right: the spans of its factors in the two vectors that are summed.
    """

    run: CodecRun
    shape: tuple[int, int]
    left: Span
    right: Span


class FactorSums:
    """One bucket's sum by factors, for one generation.

    Args:
        named: (run, name, shape) of each coded parameter.
        plain: the other runs.
        root: the rank that adds up the first factors.
    """

    def __init__(
        self,
        named: Sequence[tuple[CodecRun, str, Sequence[int]]],
        plain: Sequence[CodecRun],
        *,
        rank: int,
        world: int,
        root: int,
    ) -> None:
        self._matrices: list[CodedMatrix] = []
        self._plain = list(_one_after_another(plain))
        self._guesses: dict[CodecRun, Tensor] = {}
        # Not `hash`, which differs between processes: all ranks need the same seed.
        self._seeds = {run: crc32(name.encode()) for run, name, _ in named}
        left, right = 0, sum(size(at) for _, at in self._plain)
        for run, _, shape in named:
            rows, columns = powersgd.rows_and_columns(shape)
            ends = left + rows * powersgd.RANK, right + columns * powersgd.RANK
            self._matrices.append(CodedMatrix(run, (rows, columns), (left, ends[0]), (right, ends[1])))
            left, right = ends
        self._lengths = left, right
        self._root = root
        self._gather, self._spread = (
            tuple(way(everyones_part(rank, world, left), root)) for way in (push, pull)
        )
        self._second = tuple(SCHEDULES["direct"].steps(everyones_part(rank, world, right)))

    def sum(
        self,
        row: Tensor,
        parameter_residuals: dict[CodecRun, ParameterResidual],
        scratch: Scratch,
        transport: Transport,
        tag: int,
    ) -> int:
        lefts, rights = row.new_empty(self._lengths[0]), row.new_empty(self._lengths[1])
        for matrix in self._matrices:
            torch.mm(_of(row, matrix), self._guess(matrix, row), out=_left(lefts, matrix))
        execute(self._gather, [lefts], scratch, transport, tag)
        # At one rank: a library's decomposition has other bits on another kind of CPU.
        if transport.rank == self._root:
            for matrix in self._matrices:
                powersgd.make_orthogonal(_left(lefts, matrix))
        execute(self._spread, [lefts], scratch, transport, tag)
        for run, at in self._plain:
            rights[slice(*at)] = row[slice(*run.span)]
        for matrix in self._matrices:
            self._project(matrix, row, lefts, rights, parameter_residuals[matrix.run])
        execute(self._second, [rights], scratch, transport, tag)
        for run, at in self._plain:
            row[slice(*run.span)] = rights[slice(*at)]
        for matrix in self._matrices:
            self._guesses[matrix.run] = powersgd.next_guess(_right(rights, matrix))
            powersgd.multiply_out(_left(lefts, matrix), _right(rights, matrix), _of(row, matrix))
        return sum(_sent_bytes(steps) for steps in (self._gather, self._spread, self._second))

    def _guess(self, matrix: CodedMatrix, like: Tensor) -> Tensor:
        known = self._guesses.get(matrix.run)
        if known is None:
            known = powersgd.first_guess(matrix.shape[1], self._seeds[matrix.run], like)
        return known

    def _project(
        self, matrix: CodedMatrix, row: Tensor, lefts: Tensor, rights: Tensor, residual: ParameterResidual
    ) -> None:
        """Make this worker's second factor; what lies outside the span of the first one is owed."""
        values, left, right = _of(row, matrix), _left(lefts, matrix), _right(rights, matrix)
        # A library's product will do here: this rank alone makes it, and the others get its bits.
        torch.mm(values.t(), left, out=right)
        product = torch.mm(left, right.t())
        residual.keep(values.view(-1), product.view(-1), (0, size(matrix.run.span)))


def _of(row: Tensor, matrix: CodedMatrix) -> Tensor:
    return row[slice(*matrix.run.span)].view(matrix.shape)


def _left(lefts: Tensor, matrix: CodedMatrix) -> Tensor:
    return lefts[slice(*matrix.left)].view(-1, powersgd.RANK)


def _right(rights: Tensor, matrix: CodedMatrix) -> Tensor:
    return rights[slice(*matrix.right)].view(-1, powersgd.RANK)


def _one_after_another(runs: Sequence[CodecRun]) -> Iterator[tuple[CodecRun, Span]]:
    start = 0
    for run in runs:
        yield run, (start, start + size(run.span))
        start += size(run.span)


def _sent_bytes(steps: Sequence[Step]) -> int:
    return 4 * sum(size(step.span) for step in steps if type(step) is Send)
