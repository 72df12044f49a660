"""Synchronous parameter servers: workers push partial sums, servers complete them, update, and publish weights.

The servers are the last ranks; each owns some parameters with their optimizer state, or all of them (`routes`). They
complete the same tree as the ring does, so both give the same bits.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import Parameter

from ringleader.comm.buckets import Bucket, Buckets
from ringleader.comm.communicator import Communicator, Ticket, end_process
from ringleader.comm.schedules import RankPart, Receive, Send, Step
from ringleader.comm.schedules.star import pull, push
from ringleader.comm.seal import Seal
from ringleader.comm.simulator import ClusterCosts
from ringleader.comm.timeline import NO_TIMELINE, Timeline
from ringleader.comm.transports import Transport
from ringleader.elastic import Plan
from ringleader.exchange.exchange import Check, accept
from ringleader.exchange.local_sums import LocalSums
from ringleader.exchange.routes import Routes
from ringleader.exchange.server_transfer import MessageTransfer, ServerTransfer, SharedMemoryTransfer
from ringleader.exchange.side_channel import BUCKETS, PARTS, WORD, SideChannel, everyones_part, sum_steps
from ringleader.exchange.sparse_sums import SparseSums, store


class ParameterServer:
    """The exchange wherever `sync` names a `parameter_server`, on workers and on servers. Implements Exchange.

    Args:
        buckets: in shared memory where the transport shares it; each with its owner.
        timeline: records what is exchanged and when.
        routes: the servers that keep each part, and the ranks through which it goes.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        rank: int,
        same_bits: bool,
        transport: Transport,
        buckets: Buckets,
        routes: Routes,
        timeline: Timeline = NO_TIMELINE,
    ) -> None:
        if plan.servers < 1:
            raise ValueError("this exchange needs at least one server, and the plan has none")
        self._plan = plan
        self._rank = rank
        self._same_bits = same_bits
        self._servers = plan.servers
        self._first = plan.world
        self.updates = rank >= self._first
        self._transport = transport
        self._communicator = Communicator(transport, timeline)
        self._side = SideChannel(self._communicator)
        self._routes = routes
        self._held = routes.held(rank) if self.updates else None
        self._copied = self.updates and routes.copied
        self._tickets: list[Ticket] = []
        self._closed = False
        self.lay(buckets)

    def lay(self, buckets: Buckets) -> None:
        self._buckets, plan = buckets, self._plan
        self._mine = LocalSums(
            plan,
            self._rank,
            buckets,
            same_bits=self._same_bits,
            submit=self._push,
            submit_rows=self._push_rows,
        )
        # Two slots a bucket: one for the workers' rows, one for the weights.
        in_place, slots = buckets.arena is not None and bool(buckets.buckets), 2 * len(buckets.buckets)
        board = self._transport.board(slots, self._mine.most_rows) if in_place else None
        self._in_place = board is not None
        self._delivery: ServerTransfer = (
            MessageTransfer(self._communicator, buckets, self._routes)
            if board is None
            else SharedMemoryTransfer(self._communicator, buckets, self._routes, board, workers=plan.world)
        )
        self._rows = SparseSums(
            self._communicator,
            buckets.tables,
            {n: _ranks_of(plan, buckets.owners[n]) for n in buckets.tables.names},
            rank=self._rank,
            tag=BUCKETS + 2 * len(buckets.buckets),
            number=len(buckets.buckets),
        )

    @property
    def buckets(self) -> Buckets:
        return self._buckets

    @property
    def communicator(self) -> Communicator:
        """The communicator, also for leased items that are pushed beside the transactions of this exchange."""
        return self._communicator

    @property
    def part(self) -> list[Parameter] | None:
        if self._held is None:
            return None
        owned = zip(self._buckets.parameters, self._buckets.owners, strict=True)
        return [parameter for parameter, owner in owned if owner in self._held]

    @property
    def used(self) -> list[bool]:
        return self._buckets.used

    @property
    def exposed_s(self) -> float:
        return self._communicator.blocked_s

    def begin_step(self, present: frozenset[int], stepped: Sequence[Parameter] | None = None) -> None:
        self._tickets = []
        self._mine.begin_step(present, stepped)

    def begin_slice(self, shard: int) -> None:
        self._mine.begin_slice(shard)

    def end_slice(self) -> None:
        self._mine.end_slice()

    def meet(self, word: Tensor) -> Tensor:
        total = word.detach().clone()
        self._tell(self._ask(total), total)
        return total

    def finish(self, word: Tensor, check: Check = accept) -> Tensor:
        """Exchange the words: server 0 answers one only when it holds every gradient of its own, so no worker is ahead
        of it."""
        total = word.detach().clone()
        # The answer to it also says that everybody has taken over the weights of the step before: they called `finish`.
        part = self._ask(total)
        if self._rank == self._first:
            check(total)
            self._communicator.wait(self._tickets)
            self._tell(part, total)
        else:
            # The word first: a member elsewhere in the program pushes no buckets, and `check` names it.
            self._tell(part, total)
            check(total)
            self._communicator.wait(self._tickets)
        if self.updates:
            self._buckets.expose(self._held)
            self._rows.expose()
        return total

    def complete(self, values: Tensor) -> Tensor:
        if self._held is None:
            return values
        # Two servers that hold a part say the same of it: the largest of what is said, instead of the sum.
        said = values.new_zeros((self._servers, values.numel()), device="cpu")
        said[self._rank - self._first] = values.detach()
        self._sum_over_servers(said.view(-1))
        return said.amax(dim=0).to(values.device)

    def _ask(self, total: Tensor) -> RankPart:
        """Sum all words at server 0, which then holds the sum in `total`."""
        part = everyones_part(self._rank, self._first + self._servers, total.numel())
        self._side_steps(tuple(push(part, self._first)), total)
        return part

    def _tell(self, part: RankPart, total: Tensor) -> None:
        """Copy server 0's sum to everybody."""
        self._side_steps(tuple(pull(part, self._first)), total)

    def _side_steps(self, steps: tuple[Step, ...], total: Tensor) -> None:
        self._communicator.wait([self._side.start(steps, total, tag=WORD, phase="word")])

    def publish(self) -> None:
        """Publish weights and take over those of others, once all of them have arrived: a broken publication leaves the
        old ones."""
        # Servers with copies or backups wait for each other: all have applied a step before any worker has it, so
        # whichever is lost, nobody has to take a step back.
        if self._copied:
            # A barrier: the sum is there only once every server has come here.
            self._sum_over_servers(torch.zeros(1, dtype=torch.float32))
        taken = self._rows.pull()
        self._delivery.publish(self._mine.part)
        # Rows are written only now, when all weights have come: all are taken over, or none.
        store(taken)
        self._buckets.forget_gradients()

    def all_reduce(self, values: Tensor) -> Tensor:
        return self._side.all_reduce(values)

    @property
    def seal(self) -> Seal:
        return self._side.seal

    def send_state(self, rank: int, payload: Tensor) -> None:
        self._side.send_state(rank, payload)

    def receive_state(self, rank: int) -> Tensor:
        return self._side.receive_state(rank)

    def measure(self, known: ClusterCosts | None = None) -> ClusterCosts | None:
        return known

    def go_by(self, costs: ClusterCosts | None) -> None:
        """Do nothing: pushes and pulls have one way only."""

    def chosen(self) -> None:
        return None

    def abort(self) -> None:
        self._communicator.abort()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._communicator.close():
            return
        self._buckets.taint()
        if self._in_place:
            end_process(
                "a communication thread did not end; it may still write into the other members' memory"
            )

    def _sum_over_servers(self, total: Tensor) -> None:
        """Leave the sum of what the servers say in `total`; called by servers only."""
        steps = sum_steps(self._rank - self._first, self._servers, total)
        among_servers = tuple(_shifted(step, self._first) for step in steps)
        self._communicator.wait([self._side.start(among_servers, total, tag=PARTS, phase="complete")])

    def _push_rows(self) -> None:
        self._tickets += self._rows.push(self._mine)

    def _push(self, bucket: Bucket) -> None:
        self._tickets.append(self._delivery.push(bucket, self._mine.part(bucket)))


def _ranks_of(plan: Plan, part: int) -> tuple[int, ...]:
    """The ranks that complete the sums of a part's tables, first the one that publishes them."""
    return tuple(plan.world + server for server in plan.held_by[part])


def _shifted(step: Step, by: int) -> Step:
    """The step with its peer counted among all members instead of among the servers."""
    match step:
        case Send() | Receive():
            return replace(step, peer=step.peer + by)
        case _:
            return step
