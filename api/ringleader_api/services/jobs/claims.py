"""The claims of jobs on the cluster, as the scheduler and its preview see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from ringleader.spec import JobSpec
from ringleader.spec.sync import Sync
from ringleader.spec.sync_keys import SERVERS
from ringleader.spec.workers import LEAST_CPUS, each_server
from ringleader.wire.access import Held
from ringleader.wire.states import State
from ringleader_api.scheduling import Claim, ClusterSnapshot, ProjectShare, Seen, WorkerNeed
from ringleader_api.scheduling.lifecycle import TEARDOWN_S
from ringleader_api.scheduling.shares import Usage
from ringleader_api.services.jobs.attempts import TRUE_STATES
from ringleader_api.store import people
from ringleader_api.store.spent import together
from ringleader_api.store.tables import GRACE_S, Job

ADMITTED = frozenset(state for state in State if state.holds)
_READ = (
    *(
        Job.id,
        Job.state,
        Job.project,
        Job.version,
        Job.attempt,
        Job.pending_reason,
        Job.queued_at,
        Job.attempt_at,
    ),
    *(Job.granted, Job.granted_at, Job.sized_max, Job.world_size, Job.running_since, Job.ran_s, Job.grace_s),
    *(Job.overtook, Job.spending),
)
"""The columns read of each job during a pass, over a queue that may be long."""
START_S = 300.0
"""The seconds that a start may take beside the running time that a job's limit counts."""
READ_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Terms:
    """The job file's terms for the scheduler: workers and servers, each with its need, and a limit in seconds."""

    need: WorkerNeed
    workers_min: int
    workers_max: int
    servers: int
    server_need: WorkerNeed
    grows: bool
    priority: int
    limit_s: float | None


class StandingClaim(NamedTuple):
    """A job that holds something or waits: its row, as a pass reads it, and its terms."""

    job: Row[Any]
    terms: Terms


class Register:
    """The jobs that hold something or wait. A job file is read once in each of its versions: queues are long, and
    passes are many."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, Terms]] = {}

    def jobs(self, session: Session) -> Sequence[StandingClaim]:
        """The jobs in order of submission."""
        query = select(*_READ).where(Job.state.in_([*ADMITTED, State.QUEUED]), Job.deleted_at.is_(None))
        # Over the connection: rows of plain columns cost a fraction of loaded objects.
        rows = session.connection().execute(query.order_by(Job.id)).all()
        known = self._known
        self._known = {row.id: known[row.id] for row in rows if known.get(row.id, (None,))[0] == row.version}
        self._read(session, [row for row in rows if row.id not in self._known])
        return [StandingClaim(row, self._known[row.id][1]) for row in rows if row.id in self._known]

    def _read(self, session: Session, rows: Sequence[Row[Any]]) -> None:
        """Read the terms of these jobs."""
        versions = {row.id: row.version for row in rows}
        ids = list(versions)
        for first in range(0, len(ids), READ_AT_ONCE):
            query = select(Job.id, Job.spec).where(Job.id.in_(ids[first : first + READ_AT_ONCE]))
            # Jobs deleted since their rows were read are left out.
            for job_id, spec in session.connection().execute(query):
                self._known[job_id] = versions[job_id], _terms(spec)


def allowed(job: Job) -> int:
    """The number of workers the job may have now: `workers.max`, or a smaller grant of the scheduler."""
    workers = job.spec["workers"]
    return _allowed(workers["min"], workers["max"], job.granted)


def claim_of_spec(job_id: str, spec: JobSpec) -> Claim:
    """The claim of a job that is not stored."""
    terms = _terms(spec.model_dump(mode="json"))
    ends_in_s = None if terms.limit_s is None else _ends_in_s(terms.limit_s, GRACE_S)
    return _claim(job_id, terms, project=spec.project, ends_in_s=ends_in_s)


def snapshot_of(
    session: Session,
    jobs: Sequence[StandingClaim],
    seen: Seen,
    now: datetime,
    *,
    besides: Sequence[Claim] = (),
) -> ClusterSnapshot:
    """The scheduler's input. A waiting job does not start while anything of its last attempt lives, and holds what that
    held.

    Args:
        besides: waiting jobs that are not stored.
    """
    waiting = [one for one in jobs if one.job.state is State.QUEUED and one.job.id not in seen.busy]
    at_work = [one for one in jobs if one.job.state in ADMITTED or one.job.id in seen.busy]
    return ClusterSnapshot(
        nodes=seen.nodes,
        admitted=[_at_work(one, now, seen) for one in at_work],
        queued=[*(_waiting(one, now) for one in waiting), *besides],
        projects={row.name: _due(row) for row in session.scalars(select(people.Project))},
        others=seen.others,
        reach=seen.reach,
        missing=seen.missing,
    )


def held_by(jobs: Sequence[StandingClaim], now: datetime) -> dict[str, Held]:
    """The resources held by each project's jobs; projects that hold nothing and wait for nothing are left out."""
    found: dict[str, Held] = {}
    for one in jobs:
        job = one.job
        had = found.get(job.project, Held())
        if job.state is State.QUEUED:
            found[job.project] = had.model_copy(update={"waiting": had.waiting + 1})
            continue
        claim = _at_work(one, now, None)
        shapes = [(claim.need, claim.holds + claim.alike), *([claim.apart] if claim.apart else [])]
        found[job.project] = Held(
            workers=had.workers + sum(count for _, count in shapes),
            cpus=had.cpus + sum(count * need.cpus for need, count in shapes),
            gpus=had.gpus + sum(count * need.gpus for need, count in shapes),
            jobs=had.jobs + 1,
            waiting=had.waiting,
        )
    return found


