"""A job's checkpoints, as its supervisors reported them, and their weights."""

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from ringleader.checkpoint.manifest import CheckpointUnreadable, order_of
from ringleader.errors import RingleaderError
from ringleader.spec.job import JOB_ID
from ringleader.wire.states import Reason, State
from ringleader.wire.views import View
from ringleader_api.log import Log
from ringleader_api.problems import Conflict, NotFound, TooMany
from ringleader_api.services.records.artifacts import weights_file
from ringleader_api.services.users.access import load
from ringleader_api.services.users.accounts import OWN, Accounts
from ringleader_api.store import Store
from ringleader_api.store.tables import Event, Job

if TYPE_CHECKING:
    from ringleader.checkpoint.export import WeightsStream

log = Log("ringleader.checkpoints")
SAVED = "checkpoint.saved"
NEWEST = "newest"
AT_ONCE = 4
AGAIN_S = 10.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Checkpoint(View):
    """A checkpoint that exists: `step` global steps are in it."""

    step: int
    uri: str
    size_bytes: int
    attempt: int
    at: datetime


class _Saved(BaseModel):
    """The data of the event `checkpoint.saved`."""

    step: int
    uri: str
    size_bytes: int
    removed: list[str]


class NoneLeft(RingleaderError):
    """The job to begin with has no checkpoint left."""

    code = Reason.CHECKPOINT_UNREADABLE


class CheckpointPage(View):
    """A job's checkpoints, newest first."""

    items: list[Checkpoint]


@dataclass(frozen=True, slots=True)
class Export:
    """A weights file on its way out. Whoever began it calls `end`, once."""

    _weights: "WeightsStream"
    _let_go: Callable[[], None]

    @property
    def size_bytes(self) -> int:
        return self._weights.size_bytes

    def chunks(self) -> Iterator[bytes]:
        """The file, in pieces. Raises CheckpointUnreadable: it was damaged meanwhile."""
        return self._weights.chunks()

    def end(self) -> None:
        try:
            self._weights.close()
        finally:
            self._let_go()


class Exports:
    """Exports of weights as safetensors files, a few at once: each is checked first, and holds its files open."""

    def __init__(self, store: Store, at_once: int = AT_ONCE, accounts: Accounts = OWN) -> None:
        self._store = store
        self._accounts = accounts
        self._at_once = at_once
        self._free = threading.BoundedSemaphore(at_once)

    def begin(self, job_id: str, name: str) -> Export:
        """Begin the export of a checkpoint's weights, none of which are read into memory.

        Raises:
            NotFound: the job has no such checkpoint.
            Conflict: it is there, and cannot be read, or lies where a job under another account writes: this process
                goes to no place that such a job has named.
            TooMany: as many as may are being exported.
        """
        from ringleader.checkpoint.export import (
            weights_of,
        )  # only now: the file systems' library takes its time

        uri = self._uri(job_id, name)
        # Root must follow no path that a job under another account has named.
        if self._accounts.table:
            raise Conflict(
                f"{uri} belongs to the machine account that the job runs under and cannot be exported through the API.",
                hint="Read the files under that account, or start another job of the same user from them "
                "(`init_from`).",
                code="not_exported",
            )
        if not self._free.acquire(blocking=False):
            raise TooMany(
                AGAIN_S, f"{self._at_once} checkpoints are being exported already, which is the limit."
            )
        # From here on the slot is the export's: each way out but the first has to give it back.
        try:
            return Export(weights_of(uri), self._free.release)
        except CheckpointUnreadable as error:
            self._free.release()
            raise Conflict(error.message, hint=error.hint, code=error.code) from None
        except BaseException:
            self._free.release()
            raise

    def _uri(self, job_id: str, name: str) -> str:
        found = {item.uri.rpartition("/")[2]: item.uri for item in checkpoints(self._store, job_id).items}
        if not found:
            raise NotFound(f"job {job_id} has no checkpoint.")
        uri = next(iter(found.values())) if name == NEWEST else found.get(name)
        if uri is None:
            raise NotFound(
                f"job {job_id} has no checkpoint {name!r}.", hint=f"Its checkpoints: {', '.join(found)}."
            )
        return uri


