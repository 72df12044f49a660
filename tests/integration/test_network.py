"""Hosts behind shaped links: what crosses them is what the schedules say, by the kernel's own counters."""

import socket
import subprocess
import sys

import pytest

from ringleader.bench.exchange import laboratory
from ringleader.bench.exchange.network import sums

NBYTES = 4 << 20
HEADERS = 1.06
"""Ethernet, IP and TCP headers, acknowledgements and the barrier between the sums: under 6 % of 4 MB."""

pytestmark = [
    pytest.mark.skipif(bool(laboratory.missing()), reason=f"no network laboratory: {laboratory.missing()}"),
    pytest.mark.timeout(400),
]


@pytest.mark.parametrize("layout", [(0, 0, 1, 1), (0, 1, 0, 1)])
def test_two_levels_bring_the_bucket_once_into_every_host_wherever_the_ranks_are(layout):
    took, entered = sums(layout, "two_level", NBYTES, turns=2)
    assert NBYTES <= entered["ringleader"] <= NBYTES * HEADERS
    assert entered["gloo"] >= 1.5 * NBYTES
    assert len(took["ringleader"]) == 2


def test_a_ring_of_hosts_brings_what_its_formula_says():
    _, entered = sums((0, 1, 2), "ring", NBYTES, turns=2)
    expected = 2 * 2 / 3 * NBYTES
    assert expected * 0.99 <= entered["ringleader"] <= expected * HEADERS


def test_a_host_that_is_cut_off_is_silent_and_heard_again_when_the_link_is_up():
    with laboratory.hosts(1) as (outside, (host,)), socket.create_server((outside, 0)) as server:
        place = (outside, server.getsockname()[1])

        def knock(patience_s: float) -> list[str]:
            code = f"import socket; socket.create_connection({place}, {patience_s})"
            return [*host.within, sys.executable, "-c", code]

        with host.cut_off():
            assert subprocess.run(knock(0.5), stderr=subprocess.DEVNULL, check=False).returncode
        assert subprocess.run(knock(60.0), check=False).returncode == 0
