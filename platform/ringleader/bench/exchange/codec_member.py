"""One worker of the codec benchmark, on its host: a real session that trains until the loss is low enough."""

import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn import functional as F

from ringleader.bench.processes.children import die_with_parent
from ringleader.bench.processes.harness import Nowhere, OneGeneration
from ringleader.bench.training.workloads import image_rows
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.rows.order.batch_sizes import steps_in_epoch
from ringleader.train.run import run

GLOBAL_BATCH = 128
WARM_UP_STEPS = 3
"""The first steps connect, measure and allocate; they are trained, and their time is not counted."""

SMOOTHED_STEPS = 20
REACHED, GOING = "reached", "going"


@dataclass(frozen=True, slots=True)
class Asked:
    """A member's arguments.

    Attributes:
        codec: also the name of its side.
        store_host, store_port: where it meets the others and is told to go.
        address: of its host.
    """

    codec: str
    store_host: str
    store_port: int
    address: str
    rank: int
    seed: int

    def as_json(self) -> str:
        return json.dumps(asdict(self))


class Stopwatch:
    """Rank 0's clock: lets its side train in its turns only, and notes the loss against its own seconds.

    The other rank needs none: without its peer it waits in its exchange.
    """

    def __init__(
        self, store: TCPStore, side: str, target: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock = clock
        self._store = store
        self._side = side
        self._target = target
        self._last = deque[float](maxlen=SMOOTHED_STEPS)
        self._block = -1
        self._since = self._until = self._before = 0.0
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def at(self, step: int, loss: float | None) -> bool:
        """Wait before a step for this side's turn. Returns whether the loss has been reached."""
        if step < WARM_UP_STEPS or loss is None:
            return False
        now = self._clock()
        if self._block >= 0:
            self._last.append(loss)
            self.seconds.append(self._before + now - self._since)
            self.losses.append(mean(self._last))
            if len(self._last) == SMOOTHED_STEPS and self.losses[-1] <= self._target:
                self._store.set(f"{self._side}/done/{self._block}", REACHED)
                return True
        if now >= self._until:
            self._wait_for_turn()
        return False

    def _wait_for_turn(self) -> None:
        if self._block >= 0:
            # This side's clock stands still until its next turn.
            self._before = self.seconds[-1]
            self._store.set(f"{self._side}/done/{self._block}", GOING)
        self._block += 1
        block_s = float(self._store.get(f"{self._side}/go/{self._block}"))
        self._since = self._clock()
        self._until = self._since + block_s


def net() -> nn.Module:
    """5.3 million parameters, (n, 3, 32, 32) → (n, 10): at 1 Gbit/s its gradients take longer than its step."""
    sizes = (3072, 1024, 1024, 1024)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))


def job(codec: str, world: int, seed: int) -> JobSpec:
    sync = {"intra_node": "ring", "inter_node": "ring", "reproducible": False, "codec": codec}
    return JobSpec.parse(
        {
            "name": "bench",
            "entrypoint": "ringleader.bench.exchange.codec_member:main",
            "workers": {"min": world, "max": world},
            "batch": {"global_size": GLOBAL_BATCH, "logical_shards": world},
            "sync": sync,
            "seed": seed,
        }
    )


def train(session: Session, stopwatch: Stopwatch | None) -> None:
    rows = image_rows()
    model = session.model(net())
    session.optimizer(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9))
    ended = False
    while not ended:
        before = session.global_step
        for batch in session.batches(rows):
            if stopwatch is not None and stopwatch.at(session.global_step, session.loss):
                session.stop()
            session.step(F.cross_entropy(model(batch["x"]), batch["y"]))
        # A pass that ended early is what the others see of the end.
        ended = session.global_step - before < steps_in_epoch(len(rows), GLOBAL_BATCH)


def main() -> None:
    asked, world, target = Asked(**json.loads(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    store = TCPStore(asked.store_host, asked.store_port, is_master=False)
    stopwatch = Stopwatch(store, asked.codec, target) if asked.rank == 0 else None
    with tempfile.TemporaryDirectory() as artifacts:
        run(
            spec=job(asked.codec, world, asked.seed),
            function=lambda session: train(session, stopwatch),
            coordinator=OneGeneration(
                store_port=asked.store_port,
                side=asked.codec,
                rank=asked.rank,
                world=world,
                servers=0,
                shards=world,
                store_host=asked.store_host,
                host=asked.address,
            ),
            sink=Nowhere(),
            server=False,
            artifacts=Path(artifacts),
        )
    if stopwatch is not None:
        print(json.dumps({"seconds": stopwatch.seconds, "losses": stopwatch.losses}), flush=True)


if __name__ == "__main__":
    die_with_parent()
    main()
