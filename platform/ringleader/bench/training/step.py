"""One training step beside DistributedDataParallel: two workers, one thread each, taking turns on one machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.gate import Side, court
from ringleader.bench.registry import Wish
from ringleader.bench.training.workloads import REAL_IMAGES

WORLD = 2
START_DEADLINE_S = 180.0
BLOCK_DEADLINE_S = 90.0
HARNESS, DDP = "ringleader.bench.processes.harness", "ringleader.bench.peers.ddp"


@dataclass(frozen=True, slots=True)
class StepCase:
    """One line: a workload cut into L shards, reproducible or not."""

    name: str
    workload: str
    shards: int
    free: bool = False
    target: Target | None = None

    def side(self, block_steps: int) -> Side:
        words = [f"--workload={self.workload}", f"--shards={self.shards}", f"--block-steps={block_steps}"]
        return Side(self.name, HARNESS, [*words, "--free"] if self.free else words)


_CASES = (
    StepCase("mlp", "mlp", shards=2, target=Target("ratio", ">=", 1.3)),
    StepCase("mlp-L8", "mlp", shards=8),
    StepCase("mlp-free", "mlp", shards=2, free=True),
    StepCase("mlp-free-L8", "mlp", shards=8, free=True),
    StepCase("cifar-L2", "cifar", shards=2, target=Target("ratio", ">=", 1.0)),
    StepCase("cifar-L8", "cifar", shards=8, target=Target("ratio", ">=", 1.0)),
)
CASES = tuple(case.name for case in _CASES)
SETTINGS = {
    "mlp": "MLP 1024-3072-3072-3072-1024, 25.2M parameters, float32, SGD with momentum, 32 rows a worker",
    "cifar": "the image recipe's network, float32, SGD with momentum, global batch 256",
}


def run(wish: Wish) -> Iterator[Figure]:
    """Seconds a step on rank 0, one value a block; all sides stay up and measure by turns."""
    for workload in SETTINGS:
        cases = [case for case in _CASES if case.workload == workload and wish.wants(case.name)]
        if cases:
            yield from _measure(workload, cases, wish.full)


def _measure(workload: str, cases: list[StepCase], full: bool) -> Iterator[Figure]:
    block_steps, blocks = (14, 24) if full else (12, 6)
    ddp = Side("ddp", DDP, [f"--workload={workload}", f"--block-steps={block_steps}"])
    sides = [ddp, *(case.side(block_steps) for case in cases)]
    took, answers = take_turns(sides, WORLD, blocks)
    bucket_mb = answers["ddp"][0]["bucket_mb"]
    for case in cases:
        yield Figure(
            case=case.name,
            unit="s",
            better="lower",
            ours=took[case.name],
            peers=took["ddp"],
            peer_name="ddp",
            target=case.target,
            settings=_settings(case, bucket_mb),
        )


def take_turns(
    sides: Sequence[Side], world: int, blocks: int
) -> tuple[dict[str, list[float]], dict[str, list[dict[str, object]]]]:
    """Seconds a step on rank 0 by side, and the answers of each one's rank 0. All sides stay up, and each is measured
    once a round; the order rotates, so that no side always follows the same other."""
    names = [side.name for side in sides]
    took: dict[str, list[float]] = {name: [] for name in names}
    with court(sides, world, START_DEADLINE_S) as opened:
        for number in range(blocks):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                took[name] += opened.block(name, BLOCK_DEADLINE_S)
        return took, opened.finish(START_DEADLINE_S)


def _settings(case: StepCase, bucket_mb: object) -> str:
    rows = "" if case.workload == "mlp" else f", {'CIFAR-10' if REAL_IMAGES.exists() else 'synthetic'} rows"
    return (
        f"{case.name}: {SETTINGS[case.workload]}{rows}; {WORLD} workers, 1 thread each; L = {case.shards}, "
        f"reproducible {str(not case.free).lower()}; ddp: gloo, bucket_cap_mb={bucket_mb} (best tried), "
        f"gradient_as_bucket_view, static_graph, broadcast_buffers=False, freed memory kept by glibc as "
        f"in our workers, batches ready in memory"
    )
