"""The seam to the cluster: everything the control plane asks of it. The only importer of `ringleader.runtime`."""

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
    """Everything an attempt starts from. It names nothing that changes while the attempt runs, and holds no secret of
    the job: the supervisor asks for those with its ingest token. `run_as` is None where the job runs under the stack's
    account."""

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
    """The attempt's supervisor has lived and is gone: the attempt cannot have another."""

    code = "attempt_gone"


class NobodyThere(RingleaderError):
    """The fault found no victim."""

    code = "no_such_member"


class Backend(Protocol):
    """A cluster that runs supervisors, each named by (job id, attempt). Any method may raise: try again later.

    `start` and `release` are idempotent by name; all but `fault` are called on the reconciler's thread, one at a time.
    """

    def start(self, launch: Launch) -> None:
        """Make the attempt's supervisor exist; from then on it works on its own. Raises AttemptGone."""

    def supervisors(self) -> set[tuple[str, int]]:
        """The (job id, attempt) of every supervisor that lives or is being restarted."""

    def answers(self, asked: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bool]:
        """Ask these supervisors, all at once, whether they answer the cluster within a few seconds. The result leaves
        out those that could not be asked in that time."""

    def resize(self, job_id: str, attempt: int, workers_min: int, workers_max: int) -> None:
        """Tell the supervisor its new bounds."""

    def cancel(self, job_id: str, attempt: int, grace_s: float) -> None:
        """Ask the supervisor to end by itself within `grace_s`."""

    def pause(self, job_id: str, attempt: int, grace_s: float) -> None:
        """Ask the supervisor to save a checkpoint and to end, within `grace_s`."""

    def fault(self, job_id: str, attempt: int, fault: str, worker: str | None, for_s: float) -> str:
        """Inject a fault into the attempt, from any thread; returns a description of its effect. Raises NobodyThere."""

    def release(self, job_id: str, attempt: int) -> None:
        """Free every actor, placement group and shared-memory segment of the attempt, whatever its state."""

    def node_lost(self, job_id: str, attempt: int) -> bool:
        """Whether the node of the attempt's supervisor is gone, alone or with the whole cluster."""

    def unposted(self, home: Path, job_id: str, attempt: int) -> Iterator[list[dict[str, Any]]]:
        """The records that a dead supervisor had not posted, in batches; each batch is forgotten once the next one is
        asked for."""

    def forget(self, job_id: str) -> None:
        """Remove the cluster's records of a deleted job of which nothing lives any more."""

    def capacity(self) -> Seen:
        """The nodes, the places that jobs hold there, and the autoscaler's trouble with the nodes that were asked
        for."""

    def ask(self, demand: Demand) -> None:
        """Have the cluster grow until all these workers fit on it at once; replaces the demand before."""

    def close(self) -> None:
        """Disconnect from the cluster; the supervisors there go on."""


class RayBackend:
    """`Backend` over a Ray cluster, with Ray in a process of its own.

    A call that misses its deadline ends that process, and with it all calls that are under way. They raise OutOfReach,
    and so do all that follow, at once: a round that has lost the cluster waits for nothing else. `supervisors`, which
    begins a round, raises it once more, and connects when it is asked again. A release may take more than a minute by
    itself: the cluster is asked every `watch_every_s` whether it is there at all.

    Args:
        process: makes a process that speaks to the cluster.
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
        # No autoscaler, no idle bound: only nodes that may be taken away have to be kept free of warm processes.
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
        # A fault is injected from a request's thread, whose caller gets an answer; only the reconciler retries.
        except OutOfReach as error:
            raise NobodyThere(f"the cluster cannot be reached: {error.message}") from None

    def release(self, job_id: str, attempt: int) -> None:
        # A release may take 74 s by itself, so its own deadline cannot tell a slow release from a dead cluster.
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
            addresses=layout.addresses,
        )

    def ask(self, demand: Demand) -> None:
        self._call("ask", {(need.cpus, need.gpus, need.memory_gb): n for need, n in demand.items()})

    def close(self) -> None:
        # Cleared before it is closed: a call that comes in between finds no connection rather than a dying one.
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.close()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Ask the cluster every `watch_every_s`, beside the block, for something it answers at once; a cluster that
        does not answer is given up, and the call in the block raises."""
        over = threading.Event()
        # The connection of now: another that takes its place meanwhile is not this thread's to close.
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
                # Ending the process is what frees the thread that waits in it: no call of Ray's can be interrupted.
                connected.close()
                return

    def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the cluster; returns its result, or raises its error. Raises OutOfReach."""
        connected = self._connected
        if connected is None:
            # Only `supervisors`, which begins a round, connects: else every action of a round would wait for a
            # connection.
            raise OutOfReach(
                "the control plane has no connection to the cluster.",
                hint="It reconnects within a moment; try again.",
            )
        _reach(self._address)
        return connected.call(method, *args)

    def _connect(self) -> ClusterProcess:
        _reach(self._address)
        connecting = self._process()
        try:
            connecting.call("connect", self._address)
            if self._warm_per_node:
                connecting.call("warm", self._warm_per_node, self._idle_s)
        # Nobody else knows of the child yet, so nobody else would end it.
        except BaseException:
            connecting.close()
            raise
        return connecting


def _reach(address: str) -> None:
    """Raise OutOfReach at once where nothing listens at `address`: Ray would try until the deadline."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise RingleaderError(
            f"RINGLEADER_RAY_ADDRESS is {address!r}, which is not host:port.", hint="`ringleader up` sets it."
        )
    # With the head gone Ray's own calls hang; a refused connection tells so within a round.
    try:
        # In brackets stands an IPv6 address, which sockets take without them.
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise OutOfReach(
            f"no Ray head answers at {address} ({error}).", hint="Check that Ray's head node is running."
        ) from None
