"""The seam to the cluster: what the control plane asks of it. The only importer of `ringleader.runtime`."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ringleader.accounts import RunAs
from ringleader.errors import RingleaderError
from ringleader.runtime import messages
from ringleader.runtime.nodes import cluster
from ringleader.runtime.nodes.cluster_process import ClusterProcess, OutOfReach
from ringleader.runtime.records import spool
from ringleader.spec import JobSpec
from ringleader_api.scheduling import Demand, NodeShape, Seen, WorkerNeed


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything an attempt starts from. Names nothing that changes while it runs, and holds no secret of the job: its
    supervisor asks for those with the ingest token. `run_as` is None where the job runs under the stack's account."""

    job_id: str
    attempt: int
    spec: JobSpec
    package: bytes | None
    ingest_url: str
    ingest_token: str
    home: Path
    run_as: RunAs | None = None


REACH_S = 3.0
WATCH_EVERY_S = 5.0


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

    def node_lost(self, job_id: str, attempt: int) -> bool:
        """Whether the node of the attempt's supervisor is gone, alone or with the whole cluster."""

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
    """`Backend` over a Ray cluster, with Ray in a process of its own.

    A call that misses its deadline ends that process, and with it all calls that are under way. They raise OutOfReach,
    and so do all that follow, at once: a round that has lost the cluster waits for nothing else. `supervisors`, which
    begins a round, raises it once more, and connects when it is asked again. A release may take more than a minute by
    itself: the cluster is asked every `watch_every_s` whether it is there at all.

    Args:
        process: makes one.
    """

    def __init__(
        self,
        address: str,
        *,
        warm_per_node: int,
        idle_s: float | None = None,
        process: Callable[[], ClusterProcess] = ClusterProcess,
        watch_every_s: float = WATCH_EVERY_S,
    ) -> None:
        self._address = address
        self._warm_per_node = warm_per_node
        self._grows = idle_s is not None
        self._idle_s = idle_s
        self._process = process
        self._watch_every_s = watch_every_s
        self._connected: ClusterProcess | None = None

    def start(self, launch: Launch) -> None:
        order = cluster.AttemptLaunch(
            job_id=launch.job_id,
            attempt=launch.attempt,
            spec=launch.spec,
            package=launch.package,
            ingest_url=launch.ingest_url,
            ingest_token=launch.ingest_token,
            home=launch.home,
            run_as=launch.run_as,
        )
        try:
            self._call("start", order)
        except cluster.AttemptUsed as used:
            raise AttemptGone(used.message, hint=used.hint) from None

    def supervisors(self) -> set[tuple[str, int]]:
        try:
            if self._connected is None:
                self._connected = self._connect()
            return set(self._call("supervisors"))
        except Exception:
            self.close()  # a broken connection does not heal
            raise

    def answers(self, asked: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bool]:
        return dict(self._call("answers", list(asked)))

    def resize(self, job_id: str, attempt: int, workers_min: int, workers_max: int) -> None:
        self._call("resize", job_id, attempt, workers_min, workers_max)

    def cancel(self, job_id: str, attempt: int, grace_s: float) -> None:
        self._call("cancel", job_id, attempt, grace_s)

    def pause(self, job_id: str, attempt: int, grace_s: float) -> None:
        self._call("pause", job_id, attempt, grace_s)

    def fault(self, job_id: str, attempt: int, fault: str, worker: str | None, for_s: float) -> str:
        try:
            return str(self._call("fault", job_id, attempt, fault, worker, for_s))
        except cluster.FaultMissed as missed:
            raise NobodyThere(missed.message) from None
        except OutOfReach as error:
            raise NobodyThere(f"the cluster is out of reach: {error.message}") from None

    def release(self, job_id: str, attempt: int) -> None:
        with self._watched():
            self._call("release", job_id, attempt)

    def node_lost(self, job_id: str, attempt: int) -> bool:
        return bool(self._call("node_lost", job_id, attempt))

    def unposted(self, home: Path, job_id: str, attempt: int) -> Iterator[list[dict[str, Any]]]:
        return spool.unposted(messages.spool_of(home, job_id, attempt))

    def forget(self, job_id: str) -> None:
        self._call("forget", job_id)

    def capacity(self) -> Seen:
        layout = self._call("layout")
        return Seen(
            nodes=[NodeShape(node, *has) for node, has in layout.nodes.items()],
            others={node: WorkerNeed(*used) for node, used in layout.others.items()},
            places=layout.places,
            servers=layout.servers,
            trouble=self._call("autoscaler_trouble") if self._grows else "",
        )

    def ask(self, demand: Demand) -> None:
        self._call("ask", {(need.cpus, need.gpus, need.memory_gb): n for need, n in demand.items()})

    def close(self) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.close()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Meanwhile the cluster is asked for something that it answers at once, and given up where it does not."""
        over = threading.Event()
        threading.Thread(target=self._watch, args=(self._connected, over), daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, connected: ClusterProcess | None, over: threading.Event) -> None:
        while connected is not None and not over.wait(self._watch_every_s):
            try:
                _reach(self._address)
                connected.call("supervisors")
            except OutOfReach:
                connected.close()
                return

    def _call(self, method: str, *args: Any) -> Any:
        """What that method of the cluster returns or raises. Raises OutOfReach."""
        connected = self._connected
        if connected is None:
            raise OutOfReach("there is no connection to the cluster now.", hint="The next round makes one.")
        _reach(self._address)
        return connected.call(method, *args)

    def _connect(self) -> ClusterProcess:
        _reach(self._address)
        connecting = self._process()
        try:
            connecting.call("connect", self._address)
            if self._warm_per_node:
                connecting.call("warm", self._warm_per_node, self._idle_s)
        except BaseException:
            connecting.close()
            raise
        return connecting


def _reach(address: str) -> None:
    """Raise OutOfReach at once where nobody listens: Ray would try until the deadline."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise RingleaderError(
            f"RINGLEADER_RAY_ADDRESS is {address!r}, not host:port.", hint="`ringleader up` sets it."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise OutOfReach(f"nobody answers at {address} ({error}).", hint="Is Ray's head running?") from None
