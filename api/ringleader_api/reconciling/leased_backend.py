"""The backend for the holder of a role: nothing is done to the cluster once another process has the role."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ringleader_api.backend import Backend, Launch
from ringleader_api.scheduling import Demand, Seen
from ringleader_api.store import RoleLease


class RoleLeasedBackend:
    """`Backend` under a lease. Whatever changes the cluster raises RoleLeaseLost first where the role is not ours; so
    does a call that may take seconds, so that a round with such calls keeps the role."""

    def __init__(self, backend: Backend, lease: RoleLease) -> None:
        self._backend = backend
        self._lease = lease

    def start(self, launch: Launch) -> None:
        self._lease.require()
        self._backend.start(launch)

    def supervisors(self) -> set[tuple[str, int]]:
        return self._backend.supervisors()

    def answers(self, asked: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bool]:
        self._lease.require()
        return self._backend.answers(asked)

    def resize(self, job_id: str, attempt: int, workers_min: int, workers_max: int) -> None:
        self._lease.require()
        self._backend.resize(job_id, attempt, workers_min, workers_max)

    def cancel(self, job_id: str, attempt: int, grace_s: float) -> None:
        self._lease.require()
        self._backend.cancel(job_id, attempt, grace_s)

    def pause(self, job_id: str, attempt: int, grace_s: float) -> None:
        self._lease.require()
        self._backend.pause(job_id, attempt, grace_s)

    def release(self, job_id: str, attempt: int) -> None:
        self._lease.require()
        self._backend.release(job_id, attempt)

    def node_lost(self, job_id: str, attempt: int) -> bool:
        return self._backend.node_lost(job_id, attempt)

    def unposted(self, home: Path, job_id: str, attempt: int) -> Iterator[list[dict[str, Any]]]:
        for told in self._backend.unposted(home, job_id, attempt):
            # Before each batch: the backend forgets a batch when the next is asked for, and another holder may take it
            # in.
            self._lease.require()
            yield told

    def forget(self, job_id: str) -> None:
        self._lease.require()
        self._backend.forget(job_id)

    def fault(self, job_id: str, attempt: int, fault: str, worker: str | None, for_s: float) -> str:
        """Inject a fault without the lease: users ask for it at whichever control plane they reach."""
        return self._backend.fault(job_id, attempt, fault, worker, for_s)

    def capacity(self) -> Seen:
        return self._backend.capacity()

    def ask(self, demand: Demand) -> None:
        self._lease.require()
        self._backend.ask(demand)

    def close(self) -> None:
        self._backend.close()
