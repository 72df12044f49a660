"""Rows as the API shows them."""

from urllib.parse import quote

from ringleader.wire.views import Failures, JobView, Progress, Result, Tracking, Urls, Why
from ringleader_api.services.jobs.surplus_told import surplus_told
from ringleader_api.services.records.totals import totals
from ringleader_api.store.failures import failures_spent
from ringleader_api.store.tables import ExportCursor, Job


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


def _tracking(cursor: ExportCursor | None, url: str) -> Tracking:
    if cursor is None or not cursor.run_id:
        return Tracking()
    page = f"{url}/mlflow/#/experiments/{quote(cursor.experiment_id)}/runs/{quote(cursor.run_id)}"
    return Tracking(run_id=cursor.run_id, url=page)