def checkpoints(store: Store, job_id: str) -> CheckpointPage:
    """The checkpoints that were written and not removed since."""
    with store.read() as session:
        load(session, job_id)
        return CheckpointPage(items=checkpoints_of(session, job_id))


def beginning_of(
    session: Session, init_from: str | None, home: Path, *, optimizers: bool = False
) -> str | None:
    """The weights that a job begins with whose first attempt starts now: of a job that has succeeded the final ones, of
    others the newest checkpoint.

    Args:
        optimizers: the job begins with the optimizers' states, too, which are in checkpoints alone.

    Raises:
        NoneLeft: the source was deleted.
    """
    if init_from is None or not JOB_ID.fullmatch(init_from):
        return init_from
    source = session.get(Job, init_from)
    ended = source is not None and leaves_weights(source)
    if not optimizers and ended and (path := weights_file(home, init_from)):
        # A "?" in a plain path would be read as the query of a URI.
        return str(path) if "?" not in str(path) else path.as_uri()
    # Only now: a checkpoint that was newest at the submission may be gone, for its source keeps few.
    found = checkpoints_of(session, init_from) if source is not None and source.deleted_at is None else []
    if optimizers and ended and not has_final(found):
        raise NoneLeft(
            f"{init_from}, with whose optimizers' states this job was to begin, has no checkpoint of its end.",
            hint="Submit again without `init_optimizers`, which begins with its final weights, or with a checkpoint.",
        )
    if not found:
        raise NoneLeft(
            f"the job {init_from}, whose weights this job was to start from, no longer has weights or a checkpoint.",
            hint="Submit again with an `init_from` that names an existing job or checkpoint.",
        )
    return found[0].uri


def has_final(found: list[Checkpoint]) -> bool:
    """Whether the newest of them, which is the first, is of the job's end."""
    order = order_of(found[0].uri.rpartition("/")[2]) if found else None
    return order is not None and order[-1]


def leaves_weights(job: Job) -> bool:
    """Whether the job has succeeded, and its final weights exist."""
    told = job.result or {}
    return job.state is State.SUCCEEDED and bool(told.get("weights_uri")) and job.deleted_at is None


def checkpoints_of(session: Session, job_id: str) -> list[Checkpoint]:
    """The same, newest first; only those in the job's own folder."""
    job = session.get(Job, job_id)
    if job is None:
        return []
    query = select(Event).where(Event.job_id == job_id, Event.type == SAVED).order_by(Event.seq)
    found: dict[str, Checkpoint] = {}
    for event in session.scalars(query):
        try:
            saved = _Saved.model_validate(event.data)
        except ValidationError:  # nothing can begin with what is not told whole
            continue
        # The event is the job's word, and whoever reads a checkpoint goes where it says.
        if not _in_own_folder(job, saved.uri):
            log.warning("checkpoint.not_believed", job=job_id, uri=saved.uri[:200])
            continue
        for name in saved.removed:
            found.pop(name, None)
        found[saved.uri.rpartition("/")[2]] = Checkpoint(
            step=saved.step,
            uri=saved.uri,
            size_bytes=saved.size_bytes,
            attempt=event.attempt,
            at=event.at,
        )
    return list(reversed(found.values()))


def _in_own_folder(job: Job, uri: str) -> bool:
    """Whether the URI lies in the job's own checkpoint folder."""
    folder, _, name = uri.rpartition("/")
    if not _NAME.fullmatch(name):
        return False
    given = job.spec.get("checkpoint", {}).get("uri")
    if given:
        return folder == f"{given.rstrip('/')}/{job.id}"
    # It is in the home of the process that wrote it, whose path may be spelt otherwise.
    return folder.startswith("/") and folder.endswith(f"/checkpoints/{job.id}")
