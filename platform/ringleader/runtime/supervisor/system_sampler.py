"""The sampler of system metrics: every few seconds, what an attempt's workers and their nodes have used."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from ringleader.runtime.messages import ProcessIdentity
from ringleader.runtime.nodes.node_use import NodeReading, ProcessReading
from ringleader.runtime.supervisor.heartbeats import WorkerPace
from ringleader.wire.system import Figure, SystemSample, SystemUse

EVERY_S = 5.0
SAYS = 5
"""The most reasons of gaps that are said."""
Pids = Mapping[str, int]
"""The process id of each worker of a node."""
Read = Callable[[Mapping[str, Pids]], Mapping[str, NodeReading]]
"""Reads the nodes of these workers; without those that do not answer."""


class SystemSampler:
    """Makes figures of two readings, one `EVERY_S` after the other. It decides nothing, and nobody waits for it.

    Args:
        workers: the processes of the workers that may live, by worker.
        read: reads them and their nodes.
        put: takes each sample.
        now: the time of a sample.
        paces: what workers have told of their own computing.
    """

    def __init__(
        self,
        workers: Callable[[], Mapping[str, ProcessIdentity]],
        read: Read,
        put: Callable[[SystemSample], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        paces: Callable[[], Mapping[str, WorkerPace]] = dict,
    ) -> None:
        self._workers = workers
        self._read = read
        self._put = put
        self._now = now
        self._paces = paces
        self._before: Mapping[str, NodeReading] = {}
        self._paced: Mapping[str, WorkerPace] = {}

    def run(self, over: threading.Event, say: Callable[[str], None]) -> None:
        """Sample until it is over. What fails is said once, and leaves a gap."""
        said: set[str] = set()
        while not over.wait(EVERY_S):
            try:
                self.sample()
            except Exception as error:  # whatever it is, training goes on
                why = f"System metrics have a gap: {type(error).__name__}: {error}"
                if why not in said and len(said) < SAYS:
                    said.add(why)
                    say(why)

    def sample(self) -> None:
        """Take one sample. What was not there last time has its first figures next time."""
        asked: dict[str, dict[str, int]] = defaultdict(dict)
        for worker, identity in self._workers().items():
            asked[identity.node][worker] = identity.pid
        readings, paces = self._read(asked), dict(self._paces())
        own = {worker: pace.step_s(self._paced.get(worker)) for worker, pace in paces.items()}
        uses: list[SystemUse] = []
        spans: list[float] = []
        for node, reading in readings.items():
            before = self._before.get(node)
            if before is None or reading.at_s <= before.at_s:
                continue
            spans.append(reading.at_s - before.at_s)
            uses.append(SystemUse(kind="node", id=node, node=node, figures=_of_node(before, reading)))
            uses += _of_workers(node, asked[node], own, before, reading)
        self._before, self._paced = readings, paces
        if uses:
            self._put(SystemSample(at=self._now(), span_s=round(max(spans), 3), uses=uses))


def _of_workers(
    node: str, pids: Pids, own: Mapping[str, float | None], before: NodeReading, now: NodeReading
) -> Iterator[SystemUse]:
    for worker, pid in pids.items():
        if pid in before.processes and pid in now.processes:
            figures = _of_process(before.processes[pid], now.processes[pid], now.at_s - before.at_s)
            if (step_s := own.get(worker)) is not None:
                figures["step_s"] = round(step_s, 6)
            yield SystemUse(kind="worker", id=worker, node=node, figures=figures)


def _of_process(before: ProcessReading, now: ProcessReading, for_s: float) -> dict[Figure, float]:
    return _known(
        {
            "cpu_percent": _percent(now.cpu_s - before.cpu_s, for_s),
            "memory_bytes": now.memory_bytes,
            "gpu_memory_bytes": now.gpu_memory_bytes,
        }
    )


def _of_node(before: NodeReading, now: NodeReading) -> dict[Figure, float]:
    for_s = now.at_s - before.at_s
    gpus = now.gpus
    passed_s, busy_s = _more(before.total_s, now.total_s), _more(before.busy_s, now.busy_s)
    return _known(
        {
            "cpu_percent": _percent(busy_s, passed_s),
            "memory_bytes": now.memory_bytes,
            "memory_total_bytes": now.memory_total_bytes,
            "disk_read_bytes_per_s": _rate(before.disk_read_bytes, now.disk_read_bytes, for_s),
            "disk_written_bytes_per_s": _rate(before.disk_written_bytes, now.disk_written_bytes, for_s),
            "network_received_bytes_per_s": _rate(
                before.network_received_bytes, now.network_received_bytes, for_s
            ),
            "network_sent_bytes_per_s": _rate(before.network_sent_bytes, now.network_sent_bytes, for_s),
            "gpu_percent": gpus.percent if gpus is not None else None,
            "gpu_memory_bytes": gpus.memory_bytes if gpus is not None else None,
            "gpu_memory_total_bytes": gpus.memory_total_bytes if gpus is not None else None,
        }
    )


def _known(figures: dict[Figure, float | None]) -> dict[Figure, float]:
    return {name: value for name, value in figures.items() if value is not None}


def _more(before: float | None, now: float | None) -> float | None:
    """By how much a counter grew; None where there is none, or where it began anew."""
    if before is None or now is None or now < before:
        return None
    return now - before


def _rate(before: float | None, now: float | None, for_s: float) -> float | None:
    more = _more(before, now)
    return round(more / for_s) if more is not None else None


def _percent(part: float | None, of: float | None) -> float | None:
    return round(100 * part / of, 1) if part is not None and part >= 0 and of else None
