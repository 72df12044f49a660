"""Two workers that lease items from one server, one of them slow: their rate together beside those of each alone.

All of it is one run: a schedule of blocks says which workers compute when. A resting worker keeps its lease, and nobody
waits for it, so a block with one worker measures that worker alone.
"""

import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.utils.data import Dataset

from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.children import Child, child_parser, die_with_parent
from ringleader.bench.processes.gate import LOOPBACK
from ringleader.bench.processes.harness import Nowhere, OneGeneration
from ringleader.bench.training.workloads import REAL_IMAGES, WORKLOADS, InMemoryRows
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.run import run

STRAGGLER = "async-straggler"
WORKLOAD = "cifar"
SHARDS, WORLD, SERVERS = 4, 2, 1
SLEEPS = 4
"""Step times that the slow worker sleeps in each of its turns."""
WARM_TURNS = 8
BLOCK_S, PAUSE_S = 10.0, 1.0
DEADLINE_S = 180.0
TARGET = Target("ratio", ">=", 0.85)
BLOCKS = ((0,), (1,), (0, 1))
"""The ranks that compute in a block: the quick one alone, the slow one alone, both."""


@dataclass(frozen=True, slots=True)
class ComputingSpan:
    """A span of the machine's monotonic clock in seconds, and the ranks that compute in it."""

    start: float
    stop: float
    active: tuple[int, ...]


class Endless(Dataset[dict[str, Tensor]]):
    """The same rows over and over: one loop lasts for the whole measurement."""

    def __init__(self, rows: InMemoryRows, length: int = 1 << 21) -> None:
        self._rows = rows
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Tensor]]:
        return [self._rows[number % len(self._rows)] for number in numbers]

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return self._rows[number % len(self._rows)]


