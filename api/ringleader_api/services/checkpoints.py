"""The checkpoints of a job, as its supervisors told of them."""

from datetime import datetime

from sqlalchemy import select

from ringleader.checkpoint.manifest import CheckpointUnreadable
from ringleader.wire.views import View
from ringleader_api.problems import Conflict, NotFound
from ringleader_api.services.access import load
from ringleader_api.store import Store
from ringleader_api.store.tables import Event

SAVED = "checkpoint.saved"
NEWEST = "newest"


class Checkpoint(View):
    """One that exists: `step` global steps are in it."""

    step: int
    uri: str
    size_bytes: int
    attempt: int
    at: datetime


class CheckpointPage(View):
    """The newest first."""

    items: list[Checkpoint]


def exported(store: Store, job_id: str, name: str) -> bytes:
    """The weights of one of them as a safetensors file.

    Raises:
        NotFound: the job has no such checkpoint.
        Conflict: it is there, and cannot be read.
    """
    from ringleader.checkpoint.export import weights_of  # only now: the file systems' library takes its time

    found = {item.uri.rpartition("/")[2]: item.uri for item in checkpoints(store, job_id).items}
    if not found:
        raise NotFound(f"job {job_id} has no checkpoint.")
    uri = next(iter(found.values())) if name == NEWEST else found.get(name)
    if uri is None:
        raise NotFound(f"job {job_id} has no checkpoint {name!r}.", hint=f"It has {', '.join(found)}.")
    try:
        return weights_of(uri)
    except CheckpointUnreadable as error:
        raise Conflict(error.message, hint=error.hint, code=error.code) from None


def checkpoints(store: Store, job_id: str) -> CheckpointPage:
    """Those that were written and not removed since."""
    query = select(Event).where(Event.job_id == job_id, Event.type == SAVED).order_by(Event.seq)
    found: dict[str, Checkpoint] = {}
    with store.read() as session:
        load(session, job_id)
        for event in session.scalars(query):
            data = event.data
            for name in data["removed"]:
                found.pop(name, None)
            found[data["uri"].rpartition("/")[2]] = Checkpoint(
                step=data["step"],
                uri=data["uri"],
                size_bytes=data["size_bytes"],
                attempt=event.attempt,
                at=event.at,
            )
    return CheckpointPage(items=list(reversed(found.values())))
