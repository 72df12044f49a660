"""The cluster as the control plane sees it: supervisors by name, capacity, warm processes. Imports Ray when used."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Self

from ringleader.errors import RingleaderError
from ringleader.runtime.messages import NAMESPACE, AttemptLaunch, attempt_name, parse_name
from ringleader.runtime.nodes import environment

if TYPE_CHECKING:
    from ringleader.runtime.nodes.layout import Amounts, ClusterLayout

__all__ = ["AttemptLaunch", "AttemptUsed", "ClusterCapacity", "ClusterNode", "FaultMissed", "RayCluster"]

CALL_S = 20.0
ANSWER_S = 2.0
LOOK_UP_S = 1.0
GONE_S = 20.0
WARM_S = 60.0


class AttemptUsed(RingleaderError):
    """The supervisor of this attempt has run and is gone; an attempt has one supervisor in its life."""


class FaultMissed(RingleaderError):
    """A fault found no victim."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node and its resources in total."""

    id: str
    ip: str
    cpus: float
    gpus: float
    memory_gb: float
    alive: bool


@dataclass(frozen=True, slots=True)
class ClusterCapacity:
    """All nodes; iterates over those alive. `available`: the free amounts now, by Ray's resource names."""

    nodes: tuple[ClusterNode, ...]
    available: dict[str, float]

    def __iter__(self) -> Iterator[ClusterNode]:
        return (n for n in self.nodes if n.alive)

    @property
    def cpus(self) -> float:
        return sum(n.cpus for n in self)

    @property
    def gpus(self) -> float:
        return sum(n.gpus for n in self)

    @property
    def memory_gb(self) -> float:
        return sum(n.memory_gb for n in self)


