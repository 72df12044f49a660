"""What the sampler makes of a machine's counters, without a clock, and what psutil and NVML are asked for."""

import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from ringleader.runtime.messages import ProcessIdentity
from ringleader.runtime.nodes.node_gpus import GpuReading, read_by
from ringleader.runtime.nodes.node_use import NodeReading, read_node
from ringleader.runtime.supervisor.heartbeats import WorkerPace
from ringleader.runtime.supervisor.system_sampler import SystemSampler
from ringleader.wire.system import SystemSample, SystemUse

MIB = 1 << 20


class Machine:
    """A machine whose counters the test sets. `given` are those that its platform has."""

    def __init__(self, *, given: bool = True) -> None:
        self.given = given
        self.tree: dict[int, int] = {}
        self.processes: dict[int, tuple[float, int]] = {}
        self.worked = (0.0, 0.0)
        self.read = self.written = self.received = self.sent = 0

    def start(self, pid: int, parent: int = 1, *, cpu_s: float = 0.0, memory: int = 0) -> None:
        self.tree[pid] = parent
        self.processes[pid] = (cpu_s, memory)

    def parents(self) -> Mapping[int, int]:
        return self.tree

    def process(self, pid: int) -> tuple[float, int] | None:
        return self.processes.get(pid)

    def processors(self) -> tuple[float, float]:
        return self._if_given(self.worked)

    def memory(self) -> tuple[int, int]:
        return self._if_given((3 * MIB, 8 * MIB))

    def disk(self) -> tuple[int, int] | None:
        return (self.read, self.written) if self.given else None

    def network(self) -> tuple[int, int] | None:
        return (self.received, self.sent) if self.given else None

    def _if_given(self, pair: Any) -> Any:
        if not self.given:
            raise FileNotFoundError("/proc/stat")
        return pair


