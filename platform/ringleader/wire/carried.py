"""Texts and points in time as the API takes them: what can be stored, and read again by everybody."""

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BeforeValidator

from ringleader.text import is_utf8


def _spelt_out(given: object) -> object:
    # Pydantic would take a number, or a text of digits, for seconds since 1970.
    if not isinstance(given, datetime) and not (isinstance(given, str) and _DATE_AND_TIME.match(given)):
        raise ValueError(
            f"{given!r} is not a point in time; allowed: a date and a time, as in 2026-01-31T12:00:00Z"
        )
    return given


_DATE_AND_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _of_utc(given: datetime) -> datetime:
    try:
        return given.astimezone(UTC)
    except OverflowError:
        # In the first and last hours of the calendar another zone's time may have none in UTC.
        raise ValueError(f"{given.isoformat()} does not exist in UTC") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_spelt_out), AfterValidator(_of_utc)]
"""A date and a time with its zone, as UTC: seconds since 1970, and a time without a zone, are refused."""


def _carried(given: str) -> str:
    if not is_utf8(given):
        raise ValueError(f"{given!r} has a lone surrogate; allowed: text that can be encoded as UTF-8")
    return given


Text = Annotated[str, AfterValidator(_carried)]
"""A text that can be encoded as UTF-8."""
