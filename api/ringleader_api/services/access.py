"""Finding a job: by id, not deleted, or a 404."""

from sqlalchemy.orm import Session

from ringleader_api.problems import NotFound
from ringleader_api.store.tables import Job


def load(session: Session, job_id: str) -> Job:
    """The job's row; inside a write transaction it is ours until the commit.

    Raises:
        NotFound: there is no such job, or it was deleted.
    """
    job = session.get(Job, job_id, with_for_update=True)
    if job is None or job.deleted_at is not None:
        raise NotFound(f"there is no job {job_id!r}.", hint="List the jobs with GET /api/v1/jobs.")
    return job
