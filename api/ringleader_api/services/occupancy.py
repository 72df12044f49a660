"""The occupancy of the cluster: nodes with the jobs on them, the queue in its order, projects against their quotas.

Of jobs that the caller may not read it says that they are there, and not which.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from ringleader.wire.access import Held, Quota
from ringleader.wire.occupancy import (
    AskedFor,
    Growing,
    JobOnNode,
    OccupancyView,
    OccupiedNode,
    ProjectUse,
    Resources,
    WaitingJob,
)
from ringleader.wire.views import Why
from ringleader_api.clock import Clock
from ringleader_api.scheduling import ClusterSnapshot, Demand, Outlook, Seen, WorkerNeed, outlook
from ringleader_api.services.jobs.claims import READ_AT_ONCE, Register, StandingClaim, held_by, snapshot_of
from ringleader_api.store import Store
from ringleader_api.store.people import Project
from ringleader_api.store.tables import Job

MOST_WAITING = 200
"""The most waiting jobs that are told of, the first ones."""


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster as the reconciler last saw it: None while it is out of reach, for the reason `trouble`."""

    seen: Seen | None
    asked: Demand | None
    trouble: str


class Occupancy:
    """Reads who takes what."""

    def __init__(self, store: Store, now: Clock) -> None:
        self._store = store
        self._now = now
        self._register = Register()

    def view(self, look: Look, projects: Collection[str] | None) -> OccupancyView:
        """The document for a caller who may read the jobs of these projects (None: of all). Called by one at a time:
        calls share what is known of job files."""
        seen, now = look.seen, self._now()
        with self._store.read() as session:
            jobs = self._register.jobs(session)
            snapshot = snapshot_of(session, jobs, seen or Seen(), now)
            rows = session.scalars(select(Project).order_by(Project.name)).all()
            order = _order(snapshot, reachable=seen is not None)
            told = [claim.job_id for claim in snapshot.admitted] + list(order.turn[:MOST_WAITING])
            named = _named(session, told, projects)
        held = held_by(jobs, now)
        return OccupancyView(
            reachable=seen is not None,
            trouble=look.trouble,
            nodes=_nodes(seen, jobs, named) if seen is not None else [],
            queue=_queue(order, jobs, named, now),
            waiting=len(order.turn),
            projects=[
                ProjectUse(name=row.name, quota=_quota(row), held=held.get(row.name, Held()))
                for row in rows
                if projects is None or row.name in projects
            ],
            growing=_growing(seen, look.asked) if seen is not None and seen.reach is not None else None,
        )


def _order(snapshot: ClusterSnapshot, *, reachable: bool) -> Outlook:
    if reachable:
        return outlook(snapshot)
    # Without nodes no job can run, and a pass would say nothing of their order but that of submission.
    return Outlook([claim.job_id for claim in snapshot.queued], None, None)


def _named(session: Session, ids: Sequence[str], projects: Collection[str] | None) -> Mapping[str, Row[Any]]:
    """The jobs that the caller may read, by id."""
    query = select(Job.id, Job.name, Job.project, Job.workers, Job.pending_reason, Job.queued_at)
    found: dict[str, Row[Any]] = {}
    for first in range(0, len(ids), READ_AT_ONCE):
        for row in session.execute(query.where(Job.id.in_(ids[first : first + READ_AT_ONCE]))):
            if projects is None or row.project in projects:
                found[row.id] = row
    return found


def _nodes(seen: Seen, jobs: Sequence[StandingClaim], named: Mapping[str, Row[Any]]) -> list[OccupiedNode]:
    placed: dict[str, list[JobOnNode]] = {node.id: [] for node in seen.nodes}
    for job, terms in jobs:
        who = (job.id, job.attempt)
        workers, servers = _by_node((seen.places or {}).get(who, ())), _by_node(seen.servers.get(who, ()))
        for node in placed.keys() & (workers.keys() | servers.keys()):
            counts = (workers[node], terms.need), (servers[node], terms.server_need)
            row = named.get(job.id)
            on_node = JobOnNode(
                job=row and row.id,
                name=row and row.name,
                project=row and row.project,
                places=counts[0][0],
                servers=counts[1][0],
                members=sorted(one["id"] for one in row.workers if one["node"] == node) if row else [],
                **_sum(counts),
            )
            placed[node].append(on_node)
    return [
        OccupiedNode(
            id=node.id,
            address=seen.addresses.get(node.id, ""),
            cpus=node.cpus,
            gpus=node.gpus,
            memory_gb=node.memory_gb,
            others=Resources(**_sum([(1, seen.others[node.id])] if node.id in seen.others else [])),
            jobs=placed[node.id],
        )
        for node in seen.nodes
    ]


def _by_node(places: Iterable[tuple[str, int]]) -> Counter[str]:
    """The number of places on each node: it is there once for the gang, and once more for each worker beyond that."""
    found: Counter[str] = Counter()
    for node, count in places:
        found[node] += count
    return found


def _sum(parts: Iterable[tuple[int, WorkerNeed]]) -> dict[str, float]:
    parts = list(parts)
    return {
        name: sum(count * getattr(need, name) for count, need in parts) for name in Resources.model_fields
    }


def _queue(
    order: Outlook, jobs: Sequence[StandingClaim], named: Mapping[str, Row[Any]], now: datetime
) -> list[WaitingJob]:
    least = {one.job.id: one.terms.workers_min for one in jobs}
    found = []
    for place, job_id in enumerate(order.turn[:MOST_WAITING], 1):
        row = named.get(job_id)
        if row is None:
            found.append(WaitingJob(place=place))
            continue
        known = job_id == order.head and order.head_by_s is not None
        found.append(
            WaitingJob(
                place=place,
                job=job_id,
                name=row.name,
                project=row.project,
                workers=least[job_id],
                since=row.queued_at,
                why=Why(**row.pending_reason) if row.pending_reason else None,
                starts_by=now + timedelta(seconds=order.head_by_s or 0.0) if known else None,
            )
        )
    return found


def _growing(seen: Seen, asked: Demand | None) -> Growing:
    assert seen.reach is not None
    return Growing(
        reach_cpus=seen.reach.cpus,
        reach_gpus=seen.reach.gpus,
        asked=None if asked is None else [_asked(need, workers=count) for need, count in asked.items()],
        missing=[_asked(need, why=why) for need, why in seen.missing.items()],
        trouble=seen.trouble,
    )


def _asked(need: WorkerNeed, *, workers: int | None = None, why: str = "") -> AskedFor:
    return AskedFor(cpus=need.cpus, gpus=need.gpus, memory_gb=need.memory_gb, workers=workers, why=why)


def _quota(row: Project) -> Quota:
    return Quota(workers=row.quota_workers, cpus=row.quota_cpus, gpus=row.quota_gpus)