class Bench:
    """A sampler of a machine, whose clock stands until the test moves it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.at_s = 100.0
        self.workers: dict[str, int] = {}
        self.samples: list[SystemSample] = []
        self.silent = False
        self.paces: dict[str, WorkerPace] = {}
        self.sampler = SystemSampler(
            lambda: {w: ProcessIdentity(pid, "node", "") for w, pid in self.workers.items()},
            self.read,
            self.samples.append,
            lambda: datetime.fromtimestamp(self.at_s, UTC),
            lambda: self.paces,
        )

    def read(self, asked: Mapping[str, Mapping[str, int]]) -> Mapping[str, NodeReading]:
        if self.silent:
            return {}
        return {node: read_node([*pids.values()], self.machine, self.at_s) for node, pids in asked.items()}

    def sample(self, after_s: float = 5.0) -> None:
        self.at_s += after_s
        self.sampler.sample()

    def uses(self, kind: str) -> dict[str, SystemUse]:
        return {use.id: use for use in self.samples[-1].uses if use.kind == kind}


@pytest.fixture
def bench() -> Bench:
    return Bench(Machine())


def test_a_worker_has_the_figures_of_its_process_and_of_all_that_this_has_started(bench: Bench):
    machine = bench.machine
    machine.start(10, cpu_s=7.0, memory=100 * MIB)
    machine.start(11, 10, cpu_s=1.0, memory=20 * MIB)
    machine.start(12, 11, memory=3 * MIB)
    machine.start(13, cpu_s=50.0, memory=MIB)
    bench.workers = {"w0": 10}
    bench.sample()
    assert bench.samples == []
    machine.start(10, cpu_s=9.0, memory=101 * MIB)
    machine.start(12, 11, cpu_s=3.5, memory=3 * MIB)
    machine.start(13, cpu_s=55.0, memory=MIB)
    bench.sample()
    assert bench.uses("worker")["w0"].figures == {"cpu_percent": 110.0, "memory_bytes": 124 * MIB}
    assert (bench.samples[0].span_s, bench.samples[0].at.timestamp()) == (5.0, 110.0)


def test_a_worker_has_the_time_that_it_takes_itself_for_a_step(bench: Bench):
    for pid, worker in ((10, "w0"), (11, "w1"), (12, "w2")):
        bench.machine.start(pid)
        bench.workers[worker] = pid
    bench.paces = {w: WorkerPace(1, 10, 1.0) for w in bench.workers}
    bench.sample()
    # w1 has formed another generation with somebody, w2 has committed nothing.
    bench.paces |= {"w0": WorkerPace(1, 30, 6.0), "w1": WorkerPace(2, 30, 1.5)}
    bench.sample()
    assert {w: use.figures.get("step_s") for w, use in bench.uses("worker").items()} == {
        **{"w0": 0.25, "w1": None, "w2": None}
    }
    bench.paces["w0"] = WorkerPace(1, 31, 0.5)  # counted anew behind the first step of the generation
    bench.sample()
    assert "step_s" not in bench.uses("worker")["w0"].figures


def test_a_node_has_shares_of_all_its_cores_and_rates_by_the_second(bench: Bench):
    machine = bench.machine
    bench.workers = {"w0": 10}
    bench.sample()
    machine.worked = (3.0, 20.0)
    machine.read, machine.written, machine.received, machine.sent = 500, 1000, 50, 5
    bench.sample()
    assert bench.uses("node")["node"].figures == {
        "cpu_percent": 15.0,
        "memory_bytes": 3 * MIB,
        "memory_total_bytes": 8 * MIB,
        "disk_read_bytes_per_s": 100,
        "disk_written_bytes_per_s": 200,
        "network_received_bytes_per_s": 10,
        "network_sent_bytes_per_s": 1,
    }


def test_what_a_platform_does_not_give_is_left_out_and_never_zero():
    bench = Bench(Machine(given=False))
    bench.workers = {"w0": 10}
    for _ in range(2):
        bench.sample()
    assert bench.uses("node")["node"].figures == {}
    assert bench.uses("worker") == {}


def test_a_counter_that_began_anew_gives_no_figure(bench: Bench):
    bench.machine.received, bench.machine.start = 1000, bench.machine.start
    bench.workers = {"w0": 10}
    bench.machine.start(10, cpu_s=9.0)
    bench.sample()
    bench.machine.received = 0
    bench.machine.start(10, cpu_s=0.5)
    bench.sample()
    assert "network_received_bytes_per_s" not in bench.uses("node")["node"].figures
    assert bench.uses("worker")["w0"].figures == {"memory_bytes": 0}


def test_a_node_that_does_not_answer_leaves_a_gap_and_comes_back(bench: Bench):
    bench.workers = {"w0": 10}
    bench.machine.start(10)
    bench.sample()
    bench.silent = True
    bench.sample()
    bench.silent = False
    bench.sample()
    assert bench.samples == []
    bench.machine.start(10, cpu_s=5.0)
    bench.sample()
    assert bench.uses("worker")["w0"].figures["cpu_percent"] == 100.0


def test_a_replaced_worker_has_no_figure_that_mixes_two_processes(bench: Bench):
    bench.machine.start(10, cpu_s=1.0)
    bench.machine.start(20, cpu_s=100.0)
    bench.workers = {"w0": 10}
    bench.sample()
    bench.workers = {"w0": 20}
    bench.sample()
    assert bench.uses("worker") == {}


def test_a_failure_is_said_once_and_sampling_goes_on():
    rounds = iter([False, False, False, True])
    said: list[str] = []

    def read(_: Any) -> Any:
        raise OSError("no /proc")

    over: Any = SimpleNamespace(wait=lambda _: next(rounds))
    SystemSampler(dict, read, lambda _: None).run(over, said.append)
    assert said == ["System metrics have a gap: OSError: no /proc"]


def test_this_machine_gives_what_its_own_process_uses():
    before = read_node([os.getpid()]).processes[os.getpid()]
    deadline = threading.Event()
    threading.Timer(0.3, deadline.set).start()
    while not deadline.is_set():
        pass
    now = read_node([os.getpid(), 2**22 + 1])
    assert list(now.processes) == [os.getpid()]
    assert now.processes[os.getpid()].cpu_s > before.cpu_s
    assert now.processes[os.getpid()].memory_bytes > MIB
    assert now.total_s is not None
    assert now.busy_s is not None
    assert 0 < now.busy_s <= now.total_s


class Nvml:
    """NVML's functions, of two GPUs; one of them is shared out and has no utilisation of its own."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:
        return SimpleNamespace(used=(gpu + 1) * MIB, total=10 * MIB)

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:
        if gpu == 1:
            raise self.NVMLError
        return SimpleNamespace(gpu=40)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> Any:
        unknown = SimpleNamespace(pid=8, usedGpuMemory=None)
        return [SimpleNamespace(pid=7, usedGpuMemory=(gpu + 1) * 100), unknown]


def test_gpus_are_told_together_and_their_bytes_by_process():
    assert read_by(Nvml()) == (GpuReading(40.0, 3 * MIB, 20 * MIB), {7: 300})


def test_without_a_gpu_there_are_no_figures_of_one():
    none = Nvml()
    none.nvmlDeviceGetCount = lambda: 0  # type: ignore[method-assign]
    assert read_by(none) == (None, {})
