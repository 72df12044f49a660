"""Two hosts behind shaped links: what every synchronous architecture brings across, by the kernel's own counters."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from exchange_members import synchronous
from torch.distributed import TCPStore

from ringleader.bench.exchange import laboratory
from ringleader.bench.exchange.laboratory import Host
from ringleader.bench.processes.children import Child

HOMES = (0, 0, 1, 1, 0, 1)
"""The host of each rank: two workers and a server on each."""
WORKERS, SERVERS = 4, 2
LAYERS, WIDTH = 4, 512
NBYTES = LAYERS * WIDTH * WIDTH * 4
STEPS = 3
HEADERS = 1.08
"""Ethernet, IP and TCP headers, acknowledgements and words: under 8 % of 4 MB."""
GUARD_S = 150.0
NAMES = [name for name, sync in synchronous().items() if sync.round_steps == 1]

pytestmark = [
    pytest.mark.skipif(bool(laboratory.missing()), reason=f"no network laboratory: {laboratory.missing()}"),
    pytest.mark.timeout(400),
]


def run(layers: int, width: int) -> tuple[dict[str, list[tuple[float, float]]], list[dict[str, list]]]:
    """Architecture → (into, out of) each host, bytes a step; and what each member says."""
    here = Path(__file__).parent
    places = (here, here.parent, here.parent / "unit", os.environ.get("PYTHONPATH", ""))
    path = os.pathsep.join(map(str, places))
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": laboratory.INTERFACE, "PYTHONPATH": path}
    with ExitStack() as stack:
        bridge, hosts = stack.enter_context(laboratory.hosts(2))
        store = TCPStore(bridge, 0, is_master=True, wait_for_workers=False)
        words = [f"--store={bridge}:{store.port}", f"--workers={WORKERS}", f"--servers={SERVERS}"]
        words += [f"--layers={layers}", f"--width={width}"]
        members = []
        for rank, home in enumerate(HOMES):
            place = [f"--rank={rank}", f"--address={hosts[home].address}"]
            members.append(
                stack.enter_context(Child("hosts_member", [*words, *place], env, hosts[home].within))
            )
        crossed = {name: counted(store, name, hosts) for name in NAMES}
        return crossed, [member.answers(GUARD_S)[-1] for member in members]


def counted(store: TCPStore, name: str, hosts: list[Host]) -> list[tuple[float, float]]:
    ranks = range(WORKERS + (SERVERS if synchronous()[name].server_count else 0))
    seen = []
    for mark in ("begin", "end"):
        store.wait([f"{name}/{mark}/{rank}" for rank in ranks])
        seen.append([host.crossed_bytes() for host in hosts])
        store.set(f"{name}/{mark}/go", "1")
    return [((b[0] - a[0]) / STEPS, (b[1] - a[1]) / STEPS) for a, b in zip(seen[0], seen[1], strict=True)]


def test_two_workers_and_a_server_a_host_bring_the_model_across_once_each_way_in_every_architecture():
    """With two hosts, a node of the tree and half the servers on each, all formulas come to S."""
    crossed, told = run(LAYERS, WIDTH)
    digests = {answer[name][0] for answer in told for name in answer}
    assert len(digests) == 1
    for name in NAMES:
        for into, out_of in crossed[name]:
            assert NBYTES <= into <= NBYTES * HEADERS, (name, into / NBYTES)
            assert NBYTES <= out_of <= NBYTES * HEADERS, (name, out_of / NBYTES)
