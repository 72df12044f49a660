"""A straggler where a backup worker stands in for it, beside the same group without backups, which waits for it."""

import json
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta

import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.children import Child, child_parser, die_with_parent
from ringleader.bench.processes.gate import LOOPBACK
from ringleader.bench.training.straggler import (
    DEADLINE_S,
    PAUSE_S,
    SERVERS,
    SHARDS,
    SLEEPS,
    WORKLOAD,
    WORLD,
    Scheduled,
    awaited,
    take_part,
)
from ringleader.bench.training.workloads import REAL_IMAGES, WORKLOADS
from ringleader.spec import JobSpec
from ringleader.train import Session

BACKUP_STRAGGLER = "backup-straggler"
SIDES: Mapping[str, dict[str, int]] = {"backup": {"backup_workers": 1}, "sync": {}}
BLOCK_S = 8.0
EVERYBODY = tuple(range(WORLD))
TARGET = Target("ratio", ">=", 1.0)


class Committing(Scheduled):
    """A training function that counts rows of committed steps by block: rows computed and then refused do not count."""

    def __call__(self, session: Session) -> None:
        session.on_commit(lambda: self._add(WORKLOADS[WORKLOAD].global_batch, time.monotonic()))
        super().__call__(session)

    def _count(self, rows: int, since: float) -> None:
        # For the step time alone: rows are counted when they are committed.
        if not self._blocks:
            self._turns.append(time.monotonic() - since)


def measure(rounds: int) -> Figure:
    """Rows a second that each side commits, in blocks by turns: about a minute with three rounds."""
    store = TCPStore(
        LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=DEADLINE_S)
    )
    with ExitStack() as stack:
        children: dict[str, list[Child]] = {}
        turns: list[float] = []
        for side in SIDES:  # one after the other: the quick worker's turns are measured alone
            children[side] = _started(stack, store.port, side)
            own = PrefixStore(side, store)
            turns += [float(awaited(own, children[side], f"turn/{rank}")) for rank in EVERYBODY]
        # Rank 0 of each side: the quick worker, whose turn is the step time.
        turn_s, begin = statistics.median(turns[::WORLD]), time.monotonic() + PAUSE_S
        for number, side in enumerate(SIDES):
            starts = [begin + (len(SIDES) * k + number) * (BLOCK_S + PAUSE_S) for k in range(rounds)]
            blocks = [{"start": at, "stop": at + BLOCK_S, "active": EVERYBODY} for at in starts]
            PrefixStore(side, store).set("schedule", json.dumps({"blocks": blocks, "turn_s": turn_s}))
        patience_s = DEADLINE_S + rounds * len(SIDES) * (BLOCK_S + PAUSE_S)
        counted = {side: members[0].answer(0, patience_s)["counted"] for side, members in children.items()}
    rates = {side: [rows / BLOCK_S for rows in blocks] for side, blocks in counted.items()}
    return Figure(
        case=BACKUP_STRAGGLER,
        unit="rows/s",
        better="higher",
        ours=rates["backup"],
        peers=rates["sync"],
        peer_name="our servers without backups",
        target=TARGET,
        settings=_settings(turn_s),
    )


def _started(stack: ExitStack, port: int, side: str) -> list[Child]:
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    words = [f"--port={port}", f"--side={side}"]
    return [
        stack.enter_context(Child("ringleader.bench.training.backups", [*words, f"--rank={rank}"], threads))
        for rank in range(WORLD + SERVERS)
    ]


def _settings(turn_s: float) -> str:
    rows = "CIFAR-10" if REAL_IMAGES.exists() else "synthetic"
    return (
        f"{BACKUP_STRAGGLER}: the image recipe's network, {rows} rows, global batch 256, L = {SHARDS}, "
        f"backup_workers: 1, beside sync without; {WORLD} workers of 1 thread and {SERVERS} server a side; "
        f"one worker sleeps {SLEEPS} step times of {turn_s * 1e3:.0f} ms in every turn; committed rows"
    )


def job(side: str) -> JobSpec:
    kind = "parameter_server"
    return JobSpec.parse(
        {
            "name": "bench",
            "entrypoint": "ringleader.bench.training.backups:main",
            "workers": {"min": WORLD, "max": WORLD},
            "batch": {"global_size": WORKLOADS[WORKLOAD].global_batch, "logical_shards": SHARDS},
            "sync": {"intra_node": kind, "inter_node": kind, **SIDES[side]},
        }
    )


def main() -> None:
    asked = child_parser(texts=("side",), numbers=("port", "rank")).parse_args()
    torch.set_num_threads(1)
    store = PrefixStore(asked.side, TCPStore(LOOPBACK, asked.port, is_master=False))
    committing = Committing(store, asked.rank)
    take_part(job(asked.side), committing, side=asked.side, port=asked.port, rank=asked.rank)


if __name__ == "__main__":
    die_with_parent()
    main()
