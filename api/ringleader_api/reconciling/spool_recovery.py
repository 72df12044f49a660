"""What a supervisor that is gone for good has written down and not posted, taken in while its attempt is the job's."""

import sqlite3
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ringleader.wire.ingest import Ingest, Record
from ringleader_api.backend import Backend
from ringleader_api.log import Log
from ringleader_api.problems import NotFound, StaleAttempt
from ringleader_api.services.ingest import Intake

log = Log("ringleader.inheriting")
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


class SpoolRecovery:
    """Called by the reconciler only. The next attempt begins with a checkpoint, and tells nothing of the steps before
    it: what was not posted of them would be missing for ever."""

    def __init__(self, backend: Backend, intake: Intake, home: Path) -> None:
        self._backend = backend
        self._intake = intake
        self._home = home

    def take(self, job_id: str, attempt: int) -> None:
        """Of a supervisor that is dead, and cannot come back. What cannot be read is lost: the job goes on without."""
        try:
            for told in self._backend.unposted(self._home, job_id, attempt):
                records = [record for one in told if (record := _read(one)) is not None]
                self._intake.take(job_id, Ingest(attempt=attempt, records=records))
                log.info("spool.inherited", job=job_id, attempt=attempt, records=len(records))
        except (NotFound, StaleAttempt):  # deleted, or over by what it had written down
            return
        except (OSError, sqlite3.Error):
            log.exception("spool.unreadable", job=job_id, attempt=attempt)


def _read(told: dict[str, Any]) -> Record | None:
    """None where it is none: the supervisor would have been refused."""
    try:
        return _RECORD.validate_python(told)
    except ValidationError as error:
        log.warning("spool.record_refused", why=str(error)[:1000])
        return None
