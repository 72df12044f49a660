"""A training script that uses Ringleader's exchange and nothing else: no session, no commits, no recovery."""

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ringleader.bench.processes.children import child_parser, die_with_parent
from ringleader.bench.processes.gate import LOOPBACK, Turnstile
from ringleader.bench.processes.harness import OneGeneration
from ringleader.bench.training.workloads import WORKLOADS, InMemoryRows, Workload
from ringleader.elastic import ParkReport, Plan
from ringleader.exchange import Exchange, open_exchange
from ringleader.train.memory import keep_freed_memory

WARM_UP_STEPS = 10


class Script:
    """A loop over rows in memory; every shard of this worker is one slice, as in a session."""

    def __init__(
        self, workload: Workload, rows: InMemoryRows, plan: Plan, rank: int, transport: object
    ) -> None:
        # The same weights on every rank: nobody broadcasts them here.
        torch.manual_seed(0)
        self._workload = workload
        self._rows = rows
        self._plan, self._rank = plan, rank
        self._net = workload.net()
        self._optimizer = workload.optimizer(self._net.parameters())
        self._word = torch.zeros(plan.world)
        self._order = torch.empty(0, dtype=torch.int64)
        self._exchange: Exchange = open_exchange(
            architecture="ring",
            algorithm="auto",
            same_bits=True,
            plan=plan,
            rank=rank,
            transport=transport,  # type: ignore[arg-type]
            parameters=list(self._net.parameters()),
            word_length=plan.world,
            buckets=None,
        )

    def step(self) -> None:
        batch, exchange = self._next_batch(), self._exchange
        exchange.begin_step(frozenset(range(self._plan.shards)))
        for shard in self._plan.shards_of(self._rank):
            rows = batch[
                len(batch) * shard // self._plan.shards : len(batch) * (shard + 1) // self._plan.shards
            ]
            exchange.begin_slice(shard)
            loss = self._workload.loss(self._net(self._rows.x[rows]), self._rows.y[rows])
            # Weighted by its rows, so that slices of unequal size add up to the batch's mean.
            (loss * (len(rows) / len(batch))).backward()  # type: ignore[no-untyped-call]
            exchange.end_slice()
        exchange.finish(self._word)
        self._optimizer.step()
        exchange.publish()

    def close(self) -> None:
        self._exchange.close()

    def _next_batch(self) -> torch.Tensor:
        size = self._workload.global_batch
        if len(self._order) < size:
            self._order = torch.randperm(len(self._rows), generator=torch.Generator().manual_seed(0))
        batch, self._order = self._order[:size], self._order[size:]
        return batch


def main() -> None:
    asked = child_parser(
        texts=("side", "workload"), numbers=("port", "world", "rank", "block-steps", "shards")
    ).parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    store = TCPStore(LOOPBACK, asked.port, is_master=False)
    members = OneGeneration(
        store_port=asked.port,
        side=asked.side,
        rank=asked.rank,
        world=asked.world,
        servers=0,
        shards=asked.shards,
    )
    seat = members.next_seat(ParkReport(0, 0, 0, ""))
    workload = WORKLOADS[asked.workload]
    script = Script(workload, workload.rows(), seat.plan, seat.rank, seat.transport)
    for _ in range(WARM_UP_STEPS):
        script.step()
    turnstile = Turnstile(store, asked.side, asked.rank, asked.block_steps)
    turnstile.ready()
    step, over = 0, False
    while not over:
        over = turnstile.at(step)
        script.step()
        step += 1
    script.close()
    print("{}", flush=True)


if __name__ == "__main__":
    die_with_parent()
    main()