class RayCluster:
    """A connection to a Ray cluster, one for each process. Calls raise Ray's errors, which may pass."""

    @classmethod
    def connect(cls, address: str, *, namespace: str = NAMESPACE) -> Self:
        """Connect this process to the cluster at `address` (host:port)."""
        environment.for_address(address)
        import ray

        ray.init(
            address=address,
            namespace=namespace,
            # What workers print comes with their records: here Ray would print it once more.
            log_to_driver=False,
            configure_logging=False,
            ignore_reinit_error=True,
        )
        return cls(namespace)

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._looked: ClusterLayout | None = None

    def start(self, launch: AttemptLaunch) -> None:
        """Start the attempt's supervisor unless it exists; idempotent.

        Raises:
            AttemptUsed: it existed and is gone for good. The next attempt is a new one.
        """
        import ray

        from ringleader.runtime.supervisor import attempt_registry
        from ringleader.runtime.supervisor.actor import LIVES, THREADS, Supervisor
        from ringleader.runtime.supervisor.placement import here

        if self._supervisor(launch.job_id, launch.attempt) is not None:
            return
        if attempt_registry.claimed(launch.job_id, launch.attempt):
            raise AttemptUsed(
                f"attempt {launch.attempt} of job {launch.job_id} has already had a supervisor, which is gone.",
                hint="Start the next attempt.",
            )
        # Before there is a supervisor: an attempt without this record was on a cluster that is no more.
        attempt_registry.settle(launch.job_id, launch.attempt, ray.get_runtime_context().get_node_id())
        # `get_if_exists`: two control planes that ask at the same moment get the one supervisor.
        (
            ray.remote(Supervisor)
            .options(
                name=launch.name,
                namespace=self._namespace,
                # Else the supervisor would end with this connection, as when the control plane is restarted.
                lifetime="detached",
                get_if_exists=True,
                # None: it has to start on a full node too.
                num_cpus=0,
                max_concurrency=THREADS,
                max_restarts=LIVES,
                # On this process's node: there it reaches a control plane that listens on loopback, and its spool lies
                # with the control plane's files.
                scheduling_strategy=here(soft=False),
            )
            .remote(launch.set_down())
        )

    def supervisors(self) -> list[tuple[str, int]]:
        """(job id, attempt) of every supervisor that lives, or that Ray is about to restart."""
        import ray

        found = [parse_name(name) for name in ray.util.list_named_actors()]
        return [f for f in found if f is not None]

    def answers(self, asked: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bool]:
        """Whether each supervisor takes calls, which none does that is frozen or being restarted. They are asked
        together, which takes LOOK_UP_S + ANSWER_S however many they are; one not looked up in time is left out."""
        import ray

        found: dict[tuple[str, int], bool] = {}
        calls = {}
        # Each look-up is a call to the control store by itself: all of them share one bound.
        until = monotonic() + LOOK_UP_S
        for who in asked:
            if monotonic() > until:
                break
            supervisor = self._supervisor(*who)
            found[who] = False
            if supervisor is not None:
                calls[supervisor.__ray_ready__.remote()] = who
        if calls:
            ended, _ = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_S, fetch_local=False)
            found.update({calls[call]: _went_well(call) for call in ended})
        return found

    def resize(self, job_id: str, attempt: int, workers_min: int, workers_max: int) -> None:
        self._call(job_id, attempt, "resize", workers_min, workers_max)

    def cancel(self, job_id: str, attempt: int, grace_s: float) -> None:
        self._call(job_id, attempt, "cancel", grace_s)

    def pause(self, job_id: str, attempt: int, grace_s: float) -> None:
        self._call(job_id, attempt, "pause", grace_s)

    def drain(self, job_id: str, attempt: int, worker: str, grace_s: float) -> None:
        self._call(job_id, attempt, "drain", worker, grace_s)

    def fault(self, job_id: str, attempt: int, fault: str, worker: str | None, for_s: float) -> str:
        """Inject a fault into an attempt; returns what was done.

        Raises:
            FaultMissed: there was no victim, or no answer.
        """
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        try:
            supervisor = self._supervisor(job_id, attempt)
            if supervisor is None:
                raise FaultMissed("the attempt has no supervisor at present.")
            struck = ray.get(supervisor.fault.remote(fault, worker, for_s), timeout=CALL_S)
        except ActorUnavailableError:
            raise FaultMissed("the supervisor was killed and has not been restarted yet.") from None
        except RayError as error:
            raise FaultMissed(f"the supervisor did not answer ({type(error).__name__}).") from None
        if not struck.done:
            raise FaultMissed(struck.said)
        return str(struck.said)

    def release(self, job_id: str, attempt: int) -> None:
        """Free every actor and placement group of the attempt, whatever state it is in; idempotent.

        Raises:
            RingleaderError: something is still there after `GONE_S`.
        """
        import ray

        from ringleader.runtime.supervisor.placement import leftovers, remove_leftovers

        supervisor = self._supervisor(job_id, attempt)
        if supervisor is not None:
            answered = _dissolve(supervisor)
            process = None if answered else _process_of(supervisor)
            ray.kill(supervisor)
            if process is not None:  # Ray's word alone does not end a stopped process
                _kill_frozen(*process)
        name = attempt_name(job_id, attempt)
        # Only now: a supervisor that still ran could reserve more.
        remove_leftovers(name)
        # Ray removes groups and names a moment after it was told to.
        until = monotonic() + GONE_S
        while leftovers(name) or self._supervisor(job_id, attempt) is not None:
            if monotonic() > until:
                raise RingleaderError(
                    f"{name} still holds resources after {GONE_S:.0f} s.", hint="Try the release again."
                )
            sleep(0.05)

    def node_lost(self, job_id: str, attempt: int) -> bool:
        """Whether the node of the attempt's supervisor is gone, alone or with the whole cluster."""
        import ray

        from ringleader.runtime.supervisor import attempt_registry

        # A new Ray has no record of it: the empty id is that of no node.
        return attempt_registry.node_of(job_id, attempt) not in {
            n["NodeID"] for n in ray.nodes() if n["Alive"]
        }

    def forget(self, job_id: str) -> None:
        """Remove what the cluster records of a job that is over for good and has no supervisor."""
        from ringleader.runtime.supervisor import attempt_registry

        attempt_registry.forget(job_id)

    def capacity(self) -> ClusterCapacity:
        import ray

        nodes = [_node(n) for n in ray.nodes()]
        return ClusterCapacity(tuple(nodes), {k: float(v) for k, v in ray.available_resources().items()})

    def layout(self) -> "ClusterLayout":
        """The places of attempts, and what others have used in two looks running."""
        from ringleader.runtime.nodes.layout import lasting, look

        seen, before = look(), self._looked
        self._looked = seen
        # What has just been released still shows in the first look after that.
        return replace(seen, others=lasting(before, seen))

    def ask(self, demand: "Mapping[Amounts, int]") -> None:
        """Have Ray's autoscaler make room for so many bundles of (CPUs, GPUs, GB); replaces the request before."""
        from ringleader.runtime.nodes import autoscaler

        autoscaler.ask(demand)

    def autoscaler_trouble(self) -> str:
        """The reason why nodes could not be started, as far as Ray's autoscaler gives one."""
        from ringleader.runtime.nodes import autoscaler

        return autoscaler.trouble()

    def warm(self, per_node: int, idle_s: float | None = None) -> None:
        """Keep `per_node` idle worker processes with torch imported on each node, except nodes that nobody has used for
        `idle_s`."""
        import ray

        from ringleader.runtime.nodes.warm_pool import pool

        # A node with a process on it is not idle for Ray's autoscaler, and would stay for ever.
        ray.get(pool().keep.remote(per_node, idle_s), timeout=WARM_S)

    def warmed(self) -> dict[str, int]:
        """The number of warm processes that are ready, by node."""
        import ray

        from ringleader.runtime.nodes.warm_pool import pool

        return dict(ray.get(pool().ready.remote(), timeout=CALL_S))

    def close(self) -> None:
        """Disconnect from the cluster; what runs there goes on."""
        import ray

        ray.shutdown()

    def _supervisor(self, job_id: str, attempt: int) -> Any:
        import ray

        try:
            return ray.get_actor(attempt_name(job_id, attempt), namespace=self._namespace)
        # Ray's way to say that no actor has this name.
        except ValueError:
            return None

    def _call(self, job_id: str, attempt: int, method: str, *args: Any) -> None:
        """Call a method of a supervisor and wait for it; one that is gone is left out."""
        import ray

        supervisor = self._supervisor(job_id, attempt)
        if supervisor is not None:
            ray.get(getattr(supervisor, method).remote(*args), timeout=CALL_S)


