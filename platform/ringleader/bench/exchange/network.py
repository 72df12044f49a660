"""Sums between hosts behind links of 1 Gbit/s: our schedules beside gloo, by turns, and beside what the link allows."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ringleader.bench.broken import PeerFailed
from ringleader.bench.exchange import laboratory
from ringleader.bench.exchange.laboratory import Host
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.children import Child
from ringleader.bench.registry import Wish

MEMBER = "ringleader.bench.exchange.network_member"
DEADLINE_S = 240.0
NBYTES = 25 << 20
WAYS = ("ringleader", "gloo")


@dataclass(frozen=True, slots=True)
class NetworkCase:
    """One layout of ranks on hosts, and the schedule that is measured there.

    Attributes:
        layout: the host of each rank.
        share: also beside the limit of the links.
    """

    name: str
    layout: tuple[int, ...]
    schedule: str
    target: Target
    share: bool = False


_CASES = (
    NetworkCase("ring-4hosts-25MB", (0, 1, 2, 3), "ring", Target("ratio", ">=", 1.0), share=True),
    NetworkCase("two-level-2x2", (0, 0, 1, 1), "two_level", Target("ratio", ">=", 1.35)),
    NetworkCase("two-level-2x2-interleaved", (0, 1, 0, 1), "two_level", Target("ratio", ">=", 2.5)),
)
CASES = tuple(case.name for case in _CASES)


def run(wish: Wish) -> Iterator[Figure]:
    """Seconds until the slowest rank has the sum, one value a turn. Raises PeerFailed without namespaces."""
    if why := laboratory.missing():
        raise PeerFailed(f"the benchmark's network namespaces cannot be set up here: {why}.")
    for case in _CASES:
        if wish.wants(case.name):
            yield from _measure(case, turns=24 if wish.full else 10)


def _measure(case: NetworkCase, turns: int) -> Iterator[Figure]:
    took, crossed = sums(case.layout, case.schedule, NBYTES, turns)
    what = f"{case.name}: float32, 25 MB, one rank a row of {case.layout}, 1 Gbit/s a host, comm/ driven directly"
    entered = " and ".join(f"{crossed[way] / NBYTES:.3f} S of {way}" for way in WAYS)
    yield Figure(
        case=case.name,
        unit="s",
        better="lower",
        ours=took["ringleader"],
        peers=took["gloo"],
        peer_name="gloo",
        target=case.target,
        settings=f"{what}; schedule {case.schedule}; gloo: torch.distributed.all_reduce, ranks in this order; "
        f"into host 0 came {entered} a sum, by the kernel's counters",
    )
    if case.share:
        world = len(case.layout)
        speed = median(took["stream"])
        # Every rank of a ring receives (n - 1) / n of the bytes twice: once to sum them, once as the result.
        limit_s = 2 * (world - 1) / world * NBYTES / speed
        yield Figure(
            case=case.name,
            unit="ratio",
            better="higher",
            ours=[limit_s / seconds for seconds in took["ringleader"]],
            peers=[1.0],
            peer_name="limit",
            target=Target("ratio", ">=", 0.9),
            settings=f"{what}; limit: 2(n-1)/n·S/B with B = {speed:.4g} B/s, one raw TCP stream between two hosts",
        )


def sums(
    layout: Sequence[int], schedule: str, nbytes: int, turns: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Measure sums over hosts behind shaped links.

    Args:
        layout: the host of each rank.

    Returns:
        way → seconds of a sum, one value a turn (and `stream`, bytes a second of a plain TCP stream); way → bytes
        that entered host 0 in a sum, by the kernel's counters.
    """
    with ExitStack() as stack:
        here, hosts = stack.enter_context(laboratory.hosts(max(layout) + 1))
        store = TCPStore(here, 0, is_master=True, wait_for_workers=False)
        words = [f"--store={here}:{store.port}", f"--world={len(layout)}", f"--schedule={schedule}"]
        words += [f"--turns={turns}", f"--nbytes={nbytes}"]
        members = []
        for rank, number in enumerate(layout):
            host = hosts[number]
            place = [f"--rank={rank}", f"--address={host.address}"]
            members.append(stack.enter_context(Child(MEMBER, [*words, *place], _environment(), host.within)))
        crossed = {way: _crossed(store, way, hosts[layout[0]], members) for way in WAYS}
        answers = [answer for member in members for answer in member.answers(DEADLINE_S)]
    return {way: _slowest([answer[way] for answer in answers]) for way in answers[0]}, crossed


def _slowest(took: Sequence[Sequence[float]]) -> list[float]:
    """The longest time of any rank in every turn: a step waits for all of them. Ranks may have measured nothing."""
    return [max(turn) for turn in zip(*filter(None, took), strict=True)]


def _crossed(store: TCPStore, way: str, host: Host, members: Sequence[Child]) -> float:
    """Bytes that entered the host per sum, of those that members make between two marks."""
    counted = []
    for mark in ("begin", "end"):
        store.wait([f"{way}/{mark}/{rank}" for rank in range(len(members))])
        counted.append(host.crossed_bytes()[0])
        store.set(f"{way}/{mark}/go", "1")
    sums = int(json.loads(store.get(f"{way}/sums")))
    return (counted[1] - counted[0]) / sums


def _environment() -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": laboratory.INTERFACE}
