"""One Ray cluster of several hosts behind shaped links, and a control plane beside them.

Each host is a network namespace with a Ray node of its own. The head, which takes no workers, and everything that
`ringleader up` starts run outside, where all links meet: a link carries what its host says to the others, and nothing
between two others.
"""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster_script import make_token, processes_of, running, script_environ
from ports import free_port
from waiting import wait_for
from whole_stack import Running, whole_stack

from ringleader.bench.exchange.laboratory import Host, hosts
from ringleader.client import Job

NAMES, LINKS, PROCESSES = Path("/run/netns"), Path("/sys/class/net"), Path("/proc")
START_DEADLINE_S = 90
CPUS = 2
WARM = {"RINGLEADER_WARM_PER_NODE": "1"}


@dataclass(frozen=True)
class LinkedHosts:
    """The hosts, and the control plane whose jobs run on them."""

    hosts: tuple[Host, ...]
    stack: Running

    def of(self, job: Job) -> dict[str, tuple[int, ...]]:
        """The numbers of the hosts that the job's members are on: by role, in the order of ranks."""
        views = sorted(job.workers(), key=lambda v: (v.rank is None, v.rank))
        roles = {view.role for view in views}
        return {role: tuple(self.host_of(v.pid) for v in views if v.role == role) for role in roles}

    def host_of(self, pid: int) -> int:
        """By the network that the process really is in."""
        network = _network(PROCESSES / str(pid))
        return [(NAMES / host.name).stat().st_ino for host in self.hosts].index(network or 0)

    def crossed(self) -> list[tuple[int, int]]:
        """(into, out of) each host so far, in bytes."""
        return [host.crossed_bytes() for host in self.hosts]


@contextmanager
def linked_hosts(count: int) -> Iterator[LinkedHosts]:
    """The cluster and the control plane while the block runs. Nothing is left when it ends: that is asserted."""
    with tempfile.TemporaryDirectory(prefix="rll", ignore_cleanup_errors=True) as short:
        folder = Path(short)
        with ExitStack() as ending:
            outside, inside = ending.enter_context(hosts(count))
            nodes, token, port = folder / "nodes", folder / "token", free_port(outside)
            lines = [f"{outside} 0 0", *(f"{host.address} {CPUS} 0" for host in inside)]
            nodes.write_text("\n".join(lines) + "\n")
            environ = script_environ(folder, port)
            make_token(token)
            ending.callback(lambda: wait_for("end of every process", lambda: not _left(folder, inside), 30))
            ending.enter_context(running(folder, environ, "head", str(nodes), str(token)))
            wait_for("head", lambda: _listens(outside, port), START_DEADLINE_S)
            for host in inside:
                words = ("join", str(nodes), str(token), host.address)
                ending.enter_context(running(folder, environ, *words, within=_within(host, folder)))
            options = ("--ray-address", f"{outside}:{port}", "--ray-token", str(token))
            stack = ending.enter_context(whole_stack(*options, settings=WARM))
            try:
                wait_for(
                    "every node", lambda: stack.client.cluster()["cpus"] == count * CPUS, START_DEADLINE_S
                )
            except AssertionError as error:
                raise AssertionError(f"{error}\n{stack.client.cluster()}\n{_said(folder)}") from None
            yield LinkedHosts(tuple(inside), stack)
        assert not [h.name for h in inside if (NAMES / h.name).exists() or (LINKS / h.port).exists()]


def _within(host: Host, folder: Path) -> tuple[str, ...]:
    """What to put before a command to run it on the host, with Ray's files on a disk of its own: nodes that start at
    the same time on one disk take each other's names for their sockets."""
    own, rays = folder / host.name, folder / "ray"
    for path in (own, rays):
        path.mkdir(exist_ok=True)
    # `ip netns exec` gives the command its own mounts.
    return (*host.within, "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(own), str(rays))


def _said(folder: Path) -> str:
    """The last words of every node."""
    return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in folder.glob("*.log"))


def _left(folder: Path, inside: list[Host]) -> list[str]:
    """What still runs: Ray's processes, and whatever is in the networks of the hosts."""
    networks = {(NAMES / host.name).stat().st_ino for host in inside}
    return processes_of(folder) + [
        path.name for path in PROCESSES.glob("[0-9]*") if _network(path) in networks
    ]


def _network(process: Path) -> int | None:
    try:
        return (process / "ns/net").stat().st_ino
    except OSError:  # it has ended
        return None


def _listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0
