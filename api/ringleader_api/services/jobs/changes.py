"""Reading and changing jobs: view, resize, label, cancel, delete."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec, Workers
from ringleader.wire.states import State
from ringleader.wire.views import JobView, Why
from ringleader_api.clock import Clock
from ringleader_api.problems import Conflict, PreconditionFailed, Unprocessable
from ringleader_api.rights import Action, Caller
from ringleader_api.scheduling import Seen
from ringleader_api.services.jobs.claims import allowed, quota_left
from ringleader_api.services.jobs.infeasible import placeable
from ringleader_api.services.jobs.labels import relabel
from ringleader_api.services.jobs.views import etag, job_view
from ringleader_api.services.users.access import load, no_job, permit
from ringleader_api.store import Store, move, record, retarget, stay_paused
from ringleader_api.store.tables import ExportCursor, Job

MAX_GRACE = timedelta(hours=1)


class Jobs:
    """Reads and changes jobs. `url` is the address users take; `grows`: the cluster does."""

    def __init__(self, store: Store, now: Clock, url: str, *, grows: bool) -> None:
        self._store = store
        self._now = now
        self._url = url
        self._grows = grows

    def view(self, job_id: str) -> tuple[JobView, str]:
        """The job and its entity tag."""
        query = select(Job, ExportCursor).outerjoin(ExportCursor, ExportCursor.job_id == Job.id)
        with self._store.look() as session:
            found = session.execute(query.where(Job.id == job_id, Job.deleted_at.is_(None))).one_or_none()
        if found is None:
            raise no_job(job_id)
        return self.shown(*found)

    def shown(self, job: Job, exported: ExportCursor | None = None) -> tuple[JobView, str]:
        """The same for a row at hand."""
        return job_view(job, exported, self._url, grows=self._grows), etag(job)

    def change(
        self, job_id: str, body: Any, if_match: str | None, seen: Seen | None, who: Caller
    ) -> tuple[JobView, str]:
        """Merge `workers.min`, `workers.max`, `priority` and `labels`; the reconciler tells the supervisor. The labels
        alone can be changed in any state.

        Raises:
            Forbidden: `who` may not ask for a priority above 0, which takes room from others.
            PreconditionFailed: somebody else changed the job since `if_match`.
            SpecInvalid, Unprocessable: the result would not be a job the cluster can run.
            Conflict: the job is ending or has ended, or its project's quota has no room for a `workers.min` that it
                would hold from now on.
        """
        _check_form(body)
        labels = body.get("labels", {})
        changes = {k: v for k, v in body.items() if k != "labels"}
        with self._store.write() as session:
            job = load(session, job_id)
            _unchanged(job, if_match)
            # With labels alone the job may be in any state. A patch of nothing at all is refused where others would be.
            if changes or "labels" not in body:
                self._merge(session, job, changes, seen, who)
            relabel(session, job, labels, at=self._now(), who=who.name)
            return self._view(session, job)

    def cancel(
        self, job_id: str, grace_s: float | None, who: str, if_match: str | None = None
    ) -> tuple[JobView, str]:
        """Decide that the job ends as cancelled. A job that is ending already is left as it is."""
        why = Why(code="cancelled", message=f"cancelled by {who}")
        with self._store.write() as session:
            job = load(session, job_id)
            _unchanged(job, if_match)
            if job.state.ended:
                raise Conflict(f"job {job_id} has already {_ended_word(job.state)}.", code="job_ended")
            if grace_s is not None:
                job.grace_s = grace_s
            begin_cancel(session, job, at=self._now(), who=who, why=why)
            return self._view(session, job)

    def pause(self, job_id: str, who: str, if_match: str | None = None) -> tuple[JobView, str]:
        """Decide that the job saves a checkpoint and releases its places. Asking again changes nothing.

        Raises:
            Conflict: it is ending or has ended.
        """
        why = Why(code="paused", message=f"paused by {who}", hint="`ringleader resume` continues it.")
        with self._store.write() as session:
            job = load(session, job_id)
            _unchanged(job, if_match)
            begin_pause(session, job, at=self._now(), who=who, why=why)
            return self._view(session, job)

    def resume(self, job_id: str, who: str, if_match: str | None = None) -> tuple[JobView, str]:
        """Queue a paused job for its next attempt. One that is waiting or at work is left as it is.

        Raises:
            Conflict: it is being paused, ending, or has ended.
        """
        with self._store.write() as session:
            job = load(session, job_id)
            _unchanged(job, if_match)
            # `move` raises where there is no such edge, with the states that can be reached.
            if job.state is State.STOPPING or job.state is State.PAUSED or job.state.ended:
                move(session, job, State.QUEUED, at=self._now(), who=who)
            return self._view(session, job)

    def delete(self, job_id: str, if_match: str | None = None) -> None:
        """Hide an ended job; the reconciler removes rows and files once the tracker has everything."""
        with self._store.write() as session:
            job = load(session, job_id)
            _unchanged(job, if_match)
            if not job.state.ended:
                raise Conflict(
                    f"job {job_id} is {job.state} and cannot be deleted yet.",
                    hint="Cancel the job first, and delete it once it has ended.",
                    code="job_alive",
                )
            job.deleted_at = self._now()

    def _merge(
        self, session: Session, job: Job, changes: dict[str, Any], seen: Seen | None, who: Caller
    ) -> None:
        """Change what decides where and when the job runs."""
        if job.state is State.STOPPING or job.state.ended:
            raise Conflict(
                f"job {job.id} is in state {job.state}, and only its labels can still be changed.",
                code="job_ended",
            )
        before, bounds = job.spec, changes.get("workers", {})
        merged = {**before, **changes, "workers": {**before["workers"], **bounds}}
        # As a stored one: settings that an earlier version let pass are not this change's fault.
        spec = JobSpec.parse(merged, stored=True)
        # Only a rise above what the job has: lowering a priority takes room from nobody.
        if spec.priority > max(0, _priority(before)):
            permit(who, Action.STEER, job.project)
        if bounds and seen is not None:
            placeable(spec, seen)
        if job.state.holds and bounds:
            self._within_quota(session, job, spec.workers)
        self._store_spec(session, job, spec, who)

    def _within_quota(self, session: Session, job: Job, asked: Workers) -> None:
        """Keep a change within the project's quota. A waiting job is held back by the scheduler; one at work has its
        floor at once, and grows at once."""
        left = max(0, quota_left(session, job, self._now()))
        if asked.min > max(left, job.spec["workers"]["min"]):
            raise Conflict(
                f"job {job.id} would hold {asked.min} workers, but the quota of project {job.project} allows it "
                f"{left}.",
                hint="Ask for fewer, wait until jobs of the project end or shrink, or ask an admin to raise the quota.",
                code="quota_used_up",
            )
        # Bounded by a grant: the scheduler raises it as the quota frees up, without another PATCH.
        if job.granted is None and asked.max > (most := max(left, allowed(job))):
            job.granted = most

    def _store_spec(self, session: Session, job: Job, spec: JobSpec, who: Caller) -> None:
        """Give the job its changed spec, and record what is new."""
        before, after = job.spec, spec.model_dump(mode="json")
        # A patch that changes nothing keeps the ETag, which others may hold.
        if after != before:
            job.spec = after
            job.priority = spec.priority
            job.version += 1
        if after["workers"] != before["workers"]:
            limits = {"min": spec.workers.min, "max": spec.workers.max}
            record(session, job, "workers.resized", self._now(), {"who": who.name, **limits})
        if spec.priority != (ranked := _priority(before)):
            data = {"who": who.name, "from": ranked, "priority": spec.priority}
            record(session, job, "priority.changed", self._now(), data)

    def _view(self, session: Session, job: Job) -> tuple[JobView, str]:
        return self.shown(job, session.get(ExportCursor, job.id))


def begin_cancel(session: Session, job: Job, *, at: datetime, who: str, why: Why) -> None:
    """Decide that a job that has not ended ends as cancelled. One that is ending already is left as it is."""
    # There is nothing to release first.
    if not job.state.holds:
        move(session, job, State.CANCELLED, at=at, who=who, why=why)
    elif job.target is State.PAUSED and job.state is State.STOPPING:
        retarget(session, job, State.CANCELLED, at=at, who=who, why=why)
    elif job.state is not State.STOPPING:
        move(session, job, State.STOPPING, at=at, who=who, why=why, target=State.CANCELLED)


def begin_pause(session: Session, job: Job, *, at: datetime, who: str, why: Why) -> None:
    """Decide that a job is paused. One that is, or is about to be, is left as it is.

    Raises:
        IllegalMove: it is ending or has ended.
    """
    on_its_way = job.state is State.STOPPING and job.target is State.PAUSED
    # Evicted, and about to queue itself again: from now on it stays paused instead.
    if on_its_way and job.preempted:
        stay_paused(session, job, at=at, who=who, why=why)
    elif job.state is State.QUEUED:
        move(session, job, State.PAUSED, at=at, who=who, why=why)
    elif job.state is not State.PAUSED and not on_its_way:
        move(session, job, State.STOPPING, at=at, who=who, why=why, target=State.PAUSED)


def _unchanged(job: Job, if_match: str | None) -> None:
    """Raise PreconditionFailed where the caller has seen another version of the job."""
    if if_match is None or {tag.strip() for tag in if_match.split(",")} & {"*", etag(job)}:
        return
    raise PreconditionFailed(
        f"job {job.id} has changed: If-Match is {if_match}, its ETag is now {etag(job)}."
    )


def _check_form(body: Any) -> None:
    """Refuse a PATCH of anything but worker bounds, priority and labels."""
    if not isinstance(body, dict) or any(
        not isinstance(body.get(k, {}), dict) for k in ("workers", "labels")
    ):
        raise Unprocessable(
            'the patch must have the form {"workers": {"min": …, "max": …}, "priority": …, "labels": {"key": …}}.',
            code="spec_invalid",
        )
    allowed = ("workers", "priority", "labels")
    wrong = [(f"/{k}", v, ", ".join(allowed)) for k, v in body.items() if k not in allowed]
    wrong += [("/priority", None, "a number")] if body.get("priority", 0) is None else []
    bounds: dict[str, Any] = body.get("workers", {})
    wrong += [(f"/workers/{k}", v, "min, max") for k, v in bounds.items() if k not in ("min", "max")]
    wrong += [
        (f"/workers/{k}", None, "a number") for k, v in bounds.items() if v is None and k in ("min", "max")
    ]
    if wrong:
        raise SpecInvalid(
            [
                {
                    "pointer": p,
                    "value": v,
                    "allowed": a,
                    "message": f"cannot be changed to {v!r}; allowed: {a}",
                }
                for p, v, a in wrong
            ]
        )


def _priority(stored: dict[str, Any]) -> int:
    priority: int = stored.get("priority", 0)  # there were none in the first version
    return priority


def _ended_word(state: State) -> str:
    return {"cancelled": "been cancelled"}.get(state.value, state.value)
