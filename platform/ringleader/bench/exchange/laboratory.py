"""Hosts on one machine: network namespaces on a bridge, each behind a link of a set speed. Needs root, `ip`, `tc`."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringleader.bench.broken import PeerFailed

GBIT = "1gbit"
# A smaller bucket would run dry between two refills, and the link stay below its rate.
BURST_BYTES = 128 << 10
INTERFACE = "eth0"


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace.

    Attributes:
        port: the name of its end of the link on the bridge.
        within: what to put before a command to run it there.
    """

    name: str
    address: str
    port: str

    @property
    def within(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    def crossed_bytes(self) -> tuple[int, int]:
        """(into the host, out of it) since the link was made, by the kernel's counters."""
        counters = Path("/sys/class/net") / self.port / "statistics"
        # What the bridge's end sends goes into the host.
        into, out_of = (int((counters / f"{way}_bytes").read_text()) for way in ("tx", "rx"))
        return into, out_of

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """The link is down while the block runs: nothing is refused, everything is lost."""
        _do("ip", "link", "set", self.port, "down")
        try:
            yield
        finally:
            _do("ip", "link", "set", self.port, "up")


def missing() -> str:
    """The reason why there can be no laboratory here; empty when there can be one."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{', '.join(absent)} is not installed" if absent else ""


@contextmanager
def hosts(count: int, rate: str = GBIT) -> Iterator[tuple[str, list[Host]]]:
    """`count` hosts, each behind a full-duplex link of `rate`; removed when the block is left.

    Yields:
        the bridge's own address, where this process can be reached from all hosts, and the hosts.

    Raises:
        PeerFailed: the machine does not allow it.
    """
    # Interfaces have names of 15 bytes at most, and several laboratories may stand at a time.
    mark = f"rl{os.getpid() % 100_000}"
    # By process, so that laboratories of two do not share addresses.
    network = f"10.{64 + os.getpid() % 128}.{os.getpid() // 128 % 256}"
    made = [Host(f"{mark}h{n}", f"{network}.{n + 1}", f"{mark}p{n}") for n in range(count)]
    try:
        _do("ip", "link", "add", mark, "type", "bridge")
        _do("ip", "address", "add", f"{network}.254/24", "dev", mark)
        _do("ip", "link", "set", mark, "up")
        for host in made:
            _connect(host, mark, rate)
        yield f"{network}.254", made
    finally:
        for host in made:
            # Unchecked: after a failure half of it was never made.
            _do("ip", "netns", "delete", host.name, check=False)
            _do("ip", "link", "delete", host.port, check=False)
        _do("ip", "link", "delete", mark, check=False)


def _connect(host: Host, bridge: str, rate: str) -> None:
    _do("ip", "netns", "add", host.name)
    _do("ip", "link", "add", host.port, "type", "veth", "peer", "name", INTERFACE, "netns", host.name)
    _do("ip", "link", "set", host.port, "master", bridge, "up")
    inside = host.within
    _do(*inside, "ip", "address", "add", f"{host.address}/24", "dev", INTERFACE)
    for interface in ("lo", INTERFACE):
        _do(*inside, "ip", "link", "set", interface, "up")
    shape = ("root", "tbf", "rate", rate, "burst", str(BURST_BYTES), "latency", "50ms")
    # On both ends: `tbf` shapes only what an interface sends.
    _do("tc", "qdisc", "add", "dev", host.port, *shape)
    _do(*inside, "tc", "qdisc", "add", "dev", INTERFACE, *shape)


def _do(*words: str, check: bool = True) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if check and done.returncode:
        raise PeerFailed(f"{' '.join(words)}: {done.stderr.strip()}")
