"""A worker's side where servers lease items: it asks, the loop body runs, it pushes."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from ringleader.comm.rows import SparseRows
from ringleader.errors import ExchangeBroken
from ringleader.train.body.turns import BodyTurns
from ringleader.train.generation.control_word import SliceReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.async_server.messages import (
    NOT_YET,
    OVER,
    MessageLayout,
    PullReply,
    PushHeader,
    RequestKind,
)
from ringleader.train.modes.async_server.worker.push import PushBuilder
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.ports import check_given_up
from ringleader.train.rows.slices import Slice, load, to_device


class ItemSource(Protocol):
    """A source of items in one generation, see `ServerClient`."""

    @property
    def have(self) -> tuple[int, ...]: ...

    def ask(self, wish: RequestKind, stop: int = -1) -> PullReply: ...

    def take_over(self) -> Tensor | None: ...

    def push(
        self, push: PushHeader, versions: tuple[int, ...], extras: list[Tensor], tables: list[SparseRows]
    ) -> None: ...

    def pushed(self) -> None: ...

    def leave(self) -> None: ...


class AsyncWorker:
    """The worker of one loop at a time. Methods that ask or push may raise ExchangeBroken.

    Where leased items make the updates of synchronous servers, `step` returns with the next item of the batch, or
    behind its commit, so that a loop is left and stopped at the same places as with synchronous servers.

    Args:
        advance: commits what was committed elsewhere, up to a global step.
        progress: called with the training thread's phase.

    Attributes:
        item_source: the source of items; None until a generation has one, and when it broke.
    """

    def __init__(
        self,
        member: Member,
        device: torch.device,
        turns: BodyTurns,
        advance: Callable[[int], None],
        progress: Callable[[str], None],
    ) -> None:
        self._turns = turns
        self.item_source: ItemSource | None = None
        self._member = member
        self._device = device
        self._advance = advance
        self._progress = progress
        self._pushes = PushBuilder(member)
        self._in_step = member.spec.sync.leased_in_step
        self._answer: PullReply | None = None
        self._unused = False
        self._stop_after: int | None = None
        self._pushed_at = self._seen = -1

    @property
    def layout(self) -> MessageLayout:
        return self._pushes.layout

    def begin(self) -> None:
        """Begin a loop."""
        self._stop_after = self.item_source = None
        self._pushed_at, self._seen = -1, 0
        self._pushes.start_clock()

    def go(self, item_source: ItemSource) -> None:
        """Begin a generation with its source of items; this worker holds no lease."""
        self.item_source, self._unused = item_source, False
        self._pushes.begin()

    def rest(self) -> None:
        """End a generation, or wait for its begin: there is no source of items."""
        self.item_source = None

    @property
    def mid_batch(self) -> bool:
        """Whether this worker has pushed a part of a batch whose beginning its loop body has seen.

        Where items come in any order one that is given back costs the others nothing: there a loop is left at any turn.
        """
        offset = self._member.progress.calls.offset
        return self._in_step and self.item_source is not None and self._pushed_at == offset == self._seen

    def request_stop(self) -> None:
        """Ask for the end of the loop. Between two slices of a batch this counts as behind the last one: workers with
        fewer of them are there already."""
        offset = self._member.progress.calls.offset
        later = self._in_step and self._turns.running is None and self._pushed_at == offset
        clock = offset + later
        self._stop_after = clock if self._stop_after is None else min(clock, self._stop_after)

    def slices(self, loop: BatchLoop) -> Iterator[Any]:
        """The turns of one generation."""
        item_source = self._item_source
        while (answer := self._next()).item != OVER:
            offset, shard = divmod(answer.item, loop.epoch.shards)
            piece = loop.slice(self._member, offset, shard)
            self._member.timeline.begin("item", step=piece.step + 1, slice=piece.shard)
            self._progress("forward")
            with self._member.split.loading():
                # Loaded before the weights are taken over, which are on their way meanwhile.
                batch = self._load(loop, piece)
            if not self._in_step:
                self._take_over(item_source)
            self._member.buffers.rewind()
            self._turns.begin(piece)
            yield batch
            self._turns.check_ended()
            if self.item_source is None:
                raise ExchangeBroken(rank=-1, phase="forward", bucket=None, why="the push before broke")
        item_source.leave()

    def step(self, loop: BatchLoop, turn: Slice, loss: Tensor, report: SliceReport) -> None:
        """Run the backward of one slice; its gradient is on the way when this returns."""
        self._push(loop, turn, loss, report)
        self._pushed_at = self._member.progress.calls.offset
        if self._in_step:
            self._ask()
            self._unused = True
            if self._pushed_at < self._member.progress.calls.offset:
                self._seen = self._member.progress.calls.offset
            self._progress("between")

    def leave(self) -> None:
        """End the loop for all: its body has left by `break` here."""
        item_source = self._item_source
        self._progress("exchange")
        # First: at `BREAK` the server takes back what this worker has leased, and refuses a push that comes later.
        item_source.pushed()
        answer = item_source.ask(RequestKind.BREAK)
        self._learn(answer)
        item_source.leave()

    def _next(self) -> PullReply:
        """The reply with the next item, or with `OVER`."""
        while not self._unused or self._newest.item == NOT_YET:
            self._ask()
            self._unused = True
        self._unused = False
        return self._newest

    def _ask(self) -> None:
        item_source = self._item_source
        self._progress("exchange")
        stop = self._stop_after if self._in_step and self._stop_after is not None else -1
        self._answer = item_source.ask(RequestKind.ITEM, stop)
        if self._in_step:  # what happens once a step sees the weights that the step left
            self._take_over(item_source)
        self._learn(self._answer)

    def _learn(self, answer: PullReply) -> None:
        self._member.progress.take_loss(answer.loss)
        self._advance(answer.step)

    def _take_over(self, item_source: ItemSource) -> None:
        committed = item_source.take_over()
        if committed is not None:
            self._member.buffers.put(committed)

    def _load(self, loop: BatchLoop, piece: Slice) -> Any:
        """The batch of an item, loaded in this process: which item comes next is known only when it is leased."""
        loaded = load(loop.dataset, [piece], seed=self._member.spec.seed, collate=loop.collate)
        return to_device(next(iter(loaded)), self._device)

    def _push(self, loop: BatchLoop, turn: Slice, loss: Tensor, report: SliceReport) -> None:
        member, item_source, answer = self._member, self._item_source, self._newest
        # Nothing else in a turn would notice it: a push is not waited for before the next one.
        check_given_up(member.coordinator, rank=-1, phase="forward")
        left = self._pushes.left(turn)
        self._progress("exchange")
        item_source.pushed()  # the rows are its until then
        self._progress("backward")
        member.timeline.begin("backward", slice=turn.shard)
        self._pushes.backward(loop, loss, report.weight, answer.clock)
        push, extras, tables = self._pushes.make(answer, report, self._turns.names, left, stop=self._stops)
        member.timeline.end()
        member.timeline.end()  # the item is computed; alone, its update follows at once
        item_source.push(push, item_source.have, extras, tables)

    @property
    def _stops(self) -> bool:
        """Whether the loop ends with the running item's update."""
        if not self._in_step:
            return self._stop_after is not None
        return self._stop_after is not None and self._stop_after <= self._newest.clock

    @property
    def _newest(self) -> PullReply:
        assert self._answer is not None, "nothing was asked"
        return self._answer

    @property
    def _item_source(self) -> ItemSource:
        assert self.item_source is not None, "the generation has no way to items"
        return self.item_source
