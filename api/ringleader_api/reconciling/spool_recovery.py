"""The records that a dead supervisor wrote down and did not post, taken in while its attempt is still the job's."""

import sqlite3
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ringleader.wire.ingest import Ingest, Record
from ringleader_api.backend import Backend
from ringleader_api.log import Log
from ringleader_api.problems import NotFound, StaleAttempt
from ringleader_api.services.records.ingest import Intake

log = Log("ringleader.inheriting")
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


class SpoolRecovery:
    """Reads a dead supervisor's spool. The next attempt begins with a checkpoint and does not repeat the steps before
    it, so records of theirs that were not posted would be missing for ever. Used by the reconciler only."""

    def __init__(self, backend: Backend, intake: Intake, home: Path) -> None:
        self._backend = backend
        self._intake = intake
        self._home = home

    def take(self, job_id: str, attempt: int) -> None:
        """Take in the records of a supervisor that is dead and cannot come back. Records that cannot be read are lost;
        the job goes on without them."""
        try:
            for told in self._backend.unposted(self._home, job_id, attempt):
                records = [record for one in told if (record := _read(one)) is not None]
                # The same way as a post: positions in the database sort out what was posted before the death.
                self._intake.take(job_id, Ingest(attempt=attempt, records=records))
                log.info("spool.inherited", job=job_id, attempt=attempt, records=len(records))
        except (NotFound, StaleAttempt):  # deleted, or over by what it had written down
            return
        except (OSError, sqlite3.Error):
            log.exception("spool.unreadable", job=job_id, attempt=attempt)


def _read(told: dict[str, Any]) -> Record | None:
    """The record; None where it is not one."""
    try:
        return _RECORD.validate_python(told)
    except ValidationError as error:
        # Left out: the supervisor's post would have been refused, too.
        log.warning("spool.record_refused", why=str(error)[:1000])
        return None
