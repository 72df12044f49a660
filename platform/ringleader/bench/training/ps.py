"""A step through a parameter server beside our own ring's: the same two workers, and a server on the same cores, alone
or with a backup; and the cost of a straggler where nobody waits for it, or a backup worker stands in for it."""

from collections.abc import Iterator

from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.gate import Side
from ringleader.bench.registry import Wish
from ringleader.bench.training import backups, straggler
from ringleader.bench.training.backups import BACKUP_STRAGGLER
from ringleader.bench.training.step import HARNESS, SETTINGS, WORLD, take_turns
from ringleader.bench.training.straggler import STRAGGLER
from ringleader.bench.training.workloads import REAL_IMAGES

SERVERS = 1
WORKLOADS = {
    "sync-colocated-cifar": ("cifar", 0),
    "sync-colocated-mlp": ("mlp", 0),
    "sync-backed-cifar": ("cifar", 1),
    "sync-backed-mlp": ("mlp", 1),
}
"""Case → workload, and number of the server's backups."""
CASES = (*WORKLOADS, STRAGGLER, BACKUP_STRAGGLER)
TARGET = Target("ratio", ">=", 0.87)
"""The bar of a server without backups; with one, two servers update everything."""


def run(wish: Wish) -> Iterator[Figure]:
    """Seconds a step on rank 0; both sides stay up and measure by turns."""
    for case, (workload, copies) in WORKLOADS.items():
        if wish.wants(case):
            yield _measure(case, workload, copies, wish.full)
    rounds = 6 if wish.full else 3
    if wish.wants(STRAGGLER):
        yield straggler.measure(rounds)
    if wish.wants(BACKUP_STRAGGLER):
        yield backups.measure(rounds)


def _measure(case: str, workload: str, copies: int, full: bool) -> Figure:
    block_steps, blocks = (14, 24) if full else (12, 8)
    words = [f"--workload={workload}", f"--shards={WORLD}", f"--block-steps={block_steps}"]
    ring = Side("ring", HARNESS, words)
    servers = SERVERS + copies
    server = Side("server", HARNESS, [*words, f"--servers={servers}", f"--backups={copies}"], servers)
    took, _ = take_turns([ring, server], WORLD, blocks)
    return Figure(
        case=case,
        unit="s",
        better="lower",
        ours=took[server.name],
        peers=took[ring.name],
        peer_name="our ring",
        target=TARGET,
        settings=_settings(case, workload, copies),
    )


def _settings(case: str, workload: str, copies: int) -> str:
    rows = "" if workload == "mlp" else f", {'CIFAR-10' if REAL_IMAGES.exists() else 'synthetic'} rows"
    return (
        f"{case}: {SETTINGS[workload]}{rows}; {WORLD} workers of 1 thread and {SERVERS} server of 1 thread with "
        f"{copies} backups on the machine's cores, L = {WORLD}, shared memory; peer: sync: ring with the same workers "
        f"and no server"
    )
