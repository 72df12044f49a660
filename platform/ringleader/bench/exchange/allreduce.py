"""Sums among the processes of one node: shared memory beside gloo, both in the same processes, by turns; and the choice
of `algorithm: auto` beside the best schedule."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ringleader.bench.exchange import choice
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.children import Child
from ringleader.bench.processes.gate import LOOPBACK
from ringleader.bench.registry import Wish

MEMBER = "ringleader.bench.exchange.collective"
DEADLINE_S = 300.0
WORLDS = (2, 3, 4)
SIZES = {"1KB": 1 << 10, "64KB": 64 << 10, "1MB": 1 << 20, "25MB": 25 << 20, "100MB": 100 << 20}
TARGETS = {"25MB-2ranks": 8.0, "1KB-2ranks": 50.0}
LIMIT = "limit-25MB-2ranks"


@dataclass(frozen=True, slots=True)
class AllreduceCase:
    """One bucket size in one world; `limit` compares with what the memory allows instead of gloo."""

    name: str
    size: str
    world: int
    limit: bool = False


_CASES = (
    *(AllreduceCase(f"{size}-{world}ranks", size, world) for world in WORLDS for size in SIZES),
    AllreduceCase(LIMIT, "25MB", 2, limit=True),
)
CASES = (*(case.name for case in _CASES), *choice.CASES)


def run(wish: Wish) -> Iterator[Figure]:
    """Seconds a sum as rank 0 saw it, one value a block."""
    for world in WORLDS:
        cases = [case for case in _CASES if case.world == world and wish.wants(case.name)]
        if cases:
            took = _measure(world, {case.size for case in cases}, blocks=30 if wish.full else 12)
            for case in cases:
                yield _figure(case, took[case.size])
    yield from choice.run(wish)


def _measure(world: int, sizes: set[str], blocks: int) -> dict[str, dict[str, list[float]]]:
    """Size → way of summing → seconds a sum of each block."""
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    nbytes = [SIZES[size] for size in SIZES if size in sizes]
    words = [f"--port={store.port}", f"--world={world}", f"--blocks={blocks}"]
    words += [f"--nbytes={n}" for n in nbytes]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    members = [Child(MEMBER, [*words, f"--rank={rank}"], threads) for rank in range(world)]
    try:
        # All of them have to end well; the figures are rank 0's.
        (took, *_), *_ = [member.answers(DEADLINE_S) for member in members]
    finally:
        for member in members:
            member.end()
    return {size: took[str(SIZES[size])] for size in SIZES if size in sizes}


def _figure(case: AllreduceCase, took: dict[str, list[float]]) -> Figure:
    what = (
        f"{case.name}: float32, rows resident, {case.world} processes, 1 thread each, comm/ driven directly"
    )
    if case.limit:
        return Figure(
            case=case.name,
            unit="ratio",
            better="higher",
            ours=[share(ours, free) for ours, free in zip(took["ringleader"], took["limit"], strict=True)],
            peers=[1.0],
            peer_name="limit",
            target=Target("ratio", ">=", 0.75),
            settings=(
                f"{what}; limit: the same adds and copies of n/P elements in chunks that fit the cache, on the "
                f"process's own memory, all processes at once, waiting for nobody"
            ),
        )
    return Figure(
        case=case.name,
        unit="s",
        better="lower",
        ours=took["ringleader"],
        peers=took["gloo"],
        peer_name="gloo",
        target=Target("ratio", ">=", TARGETS.get(case.name, 1.0)),
        settings=f"{what}; gloo: torch.distributed.all_reduce in place",
    )


def share(ours_s: float, limit_s: float) -> float:
    """The share of the limit's speed that was reached."""
    return limit_s / ours_s
