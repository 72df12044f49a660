"""A worker's push: the gradient of a leased slice, and all that goes with it."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ringleader.comm.rows import SparseRows, give_rows
from ringleader.train.generation.control_word import SliceReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.async_server.messages import MessageLayout, PullReply, PushHeader
from ringleader.train.modes.async_server.server.gradient_sums import report_words
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.rows.slices import Slice


class PushBuilder:
    """Builds pushes; the gradients are left in the first rows of the exchange's buckets."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._told: tuple[str, ...] = ()
        self._last_s = self._exposed_s = self._loading_s = 0.0

    @property
    def layout(self) -> MessageLayout:
        member = self._member
        starts = bool(member.spec.sync.server_backups)
        return MessageLayout(
            len(member.parameters), self.blocks, member.buffers.size_bytes, len(member.tables), starts
        )

    @property
    def blocks(self) -> int:
        """Blocks of the norms that go with each push, where several servers hold an item's gradient in parts; else
        0."""
        sync = self._member.spec.sync
        apart = sync.consistency == "async" and sync.server_count > 1
        return self._member.held.block_count if apart else 0

    def start_clock(self) -> None:
        """Begin a loop: what this worker waits for from now on goes with its pushes."""
        self._times()

    def begin(self) -> None:
        """Begin a generation, whose servers have not been told the metrics' names."""
        self._told = ()

    def left(self, turn: Slice) -> Tensor | None:
        """(bytes,) uint8 of the buffers that the forward left, if they are the ones that count."""
        # A step's buffers are those that its slice of shard 0 left, whoever computed that.
        if turn.shard == 0:
            self._member.buffers.keep_left()
        return self._member.buffers.left_bytes()

    def backward(self, loop: BatchLoop, loss: Tensor, weight: float, clock: int) -> None:
        """Run the backward of the slice's part in its update; of its own mean where it is an update by itself."""
        buckets = self._member.generation.exchange.buckets
        # With `async` the server weighs an item: it alone knows the mean weight so far.
        if self._member.spec.sync.consistency != "async":
            loss = loss * (weight / loop.epoch.batch_rows(clock))
        buckets.begin_step()
        buckets.begin_slice(0, 0, _ignore)
        self._member.kernels.backward(loss)
        buckets.end_slice()
        self._member.trained.check_reached()

    def make(
        self, answer: PullReply, report: SliceReport, names: Sequence[str], left: Tensor | None, *, stop: bool
    ) -> tuple[PushHeader, list[Tensor], list[SparseRows]]:
        """The push of the last backward: its header, what follows the gradient, and its rows of each table."""
        told = self._names(tuple(names))
        buckets = self._member.generation.exchange.buckets
        # One slice was computed, so each table has one partial sum.
        tables = [buckets.tables.partials(number)[0] for number in buckets.tables.names]
        exposed_s, since_s, loading_s = self._times()
        push = PushHeader(
            leaving=False,
            item=answer.item,
            clock=answer.clock,
            version=answer.version,
            stop=stop,
            buffers=left is not None,
            names=0 if told is None else told.numel(),
            report=report_words(report),
            used=torch.tensor(buckets.used, dtype=torch.float64),
            sums=self._sums(tables),
            rows=tuple(rows.count for rows in tables),
            exposed_s=exposed_s,
            since_s=since_s,
            loading_s=loading_s,
        )
        start = self._member.buffers.committed_bytes() if left is not None and self.layout.starts else None
        return push, [extra for extra in (start, left, told) if extra is not None], tables

    def _times(self) -> tuple[float, float, float]:
        """Seconds blocked on the exchange, seconds in all, and seconds without a batch, since the call before."""
        member, now = self._member, perf_counter()
        exposed_s, loading_s = member.split.exposed_s, member.split.loading_s
        if member.current is not None:
            exposed_s += member.current.exchange.exposed_s
        times = exposed_s - self._exposed_s, now - self._last_s, loading_s - self._loading_s
        self._last_s, self._exposed_s, self._loading_s = now, exposed_s, loading_s
        return times

    def _sums(self, tables: Sequence[SparseRows]) -> Tensor:
        """(blocks,) float64 of the norms over the gradient in the first rows and in these rows of each table."""
        if not self.blocks:
            return torch.zeros(0, dtype=torch.float64)
        buckets = self._member.generation.exchange.buckets
        buckets.expose()
        for (_, table), rows in zip(buckets.tables, tables, strict=True):
            give_rows(table, rows)
        sums = torch.cat(self._member.held.norm_blocks()).cpu()
        buckets.forget_gradients()
        return sums

    def _names(self, names: tuple[str, ...]) -> Tensor | None:
        """(bytes,) uint8 of the metrics' names, once a generation."""
        if self._told == names:
            return None
        self._told = names
        # A copy: torch warns of arrays that cannot be written to.
        return torch.from_numpy(np.frombuffer("\n".join(names).encode(), dtype=np.uint8).copy())


def _ignore(_: Any) -> None:
    """Ignore full buckets: the whole gradient goes at once, after the backward."""