class Scheduled:
    """A training function that computes when the schedule says so, and counts its rows by block."""

    def __init__(self, store: Store, rank: int) -> None:
        self.counted: list[int] = []
        self._store = store
        self._rank = rank
        self._turns: list[float] = []
        self._blocks: list[ComputingSpan] = []
        self._nap_s = 0.0

    def __call__(self, session: Session) -> None:
        workload = WORKLOADS[WORKLOAD]
        net = session.model(workload.net())
        session.optimizer(workload.optimizer(net.parameters()))
        for batch in session.batches(Endless(workload.rows())):
            if not self._turn():
                session.stop()
            since = time.monotonic()
            session.step(workload.loss(net(batch["x"]), batch["y"]))
            time.sleep(self._nap_s)
            self._count(len(batch["y"]), since)

    def _turn(self) -> bool:
        """Wait until this worker's next block; False once there is none."""
        if len(self._turns) == WARM_TURNS:
            self._take_schedule()
        if not self._blocks:
            return True
        now = time.monotonic()
        # CLOCK_MONOTONIC is the machine's: the parent's schedule and all workers read the same one.
        due = next((b for b in self._blocks if b.stop > now and self._rank in b.active), None)
        if due is None:
            return False
        time.sleep(max(0.0, due.start - now))
        return True

    def _take_schedule(self) -> None:
        """Report this worker's turn and wait for the schedule; the quick worker's turn is the step time."""
        self._store.set(f"turn/{self._rank}", str(statistics.median(self._turns[WARM_TURNS // 2 :])))
        said = json.loads(self._store.get("schedule"))
        self._blocks = [ComputingSpan(b["start"], b["stop"], tuple(b["active"])) for b in said["blocks"]]
        self.counted = [0] * len(self._blocks)
        # Rank 0 is the quick worker.
        self._nap_s = SLEEPS * said["turn_s"] if self._rank else 0.0
        # One more than WARM_TURNS, so that the schedule is taken once.
        self._turns.append(0.0)

    def _count(self, rows: int, since: float) -> None:
        now = time.monotonic()
        if not self._blocks:
            self._turns.append(now - since)
        self._add(rows, now)

    def _add(self, rows: int, now: float) -> None:
        for number, block in enumerate(self._blocks):
            if block.start <= now < block.stop:
                self.counted[number] += rows


def measure(rounds: int) -> Figure:
    """Rows a second of both together, and of each alone, in blocks by turns: about two minutes with three rounds."""
    store = TCPStore(
        LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=DEADLINE_S)
    )
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                Child(
                    "ringleader.bench.training.straggler", [f"--port={store.port}", f"--rank={rank}"], threads
                )
            )
            for rank in range(WORLD + SERVERS)
        ]
        turns = [awaited(store, children, f"turn/{rank}") for rank in range(WORLD)]
        begin = time.monotonic() + PAUSE_S
        blocks = [
            {"start": start, "stop": start + BLOCK_S, "active": active}
            for number, active in enumerate(BLOCKS * rounds)
            for start in [begin + number * (BLOCK_S + PAUSE_S)]
        ]
        store.set("schedule", json.dumps({"blocks": blocks, "turn_s": float(turns[0])}))
        counted = [child.answer(0, DEADLINE_S)["counted"] for child in children[:WORLD]]
    rates = [sum(rows) / BLOCK_S for rows in zip(*counted, strict=True)]
    return Figure(
        case=STRAGGLER,
        unit="rows/s",
        better="higher",
        ours=rates[2::3],
        peers=[quick + slow for quick, slow in zip(rates[0::3], rates[1::3], strict=True)],
        peer_name="sum of each alone",
        target=TARGET,
        settings=_settings(rates, float(turns[0])),
    )


def awaited(store: Store, children: list[Child], key: str) -> str:
    """The value that a child sets under the key. Raises PeerFailed when one ends before."""
    # Polled: a blocking `get` would wait out its deadline where a child has died.
    while not store.check([key]):
        for child in children:
            child.check()
        time.sleep(0.05)
    told: bytes = store.get(key)
    return told.decode()


def _settings(rates: list[float], turn_s: float) -> str:
    rows = "CIFAR-10" if REAL_IMAGES.exists() else "synthetic"
    alone = [statistics.median(rates[k::3]) for k in (0, 1)]
    return (
        f"{STRAGGLER}: the image recipe's network, {rows} rows, global batch 256, L = {SHARDS}, consistency: async; "
        f"{WORLD} workers of 1 thread and {SERVERS} server on the machine's cores; one sleeps {SLEEPS} step times of "
        f"{turn_s * 1e3:.0f} ms in every turn; alone {alone[0]:.0f} and {alone[1]:.0f} rows/s, the other at rest"
    )


def job() -> JobSpec:
    workload = WORKLOADS[WORKLOAD]
    kind = "parameter_server"
    return JobSpec.parse(
        {
            "name": "bench",
            "entrypoint": "ringleader.bench.training.straggler:main",
            "workers": {"min": WORLD, "max": WORLD},
            "batch": {"global_size": workload.global_batch, "logical_shards": SHARDS},
            "sync": {"intra_node": kind, "inter_node": kind, "consistency": "async"},
        }
    )


def main() -> None:
    asked = child_parser(numbers=("port", "rank")).parse_args()
    torch.set_num_threads(1)
    store = TCPStore(LOOPBACK, asked.port, is_master=False)
    take_part(job(), Scheduled(store, asked.rank), side=STRAGGLER, port=asked.port, rank=asked.rank)


def take_part(spec: JobSpec, scheduled: Scheduled, *, side: str, port: int, rank: int) -> None:
    """Run one member to its end and print its counts."""
    coordinator = OneGeneration(
        store_port=port, side=side, rank=rank, world=WORLD, servers=SERVERS, shards=SHARDS
    )
    with tempfile.TemporaryDirectory() as artifacts:
        run(
            spec=spec,
            function=scheduled,
            coordinator=coordinator,
            sink=Nowhere(),
            server=rank >= WORLD,
            artifacts=Path(artifacts),
        )
    print(json.dumps({"counted": scheduled.counted}), flush=True)


if __name__ == "__main__":
    die_with_parent()
    main()
