"""The cost of a session over a bare loop with the same exchange, of reproducible sums over any sums, and of comparing
members."""

from collections.abc import Iterator
from dataclasses import dataclass

from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.gate import Side
from ringleader.bench.registry import Wish
from ringleader.bench.training import compared
from ringleader.bench.training.step import HARNESS, take_turns
from ringleader.comm.tree import tree_over
from ringleader.elastic.plan import owned

BARE = "ringleader.bench.peers.bare"
ELASTIC = "elastic"


@dataclass(frozen=True, slots=True)
class OverheadCase:
    """One line: CIFAR on `world` workers, L = `shards`, beside a bare loop or beside `reproducible: false`."""

    name: str
    world: int
    shards: int
    target: Target | None = None

    @property
    def sides(self) -> tuple[Side, Side]:
        """Ours and the other."""
        words = ["--workload=cifar", f"--shards={self.shards}", f"--block-steps={BLOCK_STEPS}"]
        if self.name == ELASTIC:
            return Side("session", HARNESS, words), Side("bare", BARE, words)
        return Side("true", HARNESS, words), Side("false", HARNESS, [*words, "--free"])

    @property
    def sums(self) -> float:
        """Partial sums that a worker brings to the canonical sum of a step, on average: the gradient's bytes travel so
        many times, where a sum in any order would send them once."""
        tree = tree_over(self.shards, frozenset(range(self.shards)))
        shares = [tree.partials(owned(rank, self.world, self.shards)) for rank in range(self.world)]
        return sum(map(len, shares)) / self.world


BLOCK_STEPS = 10
_CASES = (
    OverheadCase(ELASTIC, world=2, shards=2, target=Target("ratio", ">=", 0.97)),
    OverheadCase("reproducible-L", world=2, shards=2, target=Target("ratio", ">=", 0.95)),
    OverheadCase("reproducible-half", world=2, shards=4, target=Target("ratio", ">=", 0.90)),
    OverheadCase("reproducible-w3", world=3, shards=8),
    OverheadCase("reproducible-w5", world=5, shards=8),
)
CASES = (*(case.name for case in _CASES), compared.NAME)


def run(wish: Wish) -> Iterator[Figure]:
    """Seconds a step on rank 0; both sides of a case stay up and measure by turns."""
    for case in _CASES:
        if wish.wants(case.name):
            yield _measure(case, blocks=16 if wish.full else 6)
    if wish.wants(compared.NAME):
        yield compared.measure(rounds=40 if wish.full else 20)


def _measure(case: OverheadCase, blocks: int) -> Figure:
    ours, other = case.sides
    took, _ = take_turns([ours, other], case.world, blocks)
    return Figure(
        case=case.name,
        unit="s",
        better="lower",
        ours=took[ours.name],
        peers=took[other.name],
        peer_name=other.name if case.name == ELASTIC else "itself, reproducible: false",
        target=case.target,
        settings=f"{case.name}: the image recipe's network, SGD with momentum, global batch 256, {case.world} workers "
        f"of 1 thread, L = {case.shards}; {case.sums:.2f} partial sums a worker",
    )
