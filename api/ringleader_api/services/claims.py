"""What jobs claim from the cluster, as the scheduler and its preview see it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, load_only

from ringleader.spec import JobSpec
from ringleader.spec.job import LEAST_CPUS
from ringleader.spec.sync import SERVERS, Sync
from ringleader.wire.access import Held
from ringleader.wire.states import State
from ringleader_api.scheduling import Claim, Need, Project, Seen, Snapshot
from ringleader_api.scheduling.lifecycle import TEARDOWN_S
from ringleader_api.services.attempts import TRUE_STATES
from ringleader_api.store import people
from ringleader_api.store.tables import GRACE_S, Job

ADMITTED = frozenset(state for state in State if state.holds)
_READ = (
    *(
        Job.id,
        Job.state,
        Job.project,
        Job.spec,
        Job.attempt,
        Job.pending_reason,
        Job.queued_at,
        Job.attempt_at,
    ),
    *(Job.granted, Job.granted_at, Job.sized_max, Job.world_size, Job.running_since, Job.ran_s, Job.grace_s),
    Job.overtook,
)
"""All that is read of a job in a pass over a queue that may be long."""
Spots = Sequence[tuple[str, int]]
START_S = 300.0
"""How long a start may take beside the running time that a job's limit counts."""


def allowed(job: Job) -> int:
    """How many workers the job may have now: `workers.max`, or what the scheduler has granted below that."""
    low: int = job.spec["workers"]["min"]
    high: int = job.spec["workers"]["max"]
    return high if job.granted is None else max(low, min(job.granted, high))


def claim_of_spec(job_id: str, spec: JobSpec) -> Claim:
    """Of a job that is not stored."""
    limit_s = spec.max_runtime_s
    return _claim(
        job_id,
        spec.model_dump(mode="json"),
        project=spec.project,
        ends_in_s=None if limit_s is None else _ends_in_s(limit_s, GRACE_S),
    )


def jobs_of(session: Session) -> Sequence[Job]:
    """Those that hold something or wait, in order of submission."""
    query = select(Job).where(Job.state.in_([*ADMITTED, State.QUEUED]), Job.deleted_at.is_(None))
    return session.scalars(query.options(load_only(*_READ, raiseload=True)).order_by(Job.id)).all()


def snapshot_of(
    session: Session,
    jobs: Sequence[Job],
    seen: Seen,
    now: datetime,
    *,
    besides: Sequence[Claim] = (),
) -> Snapshot:
    """What the scheduler decides from. A waiting job of whose last attempt something still lives does not start, and
    holds what it held.

    Args:
        besides: waiting jobs that are not stored.
    """
    waiting = [job for job in jobs if job.state is State.QUEUED and job.id not in seen.busy]
    at_work = [job for job in jobs if job.state in ADMITTED or job.id in seen.busy]
    return Snapshot(
        nodes=seen.nodes,
        admitted=[_at_work(job, now, _placed(job, seen)) for job in at_work],
        queued=[*(_waiting(job, now) for job in waiting), *besides],
        projects={row.name: _due(row) for row in session.scalars(select(people.Project))},
        others=seen.others,
        reach=seen.reach,
        missing=seen.missing,
    )


def held_by(session: Session, now: datetime) -> dict[str, Held]:
    """What each project's jobs hold; those that hold nothing and wait for nothing are left out."""
    found: dict[str, Held] = {}
    for job in jobs_of(session):
        had = found.get(job.project, Held())
        if job.state is State.QUEUED:
            found[job.project] = had.model_copy(update={"waiting": had.waiting + 1})
            continue
        claim = _at_work(job, now, None)
        places = claim.holds + claim.servers
        found[job.project] = Held(
            workers=had.workers + places,
            cpus=had.cpus + places * claim.need.cpus,
            gpus=had.gpus + places * claim.need.gpus,
            jobs=had.jobs + 1,
            waiting=had.waiting,
        )
    return found


def _waiting(job: Job, now: datetime) -> Claim:
    left_s = _left_s(job, now)
    return _claim(
        job.id,
        job.spec,
        project=job.project,
        waited_s=(now - job.queued_at).total_seconds(),
        ends_in_s=None if left_s is None else _ends_in_s(left_s, job.grace_s),
    )


def _placed(job: Job, seen: Seen) -> Spots | None:
    return None if seen.places is None else seen.places.get((job.id, job.attempt), ())


def _at_work(job: Job, now: datetime, placed: Spots | None) -> Claim:
    began = job.attempt_at or job.queued_at
    told, leaving = allowed(job), job.state not in TRUE_STATES
    left_s = _left_s(job, now)
    starting_s = START_S if job.running_since is None else 0.0
    return _claim(
        job.id,
        job.spec,
        project=job.project,
        holds=max(told, job.world_size, (job.sized_max or 0) if job.state is State.STARTING else 0),
        granted=0 if leaving else told,
        wants=job.spec["workers"]["max"],
        elastic=not leaving,
        evictable=job.state is State.RUNNING,
        ran_s=(now - began).total_seconds(),
        overtook=job.overtook,
        placed=placed,
        settled_s=(now - (job.granted_at or began)).total_seconds(),
        ends_in_s=None if left_s is None else left_s + starting_s + job.grace_s + TEARDOWN_S,
    )


def _claim(job_id: str, spec: dict[str, Any], *, elastic: bool = True, **more: Any) -> Claim:
    workers = spec["workers"]
    return Claim(
        job_id=job_id,
        need=Need(max(workers["cpus"], LEAST_CPUS), workers["gpus"], workers["memory_gb"]),
        floor=workers["min"],
        servers=_servers(spec["sync"]),
        priority=spec.get("priority", 0),
        elastic=elastic,
        **{"holds": workers["max"], **more},
    )


def _servers(sync: dict[str, Any]) -> int:
    return Sync.model_validate(sync).server_count if SERVERS in sync.values() else 0


def _ends_in_s(runs_s: float, grace_s: float) -> float:
    """When a job that starts now has let go of everything."""
    return runs_s + START_S + grace_s + TEARDOWN_S


def _left_s(job: Job, now: datetime) -> float | None:
    """Running time that is left of the job's limit."""
    limit_s: float | None = job.spec["max_runtime_s"]
    if limit_s is None:
        return None
    runs_s = (now - job.running_since).total_seconds() if job.running_since is not None else 0.0
    return max(0.0, limit_s - job.ran_s - runs_s)


def _due(row: people.Project) -> Project:
    return Project(row.weight, row.quota_workers, row.quota_cpus, row.quota_gpus)
