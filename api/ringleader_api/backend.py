"""The seam to the cluster: what the control plane asks of it. The only importer of `ringleader.runtime`."""

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ringleader.errors import RingleaderError
from ringleader.spec import JobSpec
from ringleader_api.scheduling import Demand, Need, Node, Seen

if TYPE_CHECKING:
    from ringleader.runtime.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything an attempt starts from. Names nothing that changes while it runs, and holds no secret of the job: its
    supervisor asks for those with the ingest token."""

    job_id: str
    attempt: int
    spec: JobSpec
    package: bytes | None
    ingest_url: str
    ingest_token: str
    home: Path


REACH_S = 3.0
NEVER_S = "1000000"


class AttemptGone(RingleaderError):
    """The attempt has had its supervisor, which is gone: it cannot have another."""

    code = "attempt_gone"


class NobodyThere(RingleaderError):
    """A fault found no victim."""

    code = "no_such_member"


class Backend(Protocol):
    """A cluster that runs supervisors, each named by (job id, attempt). Any method may raise: try again later.

    `start` and `release` are idempotent by name; all but `fault` are called on the reconciler's thread, one at a time.
    """

    def start(self, launch: Launch) -> None:
        """Have the attempt's supervisor exist; it works on its own from then on. Raises AttemptGone."""

    def supervisors(self) -> set[tuple[str, int]]:
        """(job id, attempt) of every supervisor that lives or restarts."""

    def answers(self, asked: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bool]:
        """Which of these supervisors answer the cluster within a few seconds, which all have together. Who could not be
        asked in that time is left out."""

    def resize(self, job_id: str, attempt: int, workers_min: int, workers_max: int) -> None:
        """Tell the supervisor its new bounds."""

    def cancel(self, job_id: str, attempt: int, grace_s: float) -> None:
        """Ask the supervisor to end by itself within `grace_s`."""

    def pause(self, job_id: str, attempt: int, grace_s: float) -> None:
        """Ask the supervisor to save what the attempt holds and to end, within `grace_s`."""

    def fault(self, job_id: str, attempt: int, fault: str, worker: str | None, for_s: float) -> str:
        """Do the attempt harm on purpose, from any thread; returns what was done. Raises NobodyThere."""

    def release(self, job_id: str, attempt: int) -> None:
        """Free every actor, placement group and segment of the attempt, whatever state it is in."""

    def unposted(self, home: Path, job_id: str, attempt: int) -> Iterator[list[dict[str, Any]]]:
        """What a supervisor that is gone for good has not posted; each is forgotten once the next is
        asked for."""

    def forget(self, job_id: str) -> None:
        """Keep no word of a job that was deleted, of which nothing lives any more."""

    def capacity(self) -> Seen:
        """The nodes, who has which places there, and how far it has got with nodes that were asked for."""

    def ask(self, demand: Demand) -> None:
        """Have the cluster grow until all these workers have room on it at once; replaces what was asked before."""

    def close(self) -> None:
        """Let go of the cluster; what runs there goes on."""


