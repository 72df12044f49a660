"""A worker of the checkpoint benchmark: a real session, whose commits are timed."""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from ringleader.bench.processes.children import child_parser, die_with_parent
from ringleader.bench.processes.harness import Nowhere, OneGeneration
from ringleader.bench.training.workloads import InMemoryRows
from ringleader.checkpoint.manifest import SavedPart
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.run import run

PIECES = "checkpoints"
HELD = 3
"""Kinds of turns, in their order: nothing, the peer's save, a checkpoint."""
APART = 32
"""Steps between two turns: as a rule a turn's work is over by the next one."""
WIDTH, HIDDEN, BATCH = 1024, 2660, 16


class CheckpointSink(Nowhere):
    """A record sink that notes when a part of a checkpoint was written. It acknowledges records as a supervisor does:
    all that are not yet acknowledged are written into each checkpoint."""

    def __init__(self) -> None:
        self.written: dict[int, float] = {}
        self.last: SavedPart | None = None
        self._settled = 0

    def saved(self, saved: SavedPart) -> None:
        self.written[saved.position.step] = time.perf_counter()
        self.last = saved

    def settled(self, step: int) -> None:
        self._settled = step

    def recorded_step(self) -> int:
        return self._settled


class Timed:
    """The training function: `rounds` times the turns of `HELD`, in their order."""

    def __init__(self, rounds: int, path: Path | None) -> None:
        self._steps = APART * (HELD * rounds + 1)
        self._path = path
        self.commits: list[float] = []

    def __call__(self, session: Session) -> None:
        net = session.model(
            nn.Sequential(
                nn.Linear(WIDTH, HIDDEN),
                nn.ReLU(),
                nn.Linear(HIDDEN, HIDDEN),
                nn.ReLU(),
                nn.Linear(HIDDEN, WIDTH),
            )
        )
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9))
        session.on_commit(lambda: self._committed(net, optimizer))
        x = torch.randn(BATCH * APART, WIDTH, generator=torch.Generator().manual_seed(1))
        rows = InMemoryRows(x, x.roll(1, dims=1))
        while session.global_step < self._steps:
            for batch in session.batches(rows):
                session.step(F.mse_loss(net(batch["x"]), batch["y"]))

    def _committed(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        # Before the save: its pause has to lie in the gap behind this commit, as a checkpoint's does.
        self.commits.append(time.perf_counter())
        turn, rest = divmod(len(self.commits), APART)
        if not rest and turn % HELD == 2 and self._path is not None:
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, self._path)


def job(world: int) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "bench",
            "entrypoint": "ringleader.bench.elasticity.checkpoint_member:main",
            "workers": {"min": world, "max": world},
            "batch": {"global_size": BATCH, "logical_shards": world},
            # By steps alone: one by time could fall into any turn.
            "checkpoint": {"every_steps": APART * HELD, "every_s": None},
        }
    )


def main() -> None:
    asked = _arguments()
    torch.set_num_threads(1)
    sink = CheckpointSink()
    function = Timed(asked.rounds, asked.place / "peer.pt" if asked.rank == 0 else None)
    run(
        spec=job(asked.world),
        function=function,
        coordinator=OneGeneration(
            store_port=asked.port,
            side="ours",
            rank=asked.rank,
            world=asked.world,
            servers=0,
            shards=asked.world,
        ),
        sink=sink,
        server=False,
        artifacts=asked.place,
        checkpoints=str(asked.place / PIECES),
    )
    assert sink.last is not None
    answer = {"commits": function.commits, "written": sink.written, "last": asdict(sink.last)}
    print(json.dumps(answer), flush=True)


def _arguments() -> argparse.Namespace:
    parser = child_parser(numbers=("port", "world", "rank", "rounds"))
    parser.add_argument("--place", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    die_with_parent()
    main()
