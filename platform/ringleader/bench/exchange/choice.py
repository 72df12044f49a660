"""The choice of `algorithm: auto` beside the best of all schedules, measured in the same processes by turns.

The least of several medians is too low by their noise, so the best of all is found out on half of the turns and
compared with the chosen one on the other half; then the halves change places.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.children import Child
from ringleader.bench.processes.gate import LOOPBACK
from ringleader.bench.registry import Wish

MEMBER = "ringleader.bench.exchange.choice_member"
DEADLINE_S = 300.0
WORLDS = (2, 3, 4)
SIZES = {"1KB": 1 << 10, "64KB": 64 << 10, "1MB": 1 << 20, "25MB": 25 << 20, "100MB": 100 << 20}
USUAL = ("1KB", "64KB", "1MB", "25MB")
OVERS = ("gloo", "shared")
SAME_BITS = "same-bits-"
LEAST = "auto-least"
TARGET = Target("ratio", ">=", 0.9)


@dataclass(frozen=True, slots=True)
class ChoicePoint:
    """One bucket size in one world; `over` sockets, or in memory that all ranks share.

    Attributes:
        same_bits: only canonical schedules are candidates, as where `reproducible` is true.
    """

    over: str
    size: str
    world: int
    same_bits: bool = False

    @property
    def name(self) -> str:
        where = "" if self.over == "gloo" else f"{self.over}-"
        return f"auto-{where}{SAME_BITS * self.same_bits}{self.size}-{self.world}ranks"


POINTS = tuple(
    ChoicePoint(over, size, world, same_bits)
    for over in OVERS
    for world in WORLDS
    for same_bits in ((False, True) if over == "gloo" else (False,))
    for size in SIZES
)
"""All points. In shared memory there is only one way, and its bits are canonical."""

CASES = (*(point.name for point in POINTS), LEAST)


def run(wish: Wish) -> Iterator[Figure]:
    """The share of the best schedule's speed that the chosen one reaches, then the least of all shares."""
    wanted = [
        p for p in POINTS if (wish.wants(p.name) or wish.wants(LEAST)) and (wish.full or p.size in USUAL)
    ]
    least: list[tuple[float, str]] = []
    for over in OVERS:
        for world in WORLDS:
            points = [p for p in wanted if (p.over, p.world) == (over, world)]
            found = _measure(over, world, points, blocks=24 if wish.full else 12) if points else {}
            for point in points:
                figure = figure_of(point, found[str(SIZES[point.size])])
                least.append((median(figure.ours), point.name))
                yield figure
    if least:
        yield _least(least)


def shares(took: dict[str, Sequence[float]], chosen: str) -> tuple[list[str], list[float]]:
    """The best way by its median over the even turns, and over the odd ones; and for each turn the chosen way's share
    of the speed of the way that was best in the other half."""
    found: list[float] = [0.0] * len(took[chosen])
    names = [best(took, chosen, half) for half in (0, 1)]
    for half, name in enumerate(names):
        judged = slice(1 - half, None, 2)
        # Judged by the turns that did not choose it: the least of several medians is too low by their noise.
        found[judged] = [a / b for a, b in zip(took[name][judged], took[chosen][judged], strict=True)]
    return names, found


def best(took: dict[str, Sequence[float]], chosen: str, half: int) -> str:
    """The way with the least median over the even (0) or odd (1) turns; the chosen one among equals."""
    return min(took, key=lambda name: (median(took[name][half::2]), name != chosen))


def _measure(over: str, world: int, points: Sequence[ChoicePoint], blocks: int) -> dict[str, Any]:
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    words = [f"--port={store.port}", f"--world={world}", f"--blocks={blocks}", f"--over={over}"]
    words += [f"--nbytes={nbytes}" for nbytes in dict.fromkeys(SIZES[point.size] for point in points)]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    members = [Child(MEMBER, [*words, f"--rank={rank}"], threads) for rank in range(world)]
    try:
        (found, *_), *_ = [member.answers(DEADLINE_S) for member in members]
    finally:
        for member in members:
            member.end()
    return dict(found)


def figure_of(point: ChoicePoint, found: dict[str, Any]) -> Figure:
    """The figure of a point. `found`: the members' report for its size, see `choice_member`."""
    chosen = found["chosen_same_bits" if point.same_bits else "chosen"]
    took = {n: s for n, s in found["took"].items() if not point.same_bits or n in found["canonical"]}
    bests, ours = shares(took, chosen)
    times = ", ".join(
        f"{name} {median(took[name]) * 1e3:.3g} ms" for name in sorted(took, key=lambda n: median(took[n]))
    )
    where = "over sockets of this machine" if point.over == "gloo" else "in shared memory"
    among = "; of the canonical ones" if point.same_bits else ""
    return Figure(
        case=point.name,
        unit="ratio",
        better="higher",
        ours=ours,
        peers=[1.0],
        peer_name="limit",
        target=TARGET,
        settings=(
            f"{point.name}: {point.world} processes, 1 thread each, {where}{among}; chosen {chosen}, best "
            f"{' and '.join(dict.fromkeys(bests))}, found out on half of the turns each and judged by the other half; "
            f"medians of the slowest member: {times}"
        ),
    )


def _least(found: list[tuple[float, str]]) -> Figure:
    share, name = min(found)
    return Figure(
        case=LEAST,
        unit="ratio",
        better="higher",
        ours=[share],
        peers=[1.0],
        peer_name="limit",
        target=TARGET,
        settings=f"{LEAST}: the least share of {len(found)} points, that of {name}; their median is "
        f"{median(share for share, _ in found):.3g}",
    )
