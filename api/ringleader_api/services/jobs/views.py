"""Rows as the API shows them."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ringleader.spec.workers import Autoscale, Workers
from ringleader.wire.views import Failures, JobView, Progress, Result, Tracking, Urls, View, Why, WorkerView
from ringleader_api.services.records.totals import totals
from ringleader_api.services.users.access import load
from ringleader_api.store import Store
from ringleader_api.store.spent import failures_spent
from ringleader_api.store.tables import ExportCursor, Job

NO_EFFECT = "autoscale: {{surplus: true}} has no effect: workers.min and workers.max are both {}"


class WorkerPage(View):
    """Workers in rank order, servers behind them."""

    items: list[WorkerView]


def job_view(job: Job, cursor: ExportCursor | None, url: str, *, grows: bool) -> JobView:
    """A job as `GET /jobs/{id}` shows it; `url` is where users reach the API, `grows`: the cluster does."""
    tracking = _tracking(cursor, url)
    return JobView(
        id=job.id,
        name=job.name,
        project=job.project,
        labels=job.labels,
        owner=job.owner,
        spec=job.spec,
        state=job.state,
        pending_reason=Why(**job.pending_reason) if job.pending_reason else None,
        reason=Why(**job.reason) if job.reason else None,
        attempt=job.attempt,
        generation=job.generation,
        world_size=job.world_size,
        progress=Progress(step=job.step, total_steps=job.total_steps, epoch=job.epoch),
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        failures=Failures(spent=failures_spent(job), max=job.spec["max_failures"]),
        totals=totals(job),
        surplus=surplus_told(job.spec, grows=grows),
        result=Result(**{**job.result, "run_id": tracking.run_id}) if job.result else None,
        tracking=tracking,
        urls=Urls(self=f"{url}/api/v1/jobs/{job.id}", page=f"{url}/jobs/{job.id}"),
    )


def etag(job: Job) -> str:
    """The entity tag: it changes with the state and with what a PATCH can change, not with progress."""
    return f'"{job.version}"'


def surplus_told(spec: Mapping[str, Any], *, grows: bool) -> str:
    """The source of a job's workers above `workers.min`, in words; empty where there are no such workers, and none are
    asked for.

    Args:
        spec: the stored job file, of whatever version.
        grows: whether the cluster does.
    """
    workers = spec.get("workers", {})  # the first version stored what its user had written
    if not {"min", "max"} <= workers.keys():
        return ""
    workers_min, workers_max = workers["min"], workers["max"]
    autoscale = Autoscale.model_construct(surplus=spec.get("autoscale", {}).get("surplus", False))
    if workers_min == workers_max:
        return NO_EFFECT.format(workers_min) if autoscale.surplus else ""
    return autoscale.told(Workers.model_construct(min=workers_min, max=workers_max), grows=grows)


def workers(store: Store, job_id: str) -> WorkerPage:
    """The living workers and servers, as the supervisor last reported them."""
    with store.read() as session:
        rows = load(session, job_id).workers
    return WorkerPage(items=[WorkerView.model_validate(row) for row in rows])


def _tracking(cursor: ExportCursor | None, url: str) -> Tracking:
    if cursor is None or not cursor.run_id:
        return Tracking()
    page = f"{url}/mlflow/#/experiments/{quote(cursor.experiment_id)}/runs/{quote(cursor.run_id)}"
    return Tracking(run_id=cursor.run_id, url=page)