def _went_well(call: Any) -> bool:
    """Whether a call that has ended raised no error of Ray's."""
    import ray
    from ray.exceptions import RayError

    try:
        ray.get(call, timeout=ANSWER_S)
    except RayError:
        return False
    return True


def _dissolve(supervisor: Any) -> bool:
    """Have the supervisor free everything; False where it is frozen."""
    import ray
    from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

    # Nothing stays where it cannot: its workers end themselves then, and its placement groups go with
    # `remove_leftovers`.
    until = monotonic() + CALL_S
    while monotonic() < until:
        try:
            released = supervisor.release.remote()
            if not ray.wait([released], timeout=ANSWER_S)[0]:  # busy with it, if it takes another call
                ray.get(supervisor.__ray_ready__.remote(), timeout=ANSWER_S)
            ray.get(released, timeout=CALL_S)
        except ActorUnavailableError:  # it was killed, and will be back
            sleep(0.05)
            continue
        except GetTimeoutError:
            return False
        except RayError:  # it is dead: there is nothing to wait for
            return True
        return True
    return True


def _process_of(supervisor: Any) -> tuple[str, int]:
    """The node and process id of a supervisor."""
    # Not `ray.util.state`: it asks the server of the dashboard, which `ringleader` does not start.
    from ray._private.state import actors

    found = actors(supervisor._actor_id.hex())
    return str(found["Address"]["NodeID"]), int(found["Pid"])


def _kill_frozen(node: str, pid: int) -> None:
    """Kill the process if a signal has stopped it; does not wait for its end."""
    from ringleader.runtime.nodes.node_process import end_stopped, on_node

    # 0 while Ray has no process for the actor.
    if pid:
        on_node(node, end_stopped, pid)


def _node(node: dict[str, Any]) -> ClusterNode:
    resources = node.get("Resources", {})
    return ClusterNode(
        id=node["NodeID"],
        ip=node["NodeManagerAddress"],
        cpus=float(resources.get("CPU", 0)),
        gpus=float(resources.get("GPU", 0)),
        memory_gb=float(resources.get("memory", 0)) / (1 << 30),
        alive=bool(node["Alive"]),
    )