class RayBackend:
    """`Backend` over a Ray cluster. Connects on first use, and again after the connection broke.

    A connection that a fault is using is let go of when that is over, by whoever did it; nobody waits for it.
    """

    def __init__(self, address: str, *, warm_per_node: int, idle_s: float | None = None) -> None:
        self._address = address
        self._warm_per_node = warm_per_node
        self._grows = idle_s is not None
        self._idle_s = idle_s
        self._connected: Cluster | None = None
        self._lock = threading.Lock()  # held for a few statements, never during a call
        self._faults = 0
        self._leaving = False

    def start(self, launch: Launch) -> None:
        from ringleader.runtime import cluster

        order = cluster.Launch(
            job_id=launch.job_id,
            attempt=launch.attempt,
            spec=launch.spec,
            package=launch.package,
            ingest_url=launch.ingest_url,
            ingest_token=launch.ingest_token,
            home=launch.home,
        )
        try:
            self._cluster().start(order)
        except cluster.AttemptUsed as used:
            raise AttemptGone(used.message, hint=used.hint) from None

    def supervisors(self) -> set[tuple[str, int]]:
        try:
            _reach(self._address)  # with the head gone, Ray's calls hang, and after a minute end this process
            return set(self._cluster().supervisors())
        except Exception:
            self.close()  # a broken connection does not heal: the next call makes a new one
            raise

    def answers(self, asked: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bool]:
        return self._cluster().answers(asked)

    def resize(self, job_id: str, attempt: int, workers_min: int, workers_max: int) -> None:
        self._cluster().resize(job_id, attempt, workers_min, workers_max)

    def cancel(self, job_id: str, attempt: int, grace_s: float) -> None:
        self._cluster().cancel(job_id, attempt, grace_s)

    def pause(self, job_id: str, attempt: int, grace_s: float) -> None:
        self._cluster().pause(job_id, attempt, grace_s)

    def fault(self, job_id: str, attempt: int, fault: str, worker: str | None, for_s: float) -> str:
        from ringleader.runtime.cluster import FaultMissed

        with self._in_use() as cluster:
            try:
                _reach(self._address)
                return cluster.fault(job_id, attempt, fault, worker, for_s)
            except FaultMissed as missed:
                raise NobodyThere(missed.message) from None
            except OSError as error:
                raise NobodyThere(f"the cluster is out of reach ({type(error).__name__}).") from None

    def release(self, job_id: str, attempt: int) -> None:
        self._cluster().release(job_id, attempt)

    def unposted(self, home: Path, job_id: str, attempt: int) -> Iterator[list[dict[str, Any]]]:
        from ringleader.runtime import messages, spool

        return spool.unposted(messages.spool_of(home, job_id, attempt))

    def forget(self, job_id: str) -> None:
        self._cluster().forget(job_id)

    def capacity(self) -> Seen:
        layout = self._cluster().layout()
        return Seen(
            nodes=[Node(node, *has) for node, has in layout.nodes.items()],
            others={node: Need(*used) for node, used in layout.others.items()},
            places=layout.places,
            trouble=self._cluster().autoscaler_trouble() if self._grows else "",
        )

    def ask(self, demand: Demand) -> None:
        self._cluster().ask({(need.cpus, need.gpus, need.memory_gb): n for need, n in demand.items()})

    def close(self) -> None:
        with self._lock:
            self._leaving = self._leaving or self._connected is not None
        self._leave_if_unused()

    @contextmanager
    def _in_use(self) -> "Iterator[Cluster]":
        """The connection, which stays until the end of the block. Raises NobodyThere."""
        with self._lock:
            cluster = None if self._leaving else self._connected
            if cluster is None:
                raise NobodyThere("the cluster is out of reach.")
            self._faults += 1
        try:
            yield cluster
        finally:
            with self._lock:
                self._faults -= 1
            self._leave_if_unused()

    def _leave_if_unused(self) -> None:
        with self._lock:
            if not self._leaving or self._faults or self._connected is None:
                return
            cluster, self._connected = self._connected, None
        try:
            cluster.close()
        finally:
            self._leaving = False

    def _cluster(self) -> "Cluster":
        if self._leaving:  # a process has one connection to Ray at a time
            raise RingleaderError("a fault that is under way still uses the connection that broke.")
        if self._connected is None:
            from ringleader.runtime.cluster import Cluster

            _reach(self._address)
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", NEVER_S)
            cluster = Cluster.connect(self._address)
            if self._warm_per_node:
                cluster.warm(self._warm_per_node, self._idle_s)
            self._connected = cluster
        return self._connected


def _reach(address: str) -> None:
    """Raise unless somebody listens there: Ray's own connect would go on trying for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise RingleaderError(
            f"RINGLEADER_RAY_ADDRESS is {address!r}, not host:port.", hint="`ringleader up` sets it."
        )
    with socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S):
        pass
