"""The processes that workers run in: idle ones of the warm pool, or new ones inside a bundle with GPUs; their tasks."""

from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ringleader.elastic.instructions import Role
from ringleader.runtime.messages import NAMESPACE, WORKER_THREADS, AttemptLaunch, MemberTask, ProcessIdentity
from ringleader.runtime.supervisor.placement import BundlePlace, BundlePlaces
from ringleader.runtime.supervisor.workers.worker_handle import WorkerHandle


class WorkerProcesses:
    """Finds a process for each worker of an attempt, and has it do the worker's task.

    Args:
        start: the number of this start of the supervisor.
        me: the supervisor's own actor handle, given to every worker.
        take: takes an idle process of a node from the warm pool, for a worker.
    """

    def __init__(
        self,
        launch: AttemptLaunch,
        start: int,
        me: Any,
        take: Callable[[str, str], tuple[Any, ProcessIdentity | None]],
    ) -> None:
        self._launch = launch
        self._start = start
        self._me = me
        self._take = take
        # Put once: all workers of a node read the one copy in its object store.
        self._package = ray.put(launch.packed())

    def find(
        self, worker: str, place: BundlePlace, places: BundlePlaces
    ) -> tuple[Any, ProcessIdentity | None]:
        """An idle process of the place's node; with GPUs a new one inside the bundle."""
        name = f"{self._launch.name}-{worker}"
        gpus = self._launch.spec.gpus_of(place.role)
        if not gpus:
            return self._take(places.node(place), name)
        from ringleader.runtime.worker.actor import WorkerActor

        # An idle process has been given no devices: Ray assigns them to what starts inside the bundle.
        inside = PlacementGroupSchedulingStrategy(place.group, placement_group_bundle_index=place.bundle)
        actor = (
            ray.remote(WorkerActor)
            .options(
                name=name,
                namespace=NAMESPACE,
                # Else it would end with a supervisor that is killed, which comes back and wants it.
                lifetime="detached",
                # A supervisor that was killed before it noted the actor finds it again by its name.
                get_if_exists=True,
                num_cpus=0,
                num_gpus=gpus,
                max_concurrency=WORKER_THREADS,
                scheduling_strategy=inside,
            )
            .remote()
        )
        return actor, None

    def run(self, worker: str, handle: WorkerHandle) -> None:
        """Have a worker do its task. One that has begun already goes on."""
        handle.run(self._start, self._task(worker, handle.role), self._package, self._me)

    def _task(self, worker: str, role: Role) -> MemberTask:
        launch = self._launch
        folders = (launch.left, launch.scratch, launch.checkpoints)
        return MemberTask(launch.job_id, launch.attempt, worker, role, launch.spec, *folders, launch.run_as)
