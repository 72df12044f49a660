"""Looking up a job by its id, its name, or a unique beginning of its id."""

from ringleader.cli.output import echo
from ringleader.client import Client, Job
from ringleader.errors import ApiProblem, RingleaderError

ID_LENGTH = len("job_") + 26


class NoSuchJob(RingleaderError):
    """No job matches."""

    code = "job_not_found"


class AmbiguousJob(RingleaderError):
    """Several ids begin with this text."""

    code = "job_ambiguous"


def find_job(client: Client, text: str) -> Job:
    """Find the one job that `text` means: the newest where several have that name, with a note on standard error.

    Raises:
        NoSuchJob: none matches.
        AmbiguousJob: several ids begin with it; the message lists them.
    """
    text = text.rstrip("…")  # copied from a table that had to cut it
    # A whole id: one request, where a prefix takes a list of all jobs.
    if text.startswith("job_") and len(text) >= ID_LENGTH:
        try:
            return client.job(text)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            raise _missing(text) from None
    if named := list(client.jobs(name=text)):
        if len(named) > 1:
            newest = f"{named[0].id} ({named[0].state})"
            echo(f"{len(named)} jobs are named {text!r}; using the newest, {newest}.", err=True)
        return named[0]  # the API lists the newest first
    found = [job for job in client.jobs() if job.id.startswith(text)]
    if not found:
        raise _missing(text)
    if len(found) > 1:
        listed = ", ".join(f"{job.id} ({job.view.name}, {job.state})" for job in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise AmbiguousJob(
            f"{text!r} matches {len(found)} jobs: {listed}{more}.", hint="Give a longer prefix of the id."
        )
    return found[0]


def _missing(text: str) -> NoSuchJob:
    return NoSuchJob(
        f"no job has the id, id prefix or name {text!r}.", hint="List the jobs with `ringleader jobs`."
    )
