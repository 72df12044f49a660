"""DistributedDataParallel on gloo, one worker: finds its best bucket size, then takes turns."""

import time
from collections.abc import Iterator
from datetime import timedelta
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ringleader.bench.processes.children import child_parser, die_with_parent
from ringleader.bench.processes.gate import LOOPBACK, Turnstile
from ringleader.bench.training.workloads import WORKLOADS, InMemoryRows, Workload
from ringleader.train.memory import keep_freed_memory

BUCKETS_MB = (1, 5, 25, 100)
TRIAL_STEPS = 8
DEADLINE = timedelta(seconds=600)


def main() -> None:
    asked = child_parser(
        texts=("side", "workload"), numbers=("port", "world", "rank", "block-steps")
    ).parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as our own workers do: worth a tenth of a step here, and open to anybody
    store = TCPStore(LOOPBACK, asked.port, is_master=False, timeout=DEADLINE)
    # A prefix of its own: the turns' keys are in the same store.
    group_store = PrefixStore(f"{asked.side}/group", store)
    dist.init_process_group(
        "gloo", store=group_store, rank=asked.rank, world_size=asked.world, timeout=DEADLINE
    )
    workload = WORKLOADS[asked.workload]
    trainer = Trainer(workload, workload.rows(), asked.rank, asked.world)
    bucket_mb = min(BUCKETS_MB, key=trainer.trial)
    trainer.rebuild(bucket_mb)
    trainer.run(TRIAL_STEPS)
    turnstile = Turnstile(store, asked.side, asked.rank, asked.block_steps)
    turnstile.ready()
    step = 0
    while True:
        over = turnstile.at(step)
        trainer.step()
        step += 1
        if over:
            break
    print(f'{{"bucket_mb": {bucket_mb}}}', flush=True)
    dist.destroy_process_group()


class Trainer:
    """A plain DDP loop over rows that already lie in memory: no loader, no logging, nothing to slow it."""

    def __init__(self, workload: Workload, rows: InMemoryRows, rank: int, world: int) -> None:
        self.workload = workload
        self.share = workload.global_batch // world
        self.rank = rank
        self.rows = rows
        self.rebuild(BUCKETS_MB[0])

    def rebuild(self, bucket_mb: int) -> None:
        torch.manual_seed(0)
        net = self.workload.net()
        self.net: nn.Module = DistributedDataParallel(
            net,
            bucket_cap_mb=bucket_mb,
            gradient_as_bucket_view=True,
            static_graph=True,
            broadcast_buffers=False,
        )
        self.optimizer: Optimizer = self.workload.optimizer(net.parameters())
        self.batches = self._batches()

    def trial(self, bucket_mb: int) -> float:
        """Seconds a step with this bucket size; the slowest rank's, so that all agree on the best."""
        self.rebuild(bucket_mb)
        # Not counted: DDP puts its buckets into another order after the first step.
        self.run(3)
        slowest = torch.tensor(median(self.run(TRIAL_STEPS)))
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.item()

    def run(self, steps: int) -> list[float]:
        took: list[float] = []
        for _ in range(steps):
            start = time.perf_counter()
            self.step()
            took.append(time.perf_counter() - start)
        return took

    def step(self) -> None:
        x, y = next(self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        self.workload.loss(self.net(x), y).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled epochs, one after the other; each rank takes its share of every global batch."""
        epoch = 0
        while True:
            order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(epoch))
            for batch in torch.split(order, self.workload.global_batch):
                if len(batch) == self.workload.global_batch:
                    rows = batch[self.rank * self.share : (self.rank + 1) * self.share]
                    yield self.rows.x[rows], self.rows.y[rows]
            epoch += 1


if __name__ == "__main__":
    die_with_parent()
    main()
