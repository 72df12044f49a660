"""A step with LARS and LAMB: one worker's session beside a loop in plain torch with the same optimiser."""

from collections.abc import Iterator

from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.gate import Side
from ringleader.bench.registry import Wish
from ringleader.bench.training.step import HARNESS, take_turns

PLAIN = "ringleader.bench.peers.plain"
BLOCK_STEPS = 10
TARGET = Target("ratio", ">=", 0.97)
_WORKLOADS = {"sgd": "cifar", "lars": "cifar-lars", "lamb": "cifar-lamb"}
CASES = tuple(_WORKLOADS)


def run(wish: Wish) -> Iterator[Figure]:
    """Seconds a step; both sides of a case stay up and measure by turns."""
    for case, workload in _WORKLOADS.items():
        if wish.wants(case):
            yield _measure(case, workload, blocks=16 if wish.full else 6)


def _measure(case: str, workload: str, blocks: int) -> Figure:
    words = [f"--workload={workload}", f"--block-steps={BLOCK_STEPS}"]
    ours, plain = Side("session", HARNESS, [*words, "--shards=1"]), Side("plain", PLAIN, words)
    took, _ = take_turns([ours, plain], 1, blocks)
    return Figure(
        case=case,
        unit="s",
        better="lower",
        ours=took[ours.name],
        peers=took[plain.name],
        peer_name="plain torch",
        target=TARGET,
        settings=f"{case}: the image recipe's network, global batch 256, 1 worker of 1 thread, L = 1; plain torch: its "
        f"own loader in the same thread, the same optimiser",
    )
