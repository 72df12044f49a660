"""One worker of the token ring's benchmark: trains a number of rows over late links and prints its rates."""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Subset

from ringleader.bench.exchange.late import LateTransport
from ringleader.bench.processes.children import child_parser, die_with_parent
from ringleader.bench.processes.harness import Nowhere, OneGeneration
from ringleader.bench.training.workloads import WORKLOADS, Workload
from ringleader.elastic import ParkReport
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.modes.token_ring.token_exchange import HEADER
from ringleader.train.ports import Seat
from ringleader.train.run import run

WARM_UP_BATCHES, PASS_BATCHES = 4, 20
LAST_STEPS = 20
"""Steps over which the loss at the end is averaged."""


class Late(OneGeneration):
    """A coordinator with one plan, whose links are late."""

    def __init__(self, *, delay_s: float, store_port: int, side: str, rank: int, world: int) -> None:
        super().__init__(store_port=store_port, side=side, rank=rank, world=world, servers=0, shards=world)
        self._delay_s = delay_s
        self.links: LateTransport | None = None

    def next_seat(self, parked: ParkReport) -> Seat:
        seat = super().next_seat(parked)
        assert seat.transport is not None, "a ring of one has no links"
        self.links = LateTransport(seat.transport, self._delay_s)
        return Seat(seat.plan, seat.rank, self.links)


class Losses(Nowhere):
    """A record sink that keeps the losses."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def metrics(self, step: int, generation: int, values: dict[str, float]) -> None:
        self.losses.append(values["loss"])


class TimedPasses:
    """A training function: a few batches to get warm, then the same rows `passes` times, on the clock.

    Attributes:
        seconds: of the rows that count, until all workers hold the same weights.
        hops: tokens that this worker passed on in that time.
    """

    def __init__(self, workload: Workload, passes: int, coordinator: Late) -> None:
        self._workload = workload
        self._passes = passes
        self._coordinator = coordinator
        self.rows = 0
        self.seconds = 0.0
        self.hops = 0

    def __call__(self, session: Session) -> None:
        rows = self._workload.rows()
        net = session.model(self._workload.net())
        session.optimizer(self._workload.optimizer(net.parameters()))
        for number in range(1 + self._passes):
            batches = PASS_BATCHES if number else WARM_UP_BATCHES
            count = min(batches * self._workload.global_batch, len(rows))
            since, before = time.perf_counter(), self._hops()
            for batch in session.batches(Subset(rows, range(count))):
                session.step(self._workload.loss(net(batch["x"]), batch["y"]))
            if number:
                self.seconds += time.perf_counter() - since
                self.hops += self._hops() - before
                self.rows += count

    def _hops(self) -> int:
        # Each hop of a token begins with one header.
        return self._coordinator.links.messages[HEADER] if self._coordinator.links else 0


def main() -> None:
    asked = _arguments()
    torch.set_num_threads(1)
    coordinator = Late(
        delay_s=asked.delay_ms / 1000,
        store_port=asked.port,
        side=asked.side,
        rank=asked.rank,
        world=asked.world,
    )
    workload = WORKLOADS[asked.workload]
    measured, sink = TimedPasses(workload, asked.passes, coordinator), Losses()
    spec = JobSpec.parse(
        {
            "name": "bench",
            "entrypoint": "ringleader.bench.training.token_member:main",
            "workers": {"min": asked.world, "max": asked.world},
            "batch": {"global_size": workload.global_batch},
            "sync": "token_ring",
        }
    )
    with tempfile.TemporaryDirectory() as artifacts:
        run(
            spec=spec,
            function=measured,
            coordinator=coordinator,
            sink=sink,
            server=False,
            artifacts=Path(artifacts),
        )
    rounds = measured.hops / asked.world  # as many tokens as workers
    last = float(np.mean(sink.losses[-LAST_STEPS:])) if sink.losses else None
    said = {"rows_per_s": measured.rows / measured.seconds, "rounds_per_s": rounds / measured.seconds}
    print(json.dumps(said | {"loss": last}), flush=True)


def _arguments() -> argparse.Namespace:
    parser = child_parser(texts=("side", "workload"), numbers=("port", "world", "rank", "passes"))
    parser.add_argument("--delay-ms", type=float, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    die_with_parent()
    main()
