"""What this node and some processes of it have used so far: counters, of which the supervisor makes figures."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol, TypeVar

import psutil

from ringleader.runtime.nodes.node_gpus import GpuReading, read_gpus

LOOPBACK = "lo"
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """A process with all that it has started: processor seconds since it began, resident bytes now, and those on GPUs
    where NVML knows them."""

    cpu_s: float
    memory_bytes: int
    gpu_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeReading:
    """A node's counters at `at_s` of its own clock. None: the platform does not give them.

    Attributes:
        busy_s, total_s: what all cores have worked, and could have.
        processes: what was asked for and lives, by process id.
        gpus: None without any.
    """

    at_s: float
    busy_s: float | None = None
    total_s: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    disk_read_bytes: int | None = None
    disk_written_bytes: int | None = None
    network_received_bytes: int | None = None
    network_sent_bytes: int | None = None
    gpus: GpuReading | None = None
    processes: Mapping[int, ProcessReading] = field(default_factory=dict)


class System(Protocol):
    """What is read of a machine, as psutil has it. Each raises OSError, RuntimeError or psutil.Error, or lacks what the
    machine does not give."""

    def parents(self) -> Mapping[int, int]:
        """The parent of every process."""

    def process(self, pid: int) -> tuple[float, int] | None:
        """The processor seconds of a process and of those of its children that it has waited for, and its resident
        bytes; None where it is gone, or another account's that hides it."""

    def processors(self) -> tuple[float, float]:
        """The seconds that all cores have worked, and those that have passed on them."""

    def memory(self) -> tuple[int, int]:
        """The bytes in use, and all."""

    def disk(self) -> tuple[int, int] | None:
        """The bytes read and written; None without a disk."""

    def network(self) -> tuple[int, int] | None:
        """The bytes received and sent, but for those of the loopback; None without an interface."""


class ThisMachine:
    """The machine that this process runs on, by psutil."""

    def parents(self) -> Mapping[int, int]:
        return {p.pid: p.info["ppid"] for p in psutil.process_iter(["ppid"]) if p.info["ppid"] is not None}

    def process(self, pid: int) -> tuple[float, int] | None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                # A child that ends goes from its own line to its parent's: the sum over both never falls.
                return sum(process.cpu_times()[:4]), process.memory_info().rss
        except psutil.Error:
            return None

    def processors(self) -> tuple[float, float]:
        times = psutil.cpu_times()
        # A guest's time is also that of its host process.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return total - times.idle - getattr(times, "iowait", 0.0), total

    def memory(self) -> tuple[int, int]:
        found = psutil.virtual_memory()
        return found.total - found.available, found.total

    def disk(self) -> tuple[int, int] | None:
        found = psutil.disk_io_counters(nowrap=False)
        return (found.read_bytes, found.write_bytes) if found is not None else None

    def network(self) -> tuple[int, int] | None:
        found = psutil.net_io_counters(pernic=True, nowrap=False)
        outside = [counted for name, counted in found.items() if name != LOOPBACK]
        if not outside:
            return None
        return sum(one.bytes_recv for one in outside), sum(one.bytes_sent for one in outside)


THIS_MACHINE = ThisMachine()


def read_node(pids: Collection[int], system: System = THIS_MACHINE, at_s: float | None = None) -> NodeReading:
    """Read this node's counters, and those of the processes `pids` with all that they have started."""
    gpus, on_gpus = read_gpus()
    busy_s, total_s = _pair(system.processors)
    used, total = _pair(system.memory)
    read, written = _pair(system.disk)
    received, sent = _pair(system.network)
    return NodeReading(
        monotonic() if at_s is None else at_s,
        busy_s,
        total_s,
        memory_bytes=used,
        memory_total_bytes=total,
        disk_read_bytes=read,
        disk_written_bytes=written,
        network_received_bytes=received,
        network_sent_bytes=sent,
        gpus=gpus,
        processes=_read_processes(pids, system, on_gpus),
    )


def _pair(read: Callable[[], tuple[Number, Number] | None]) -> tuple[Number | None, Number | None]:
    """Two counters, None where the platform does not give them."""
    try:
        return read() or (None, None)
    except (OSError, RuntimeError, NotImplementedError, AttributeError, psutil.Error):
        return None, None


def _read_processes(
    pids: Collection[int], system: System, on_gpus: Mapping[int, int]
) -> dict[int, ProcessReading]:
    children: dict[int, list[int]] = defaultdict(list)
    for child, parent in system.parents().items():
        children[parent].append(child)
    found = {}
    for pid in pids:
        tree = [(one, figures) for one in _tree(pid, children) if (figures := system.process(one))]
        # Its own line is missing: it is gone, whatever it has started.
        if tree and tree[0][0] == pid:
            on_its = [on_gpus[one] for one, _ in tree if one in on_gpus]
            cpu_s, memory_bytes = sum(f[0] for _, f in tree), sum(f[1] for _, f in tree)
            found[pid] = ProcessReading(cpu_s, memory_bytes, sum(on_its) if on_its else None)
    return found


def _tree(pid: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    """A process, then all below it."""
    yield pid
    for child in children.get(pid, ()):
        yield from _tree(child, children)
