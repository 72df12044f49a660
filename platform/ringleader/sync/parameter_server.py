"""A synchronous parameter server: workers push partial sums, the server completes them, updates, and sends weights.

One server, the last rank. It completes the same tree as the ring does, so both give the same bits.
"""

from torch import Tensor

from ringleader.comm.buckets import Bucket, Buckets
from ringleader.comm.communicator import BULK, Communicator, Ticket
from ringleader.comm.schedules import Part, Step
from ringleader.comm.schedules.star import pull, push
from ringleader.comm.simulator import Costs
from ringleader.comm.transports import Transport
from ringleader.elastic import Plan
from ringleader.sync.contribution import Contribution
from ringleader.sync.exchange import Check, accept
from ringleader.sync.side import BUCKETS, WORD, Side, everyones_part


class ParameterServer:
    """Implements Exchange for `sync: parameter_server`, on workers and on the server."""

    def __init__(
        self,
        *,
        plan: Plan,
        rank: int,
        same_bits: bool,
        transport: Transport,
        buckets: Buckets,
    ) -> None:
        if plan.servers != 1:
            raise ValueError(f"this exchange has one server, the plan has {plan.servers}; plan exactly one")
        self._buckets = buckets
        self._rank = rank
        self._server = len(plan.members) - 1
        self.updates = rank == self._server
        self._communicator = Communicator(transport)
        self._side = Side(self._communicator)
        self._mine = Contribution(plan, rank, buckets, same_bits=same_bits, submit=self._submit_push)
        self._tickets: list[Ticket] = []
        self._closed = False

    @property
    def buckets(self) -> Buckets:
        return self._buckets

    @property
    def used(self) -> list[bool]:
        return self._buckets.used

    @property
    def exposed_s(self) -> float:
        return self._communicator.blocked_s

    def begin_step(self, present: frozenset[int]) -> None:
        self._tickets = []
        self._mine.begin_step(present)

    def begin_slice(self, shard: int) -> None:
        self._mine.begin_slice(shard)

    def end_slice(self) -> None:
        self._mine.end_slice()

    def meet(self, word: Tensor) -> Tensor:
        total = word.detach().clone()
        self._tell(self._ask(total), total)
        return total

    def finish(self, word: Tensor, check: Check = accept) -> Tensor:
        """The server answers a word only when it holds every gradient, so no worker is ahead of it."""
        total = word.detach().clone()
        part = self._ask(total)
        if self.updates:
            check(total)
            self._communicator.wait(self._tickets)
            self._tell(part, total)
            self._buckets.expose()
        else:
            self._tell(part, total)
            check(total)
            self._communicator.wait(self._tickets)
        return total

    def _ask(self, total: Tensor) -> Part:
        """Every word goes to the server, which then holds the sum in `total`."""
        part = everyones_part(self._rank, self._server + 1, total.numel())
        self._side_steps(tuple(push(part, self._server)), total)
        return part

    def _tell(self, part: Part, total: Tensor) -> None:
        """The server's sum goes to everybody."""
        self._side_steps(tuple(pull(part, self._server)), total)

    def _side_steps(self, steps: tuple[Step, ...], total: Tensor) -> None:
        self._communicator.wait([self._side.start(steps, total, tag=WORD, phase="word")])

    def publish(self) -> None:
        """A worker's weights change only once all of them have arrived: a broken publish leaves the old ones."""
        tickets = []
        for bucket in self._buckets.buckets:
            if self.updates:
                self._buckets.load_parameters(bucket)
            tickets.append(
                self._submit(bucket, tuple(pull(self._mine.part(bucket), self._server)), "publish")
            )
        self._communicator.wait(tickets)
        if not self.updates:
            self._buckets.store_parameters()
        self._buckets.forget_gradients()

    def all_reduce(self, values: Tensor) -> Tensor:
        return self._side.all_reduce(values)

    def send_state(self, rank: int, payload: Tensor) -> None:
        self._side.send_state(rank, payload)

    def receive_state(self, rank: int) -> Tensor:
        return self._side.receive_state(rank)

    def measure(self) -> None:
        return None

    def go_by(self, costs: Costs | None) -> None:
        """Pushes and pulls have one way only."""

    def abort(self) -> None:
        self._communicator.abort()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._communicator.close():
            self._buckets.tainted = True

    def _submit_push(self, bucket: Bucket) -> None:
        steps = tuple(push(self._mine.part(bucket), self._server))
        self._tickets.append(self._submit(bucket, steps, "push"))

    def _submit(self, bucket: Bucket, steps: tuple[Step, ...], phase: str) -> Ticket:
        part = self._mine.part(bucket)
        rows = [bucket.row(k) for k in range(max(1, len(part.rows[part.rank])))]
        tag = BUCKETS + 2 * bucket.number
        return self._communicator.submit(steps, rows, tag=tag, phase=phase, bucket=bucket.number, lane=BULK)
