"""torchft: three replicas of one process each and a lighthouse; one replica is killed and started again, over and over.

Prints one JSON line a kill. Settings: those of SETTINGS, the quickest of several tried that never lost the quorum.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ringleader.bench.broken import PeerFailed
from ringleader.bench.elasticity.commits import CommitLog, Commits, await_recovery, wait_for
from ringleader.bench.processes.children import Child, die_with_parent
from ringleader.bench.processes.gate import LOOPBACK
from ringleader.bench.training.workloads import PAUSE_S, WORKLOADS

REPLICAS = 3
SETTINGS = {"join_timeout_ms": 50, "quorum_tick_ms": 10, "heartbeat_timeout_ms": 500}
HEARTBEAT_S = 0.05
DEADLINE_S = 60.0


def main() -> None:
    asked = _arguments()
    if asked.lighthouse:
        replica(asked.lighthouse, asked.number, Path(asked.folder), asked.pause_s, asked.patience_s)
        return
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind=f"{LOOPBACK}:0", min_replicas=2, **SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        field = Field(lighthouse.address(), Path(folder), asked)
        field.kill_often(asked.kills, random.Random(asked.seed))  # noqa: S311
    lighthouse.shutdown()


class Field:
    """The three replicas, and the loop that kills one and starts it again."""

    def __init__(self, lighthouse: str, folder: Path, asked: argparse.Namespace) -> None:
        self._lighthouse = lighthouse
        self._sign = signal.SIGSTOP if asked.freeze else signal.SIGKILL
        self._pause_s = asked.pause_s
        self._words = [f"--pause-s={asked.pause_s}", f"--patience-s={asked.patience_s}"]
        self._folder = folder
        self._replicas = [self._start(number) for number in range(REPLICAS)]

    def kill_often(self, kills: int, draw: random.Random) -> None:
        try:
            for _ in range(kills):
                self._await_full()
                time.sleep(draw.uniform(0, 4 * self._pause_s))
                self._kill(draw.randrange(REPLICAS))
        finally:
            for child in self._replicas:
                child.end(grace_s=0)

    def _kill(self, number: int) -> None:
        victim = self._replicas[number].pid
        os.kill(victim, self._sign)
        killed_at = time.monotonic()
        found = await_recovery(
            lambda: Commits.read(self._folder),
            killed_at,
            victim,
            DEADLINE_S,
            lambda: self._check(but=victim),
        )
        print(json.dumps({"seconds": found.seconds, "steps_lost": found.steps_lost}), flush=True)
        # Without grace: a frozen one does not hear SIGTERM.
        self._replicas[number].end(grace_s=0)
        self._replicas[number] = self._start(number)

    def _await_full(self) -> None:
        """Wait until all three replicas commit together."""
        alive = {child.pid for child in self._replicas}
        since = time.monotonic()

        def full() -> bool | None:
            commits = Commits.read(self._folder).since(since)
            newest = commits.newest()
            return True if newest is not None and commits.members(newest) == alive else None

        wait_for("three replicas in one quorum", full, DEADLINE_S, self._check)

    def _check(self, but: int = 0) -> None:
        for child in self._replicas:
            if child.pid != but:
                child.check()

    def _start(self, number: int) -> Child:
        words = [f"--lighthouse={self._lighthouse}", f"--number={number}", f"--folder={self._folder}"]
        # Under `python -m` this module's __name__ is __main__.
        return Child(__spec__.name, words + self._words, {"OMP_NUM_THREADS": "1", "RUST_LOG": "error"})


def replica(lighthouse: str, number: int, folder: Path, pause_s: float, patience_s: float) -> None:
    """One replica's training loop, after torchft's own example. It waits `patience_s` for an exchange."""
    from torchft import Optimizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = WORKLOADS["digits"]
    rows = workload.rows()
    net = workload.net()
    inner = workload.optimizer(net.parameters())
    manager = _manager(lighthouse, number, net, inner, patience_s)
    gradient = _flat_gradient(net)
    optimizer = Optimizer(manager, inner)
    log = CommitLog(folder)
    share = workload.global_batch // REPLICAS
    draw = torch.Generator().manual_seed(number)
    while True:
        before = manager.current_step()
        picked = torch.randint(len(rows), (share,), generator=draw)
        # In place: each `.grad` has to stay a view of the flat tensor.
        optimizer.zero_grad(set_to_none=False)
        time.sleep(pause_s)
        workload.loss(net(rows.x[picked]), rows.y[picked]).backward()  # type: ignore[no-untyped-call]
        manager.allreduce(gradient).wait()
        optimizer.step()
        # A step that lost a member is dropped, and its number made again.
        if manager.current_step() > before:
            log.committed(step=before, membership=manager._quorum_id)


def _manager(
    lighthouse: str, number: int, net: nn.Module, inner: torch.optim.Optimizer, patience_s: float
) -> Any:
    """torchft's manager of one replica, with a store of its own."""
    from torchft import Manager, ProcessGroupGloo

    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    patience = timedelta(seconds=DEADLINE_S)
    return Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=patience_s)),
        load_state_dict=lambda state: (
            net.load_state_dict(state["net"]),
            inner.load_state_dict(state["opt"]),
        ),
        state_dict=lambda: {"net": net.state_dict(), "opt": inner.state_dict()},
        min_replica_size=2,
        replica_id=f"replica_{number}",
        rank=0,
        world_size=1,
        store_addr=LOOPBACK,
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname=LOOPBACK,
        timeout=timedelta(seconds=patience_s),
        quorum_timeout=patience,
        connect_timeout=patience,
        heartbeat_interval=timedelta(seconds=HEARTBEAT_S),
    )


def _flat_gradient(net: nn.Module) -> Tensor:
    """All gradients as views of one tensor, for one all-reduce a step.

    torchft's own DistributedDataParallel fails an assertion when a peer is lost on gloo (0.2.0, torch 2.13).
    """
    parameters = list(net.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters))
    for p, view in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        p.grad = view.view_as(p)
    return flat


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--freeze", action="store_true", help="SIGSTOP instead of SIGKILL")
    parser.add_argument("--pause-s", type=float, default=PAUSE_S, help="what a step sleeps")
    parser.add_argument("--patience-s", type=float, default=5.0, help="the longest wait for an exchange")
    parser.add_argument("--lighthouse", default="")
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--folder", default="")
    return parser.parse_args()


if __name__ == "__main__":
    die_with_parent()
    try:
        main()
    except ImportError as error:
        raise PeerFailed(
            f"torchft is not installed: {error}", hint="pip install 'ringleader[bench]'"
        ) from None
