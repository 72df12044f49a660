"""A server's updates where items are leased: gathered gradients become the parameters', and the optimizers step."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ringleader.comm.buckets import drop_gradients, give_gradient
from ringleader.comm.rows import give_rows
from ringleader.errors import CallMismatch
from ringleader.train.generation.member import Member
from ringleader.train.modes.async_server.lease_queue import LeaseQueue
from ringleader.train.modes.async_server.messages import PushHeader
from ringleader.train.modes.async_server.server.gradient_sums import BucketRows, GradientSum, ReportMeans
from ringleader.train.modes.async_server.server.pending_updates import PendingUpdates
from ringleader.train.modes.async_server.server.published_weights import PublishedWeights
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.step_checks import check_finite
from ringleader.train.rows.order.cursor import checksum
from ringleader.train.state.norms import itself, scale_by
from ringleader.train.state.optimizers.schedules import at_rate


@dataclass(frozen=True, slots=True)
class AppliedItem:
    """An item in an update: its push, and the number of versions between its pull and the update."""

    push: PushHeader
    staleness: int


class _Given:
    """The norms' block sums that came with the gradient, one norm after the other. Implements Complete."""

    def __init__(self, sums: Tensor) -> None:
        self._sums = sums
        self._at = 0

    def __call__(self, own: Tensor) -> Tensor:
        start, self._at = self._at, self._at + len(own)
        return self._sums[start : self._at].to(own.device)


class ServerUpdates:
    """One loop's updates. Used by the training thread alone.

    Args:
        give_back: takes memory of gradients that is free again.
        blocks: of the norms that come with each push; 0 where this server sees whole gradients.
        staleness: counts gradients by the number of versions between their pull and their update.

    Attributes:
        pending: those that are not made yet.
        applied: the items of updates since the last step.
    """

    def __init__(
        self,
        member: Member,
        loop: BatchLoop,
        leases: LeaseQueue,
        give_back: Callable[[BucketRows], None],
        *,
        blocks: int,
        staleness: Counter[int],
    ) -> None:
        self.pending = PendingUpdates(leases, member.buffers.committed_bytes(), give_back)
        self.applied: list[AppliedItem] = []
        self._member = member
        self._loop = loop
        self._leases = leases
        self._blocks = blocks
        self._staleness = staleness
        self._weight = self._weighed_rows = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The state on which later updates of the loop depend, and the count."""
        seen = (self._weight, self._weighed_rows)
        return {"weights": seen, "staleness": Counter(self._staleness)}

    def load_state_dict(self, state: dict[str, Any], *, applied: Sequence[AppliedItem]) -> None:
        self.applied = list(applied)
        self._weight, self._weighed_rows = state["weights"]
        self._staleness.clear()
        self._staleness.update(state["staleness"])

    def make(self, published_weights: PublishedWeights) -> None:
        """Make the update that is due of what this server owns, which are the `published_weights`."""
        member, leases, gathered = self._member, self._leases, self.pending.take()
        member.timeline.begin("update", items=len(gathered.pushes))
        means = ReportMeans.of(gathered.pushes)
        self._check(gathered.pushes, means)
        member.draws.begin(member.progress.step)
        self._expose(gathered, published_weights)
        with member.draws.watched():
            self._step(gathered.pushes, means.weight)
        drop_gradients(member.parameters)
        # After the gradients are gone, which were views into this memory.
        gathered.let_go()
        # In ascending order of items: the buffers depend on the order.
        for item in sorted(gathered.moves):
            member.buffers.follow(gathered.moves[item].start, gathered.moves[item].left)
        member.progress.change()
        member.timeline.end()
        counted = [AppliedItem(push, leases.version - push.version) for push in gathered.pushes]
        self._staleness.update(one.staleness for one in counted)
        self.applied += counted
        # Only now: the update was made at the version before.
        leases.advance()
        published_weights.touched.update(gathered.total.tables, leases.version)
        if gathered.moves:
            self.pending.follow(member.buffers.committed_bytes())

    def take_step(self) -> list[AppliedItem]:
        """Take away the items since the last step: they are the next one."""
        counted, self.applied = self.applied, []
        return counted

    def _step(self, pushes: Sequence[PushHeader], weight: float) -> None:
        held = self._member.held
        if self._leases.each_alone:
            # One item's own mean gradient, at the learning rate times its share of the batch.
            optimizers = [optimizer for optimizer, _ in held.optimizers]
            with at_rate(optimizers, self._share(pushes[0], weight)):
                held.update(_Given(pushes[0].sums) if self._blocks else itself)
        else:
            self._weigh(self._loop.epoch.batch_rows(self._leases.version), weight)
            held.update()

    def _expose(self, gathered: GradientSum, published_weights: PublishedWeights) -> None:
        """Make the sums the parameters' gradients; a parameter that no slice reached has none."""
        member, used = self._member, gathered.used
        for bucket, row in zip(published_weights.held.buckets, gathered.total.dense, strict=True):
            views = member.generation.exchange.buckets.views(bucket, row)
            for number, view in zip(bucket.members, views, strict=True):
                give_gradient(member.parameters[number], view if used[number] else None)
        for number, rows in zip(published_weights.tables, gathered.total.tables, strict=True):
            give_rows(member.parameters[number], rows if used[number] else None)

    @torch.no_grad()
    def _weigh(self, rows: int, weight: float) -> None:
        for parameter in self._member.parameters:
            # Workers scaled by rows: the sum of the weights is known only here.
            if weight != rows and parameter.grad is not None:
                scale_by(parameter.grad, rows / weight)

    def _share(self, push: PushHeader, weight: float) -> float:
        """An item's share of its batch: by rows, and by a row's weight beside the mean weight so far."""
        offset, shard = divmod(push.item, self._loop.epoch.shards)
        rows = len(self._loop.epoch.rows(offset, shard))
        self._weight += weight
        self._weighed_rows += rows
        mean_weight = self._weight / self._weighed_rows
        return (weight / mean_weight) / self._loop.epoch.batch_rows(offset)

    def _check(self, pushes: Sequence[PushHeader], means: ReportMeans) -> None:
        """Check the pushes. Raises what `step_checks.check` raises: other rows than planned, a loss that is no
        number."""
        step = self._member.progress.step + 1
        for push in pushes:
            offset, shard = divmod(push.item, self._loop.epoch.shards)
            if checksum(self._loop.epoch.rows(offset, shard)) != int(push.report[2]):
                raise CallMismatch(
                    f"step {step}: slice {shard} of batch {offset} was computed from other rows than planned.",
                    hint="Give session.batches the same dataset, of the same length, on every worker.",
                )
        check_finite(means.loss, step)
