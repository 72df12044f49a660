"""Labels of a stored job: changed in any state, also once it has ended."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert
from sqlalchemy.orm import Session

from ringleader.spec import JobSpec
from ringleader_api.problems import Unprocessable
from ringleader_api.store import record
from ringleader_api.store.listed import LABEL, attributes_of
from ringleader_api.store.tables import Job, JobAttribute

MOST_LABELS = 1000
"""The most labels that changes can bring a job to."""


def relabel(session: Session, job: Job, change: Mapping[str, Any], *, at: datetime, who: str) -> None:
    """Merge labels into those of the job; None removes one. What lists find the job by follows.

    Raises:
        SpecInvalid: a key or a value is none of a label.
        Unprocessable: the job would have more than MOST_LABELS.
    """
    given = {key: value for key, value in change.items() if value is not None}
    # By the job file's own rules for labels; the rest is only there because a job file needs it.
    checked = JobSpec.parse({"name": "x", "entrypoint": "x:x", "labels": given}).labels
    before: dict[str, str] = job.labels
    labels = {key: value for key, value in (before | checked).items() if key not in change or key in given}
    if labels == before:  # a patch that changes nothing keeps the ETag, which others may hold
        return
    # A job that was submitted with more may still change or remove them.
    if len(labels) > max(MOST_LABELS, len(before)):
        raise Unprocessable(
            f"job {job.id} would have {len(labels)} labels, and can have {MOST_LABELS}.",
            hint="Remove some in the same request: their value is null.",
            code="too_many_labels",
        )
    job.labels, job.spec = labels, {**job.spec, "labels": labels}
    job.version += 1
    mine = (JobAttribute.kind == LABEL, JobAttribute.job_id == job.id)
    session.execute(delete(JobAttribute).where(*mine))
    if labels:
        session.execute(insert(JobAttribute), attributes_of(job.id, labels, {}))
    put = {key: value for key, value in labels.items() if before.get(key) != value}
    removed = sorted(before.keys() - labels.keys())
    record(session, job, "labels.changed", at, {"who": who, "set": put, "removed": removed})
