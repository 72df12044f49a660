"""Which job is meant: its id, a unique beginning of it, or its name."""

from ringleader.client import Client, Job
from ringleader.errors import ApiProblem, RingleaderError

ID_LENGTH = len("job_") + 26


class NoSuchJob(RingleaderError):
    """Nothing matches."""

    code = "job_not_found"


class AmbiguousJob(RingleaderError):
    """More than one job matches."""

    code = "job_ambiguous"


def find_job(client: Client, text: str) -> Job:
    """The one job that `text` means.

    Raises:
        NoSuchJob: none matches.
        AmbiguousJob: several do; the message lists them.
    """
    if text.startswith("job_") and len(text) >= ID_LENGTH:
        try:
            return client.job(text)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            raise _missing(text) from None
    found = [
        job for job in client.jobs() if job.id == text or job.id.startswith(text) or job.view.name == text
    ]
    if not found:
        raise _missing(text)
    exact = [job for job in found if job.id == text]
    if len(found) > 1 and not exact:
        listed = ", ".join(f"{job.id} ({job.view.name}, {job.state})" for job in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise AmbiguousJob(f"{text!r} means {len(found)} jobs: {listed}{more}.", hint="Give more of the id.")
    return exact[0] if exact else found[0]


def _missing(text: str) -> NoSuchJob:
    return NoSuchJob(
        f"no job has the id, beginning of an id or name {text!r}.", hint="`ringleader jobs` lists them."
    )
