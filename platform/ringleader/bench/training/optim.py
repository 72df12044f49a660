"""A step with LARS, with LAMB, with an average of the weights, and with two optimizers by turns: one worker's session
beside a loop in plain torch."""

from collections.abc import Iterator

from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.gate import Side
from ringleader.bench.registry import Wish
from ringleader.bench.training.step import HARNESS, take_turns

PLAIN = "ringleader.bench.peers.plain"
BLOCK_STEPS = 10
IMAGES = "the image recipe's network, global batch 256"
TARGET = Target("ratio", ">=", 0.97)
_WORKLOADS = {"sgd": "cifar", "lars": "cifar-lars", "lamb": "cifar-lamb", "ema": "cifar-ema", "phases": "gan"}
CASES = tuple(_WORKLOADS)
_WHAT = {
    "ema": f"{IMAGES}, and an exponential moving average of its weights",
    "phases": "a generator and a critic of 32×32 images, 0.5 million parameters, Adam by turns, global batch 64",
}


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
        settings=f"{case}: {_WHAT.get(case, IMAGES)}, 1 worker of 1 thread, L = 1; plain torch: its own loader in the "
        f"same thread, the same optimizer",
    )
