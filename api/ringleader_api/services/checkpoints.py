"""The checkpoints of a job, as its supervisors told of them."""

from datetime import datetime

from sqlalchemy import select

from ringleader.wire.views import View
from ringleader_api.services.access import load
from ringleader_api.store import Store
from ringleader_api.store.tables import Event

SAVED = "checkpoint.saved"


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