def quota_left(session: Session, job: Job, now: datetime) -> int:
    """The number of workers that the project's quotas leave to a job at work, beside its servers and what others
    hold."""
    # Locked: the next to ask waits for the end of the transaction, and sees what was taken in it.
    project = session.get(people.Project, job.project, with_for_update=True)
    others = (Job.state.in_(ADMITTED), Job.project == job.project, Job.id != job.id)
    rows = session.execute(select(*_READ, Job.spec).where(*others)).all()
    held = [_at_work(StandingClaim(row, _terms(row.spec)), now, None) for row in rows]
    usage = Usage((), held, {job.project: _due(project)} if project is not None else {})
    claim = _claim(job.id, _terms(job.spec), project=job.project)
    return usage.left_for(claim) - claim.alike


def _waiting(one: StandingClaim, now: datetime) -> Claim:
    job, terms = one
    left_s = _left_s(one)
    return _claim(
        job.id,
        terms,
        project=job.project,
        waited_s=(now - job.queued_at).total_seconds(),
        ends_in_s=None if left_s is None else _ends_in_s(left_s, job.grace_s),
    )


def _at_work(one: StandingClaim, now: datetime, seen: Seen | None) -> Claim:
    """The claim of a job at work. `seen` is None where the places do not matter."""
    job, terms = one
    places = None if seen is None else seen.places
    began = job.attempt_at or job.queued_at
    told, leaving = _allowed(terms.workers_min, terms.workers_max, job.granted), job.state not in TRUE_STATES
    left_s = _left_s(one)
    starting_s = START_S if job.running_since is None else 0.0
    return _claim(
        job.id,
        terms,
        project=job.project,
        # While it starts it may still come to hold what it was last told; later the workers that live are known.
        holds=max(told, job.world_size, (job.sized_max or 0) if job.state is State.STARTING else 0),
        granted=0 if leaving else told,
        wants=terms.workers_max,
        elastic=not leaving,
        evictable=job.state is State.RUNNING,
        ran_s=(now - began).total_seconds(),
        overtook=job.overtook,
        placed=None if places is None else places.get((job.id, job.attempt), ()),
        servers_placed=None
        if places is None or seen is None
        else seen.servers.get((job.id, job.attempt), ()),
        settled_s=(now - (job.granted_at or began)).total_seconds(),
        # A running attempt ends at its limit; then come its grace and the teardown.
        ends_in_s=None if left_s is None else left_s + starting_s + job.grace_s + TEARDOWN_S,
    )


def _claim(job_id: str, terms: Terms, *, elastic: bool = True, **more: Any) -> Claim:
    return Claim(
        job_id=job_id,
        need=terms.need,
        floor=terms.workers_min,
        servers=terms.servers,
        server_need=terms.server_need,
        grows=terms.grows,
        priority=terms.priority,
        elastic=elastic,
        **{"holds": terms.workers_max, **more},
    )


def _terms(spec: dict[str, Any]) -> Terms:
    workers = spec["workers"]
    return Terms(
        need=_need(workers),
        workers_min=workers["min"],
        workers_max=workers["max"],
        servers=_servers(spec["sync"]),
        server_need=_need(each_server(workers, spec.get("servers"))),
        grows=spec.get("autoscale", {}).get("surplus", False),
        priority=spec.get("priority", 0),
        limit_s=spec["max_runtime_s"],
    )


def _need(each: Mapping[str, Any]) -> WorkerNeed:
    return WorkerNeed(max(each["cpus"], LEAST_CPUS), each["gpus"], each["memory_gb"])


def _allowed(workers_min: int, workers_max: int, granted: int | None) -> int:
    return workers_max if granted is None else max(workers_min, min(granted, workers_max))


def _servers(sync: dict[str, Any]) -> int:
    # Looked for before the part is read as a model, which costs far more: most jobs of a long queue have no servers.
    return Sync.model_validate(sync).server_count if SERVERS in sync.values() else 0


def _ends_in_s(runs_s: float, grace_s: float) -> float:
    """The seconds until a job that starts now has released everything."""
    return runs_s + START_S + grace_s + TEARDOWN_S


def _left_s(one: StandingClaim) -> float | None:
    """The running time left of the job's limit, in seconds; None: it has no limit."""
    job, limit_s = one.job, one.terms.limit_s
    if limit_s is None:
        return None
    # Of this attempt only while it runs: `ran_s` has taken it in once it has stopped.
    runs_s = together(job.spending).wall_s if job.running_since is not None else 0.0
    left_s: float = limit_s - job.ran_s - runs_s
    return max(0.0, left_s)


def _due(row: people.Project) -> ProjectShare:
    return ProjectShare(row.weight, row.quota_workers, row.quota_cpus, row.quota_gpus)
