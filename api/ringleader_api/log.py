"""Structured log lines: an event name and its fields, one JSON object a line, never a secret."""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

LOG_FIELDS: ContextVar[dict[str, str] | None] = ContextVar("log_fields", default=None)
"""The fields carried by every log line of the current request: its number, and the job it concerns."""


def about(**fields: str) -> None:
    """Add fields to the log lines of the current request, once it is known what it concerns."""
    log_fields = LOG_FIELDS.get()
    if log_fields is not None:
        log_fields.update(fields)


class Log:
    """A named logger whose calls are an event and keyword fields."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, **fields: object) -> None:
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: object) -> None:
        self._logger.warning(event, extra={"fields": fields})

    def exception(self, event: str, **fields: object) -> None:
        """Log with the traceback of the exception being handled."""
        self._logger.exception(event, extra={"fields": fields})


class JsonLines(logging.Formatter):
    """A record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **(LOG_FIELDS.get() or {}),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # `default=str`: a field that is not JSON must not cost the line, least of all the traceback of a failure.
        return json.dumps(line, default=str)


def to_stderr() -> None:
    """Send everything from `info` up to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # httpx logs every request at info, alembic every migration step: neither is an event of ours.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
