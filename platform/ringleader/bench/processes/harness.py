"""A session's workers without Ray: processes that meet in the parent's store, one generation, no recovery.

Runs where only torch is installed. What is measured is the real session, exchange and transport; what is missing is
the supervisor, which has no part in a step.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.optim import Optimizer

from ringleader.bench.broken import PeerFailed
from ringleader.bench.processes.children import child_parser, die_with_parent, run_secret
from ringleader.bench.processes.gate import LOOPBACK, Turnstile
from ringleader.bench.training.workloads import WORKLOADS, Workload
from ringleader.checkpoint.manifest import SavedPart
from ringleader.comm.timeline import TimelineStretch
from ringleader.comm.transports import Transport
from ringleader.comm.transports.meeting import MeetingCall, StoreClients, library, meet
from ringleader.elastic import NOWHERE, ParkReport, Plan
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.ports import Seat
from ringleader.train.rows.order.batch_sizes import steps_in_epoch
from ringleader.train.run import run
from ringleader.train.time_split import TimeSplit
from ringleader.wire.artifacts import SavedArtifact

DEADLINE_S = 120.0
WARM_UP_STEPS = 8


class OneGeneration:
    """A coordinator with one plan. Losing a member ends the measurement.

    Args:
        store_host, host: where the store is, and this member's own address.
    """

    def __init__(
        self,
        *,
        store_port: int,
        side: str,
        rank: int,
        world: int,
        servers: int,
        shards: int,
        secret: bytes | None = None,
        backups: int = 0,
        store_host: str = LOOPBACK,
        host: str = LOOPBACK,
    ) -> None:
        self._store_port = store_port
        self._store_host = store_host
        self._host = host
        self._side = side
        self._secret = run_secret() if secret is None else secret
        self._rank = rank
        self._plan = Plan(
            attempt=1,
            generation=1,
            members=tuple(f"w{n}" for n in range(world + servers)),
            servers=servers,
            shards=shards,
            start_transaction=0,
            heals=(),
            recorded_step=0,
            meeting=NOWHERE,
            cause="start",
            parts=servers,
            backups=backups,
        )

    def next_seat(self, parked: ParkReport) -> Seat:
        # Another seat would be a recovery, and there is no supervisor to plan one.
        if parked.generation:
            raise PeerFailed(f"the group broke at step {parked.step}: {parked.why}")
        size = len(self._plan.members)
        prefix = f"{self._side}/meet"
        place = (self._store_host, self._store_port, prefix, self._rank, size)
        call = MeetingCall(*place, DEADLINE_S, self._secret, host=self._host)
        return Seat(self._plan, self._rank, meet(call, clients=StoreClients(library)))

    def joiners(self) -> list[Transport]:
        return []

    def plan_pending(self) -> bool:
        return False

    def interrupted(self) -> bool:
        return False


class Nowhere:
    """A record sink that takes every record and keeps none."""

    def metrics(self, step: int, generation: int, values: dict[str, float]) -> None: ...

    def ledger(self, step: int, shards: np.ndarray, rows: np.ndarray) -> None: ...

    def trace(self, stretch: TimelineStretch) -> None: ...

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None: ...

    def artifact(self, artifact: SavedArtifact) -> None: ...

    def saved(self, saved: SavedPart) -> None: ...

    def settled(self, step: int) -> None: ...

    def replayed(self) -> None: ...

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None: ...

    def between(self, call: int) -> None: ...

    def within(self, *, told: bool = True) -> None: ...

    def timed(self, split: TimeSplit) -> None: ...

    def recorded_step(self) -> int:
        return 0

    def handed_over(self, timeout_s: float) -> bool:
        return True


class Measured:
    """A training function that takes turns with the other sides."""

    def __init__(self, workload: Workload, turnstile: Turnstile) -> None:
        self._workload = workload
        self._turnstile = turnstile
        self._rows = workload.rows()
        self._over = False

    def __call__(self, session: Session) -> None:
        net = session.model(self._workload.net())
        optimizers = [session.optimizer(each) for each in self._workload.optimizers(net)]
        if self._workload.ema is not None:
            session.ema(net, self._workload.ema)
        train = self._train_by_turns if self._workload.turns else self._train
        stopped = False
        while not stopped:
            before = session.global_step
            train(session, net, optimizers)
            # Servers take no turns: that a pass ended early is what they see of the end, too.
            stopped = session.global_step - before < steps_in_epoch(
                len(self._rows), self._workload.global_batch
            )

    def _train(self, session: Session, net: nn.Module, _: list[Optimizer]) -> None:
        for batch in session.batches(self._rows):
            self._take_turn(session)
            session.step(self._workload.loss(net(batch["x"]), batch["y"]))

    def _train_by_turns(self, session: Session, net: nn.Module, optimizers: list[Optimizer]) -> None:
        losses = self._workload.losses()
        for phases in session.steps(self._rows, phases=optimizers):
            for slices, loss in zip(phases, losses, strict=True):
                for batch in slices:
                    if loss is losses[0]:
                        self._take_turn(session)
                    session.step(loss(net, batch))

    def _take_turn(self, session: Session) -> None:
        if session.global_step == WARM_UP_STEPS:
            self._turnstile.ready()
        if session.global_step >= WARM_UP_STEPS:
            self._over = self._over or self._turnstile.at(session.global_step)
        if self._over:
            session.stop()


def job(
    workload: Workload,
    *,
    world: int,
    shards: int,
    reproducible: bool | None,
    servers: int = 0,
    backups: int = 0,
) -> JobSpec:
    """The job file of a measured run: defaults, except for the shards and the other arguments."""
    kind = "parameter_server" if servers else "ring"
    sync: dict[str, object] = {"intra_node": kind, "inter_node": kind, "reproducible": reproducible}
    sync |= {"servers": servers, "server_backups": backups} if servers else {}
    return JobSpec.parse(
        {
            "name": "bench",
            "entrypoint": "ringleader.bench.processes.harness:main",
            "workers": {"min": world, "max": world},
            "batch": {"global_size": workload.global_batch, "logical_shards": shards},
            "sync": sync,
        }
    )


def main() -> None:
    asked = _arguments()
    torch.set_num_threads(1)
    store = TCPStore(LOOPBACK, asked.port, is_master=False)
    workload = WORKLOADS[asked.workload]
    spec = job(
        workload,
        world=asked.world,
        shards=asked.shards,
        reproducible=False if asked.free else None,
        servers=asked.servers,
        backups=asked.backups,
    )
    with tempfile.TemporaryDirectory() as artifacts:
        finished = run(
            spec=spec,
            function=Measured(workload, Turnstile(store, asked.side, asked.rank, asked.block_steps)),
            coordinator=OneGeneration(
                store_port=asked.port,
                side=asked.side,
                rank=asked.rank,
                world=asked.world,
                servers=asked.servers,
                shards=asked.shards,
                backups=asked.backups,
            ),
            sink=Nowhere(),
            server=asked.rank >= asked.world,
            artifacts=Path(artifacts),
        )
    print(json.dumps({"steps": finished.steps, "exposed_s": finished.exposed_s}), flush=True)


def _arguments() -> argparse.Namespace:
    parser = child_parser(
        texts=("side", "workload"), numbers=("port", "world", "rank", "block-steps", "shards")
    )
    parser.add_argument("--servers", type=int, default=0, help="parameter servers behind the workers")
    parser.add_argument("--backups", type=int, default=0, help="of each server's part of the state")
    parser.add_argument("--free", action="store_true", help="reproducible: false")
    return parser.parse_args()


if __name__ == "__main__":
    die_with_parent()
    main()
