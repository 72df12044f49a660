"""Every refusal of the API: an error with an HTTP status, and its application/problem+json body."""

import json
import math
from collections.abc import Sequence
from http import HTTPStatus
from itertools import islice
from typing import Any, ClassVar

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ringleader.errors import FINDINGS_TOLD, RingleaderError
from ringleader.text import utf8_json
from ringleader.wire.views import Finding, Problem
from ringleader_api.hints import HINTS

MEDIA_TYPE = "application/problem+json"
TOLD_DEEP, TOLD_PARTS, TOLD_CHARACTERS = 8, 100, 4_000
"""The part of a wrong value that is returned to its sender: levels, elements, and characters of a string."""


class Refused(RingleaderError):
    """A request that is not carried out."""

    status: ClassVar[int] = 400
    code = "bad_request"

    def __init__(
        self, message: str, *, hint: str = "", code: str = "", errors: Sequence[dict[str, Any]] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code or type(self).code
        self.errors = list(errors)
        self.headers: dict[str, str] = {}


class Unauthorized(Refused):
    status = 401
    code = "unauthorized"

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message, hint=hint, code=code)
        self.headers = {"WWW-Authenticate": 'Bearer realm="ringleader"'}


class Forbidden(Refused):
    status = 403
    code = "forbidden"


class NotFound(Refused):
    status = 404
    code = "not_found"


class Conflict(Refused):
    status = 409
    code = "conflict"


class StaleAttempt(Conflict):
    """A supervisor of an earlier attempt has posted; it must stop itself."""

    code = "stale_attempt"


class PreconditionFailed(Refused):
    status = 412
    code = "precondition_failed"


class UnsupportedMediaType(Refused):
    status = 415
    code = "unsupported_media_type"


class Unprocessable(Refused):
    status = 422
    code = "unprocessable"


def wrong_key(
    pointer: str,
    value: Any,
    allowed: str,
    message: str,
    *,
    code: str = "spec_invalid",
    hint: str = "",
    where: str = "the job file",
) -> Unprocessable:
    """An error of a job file, or of a part of one, that only the server can detect. `message` continues the sentence
    that begins with the value."""
    shown = _cut(value) if isinstance(value, str) else value
    whole = f"{shown!r} {message}; allowed: {allowed}"
    finding = {"pointer": pointer, "value": value, "allowed": allowed, "message": whole}
    return Unprocessable(f"{where} is refused: {pointer}: {whole}", code=code, hint=hint, errors=[finding])


class TooMany(Refused):
    """A client sends requests faster, or holds more at once, than it may."""

    status = 429
    code = "too_many_requests"

    def __init__(self, wait_s: float, message: str = "too many requests.") -> None:
        wait = max(1, math.ceil(wait_s))
        super().__init__(message, hint=f"Try again in {wait} s.")
        self.headers = {"Retry-After": str(wait)}


class BadGateway(Refused):
    status = 502
    code = "bad_gateway"


class TooSlow(HTTPException):
    """A request body that does not come; the connection is closed, because the rest of it is not read."""

    def __init__(self, message: str) -> None:
        super().__init__(408, message, {"Connection": "close"})


class TooLarge(HTTPException):
    """A body beyond its limit; an HTTPException so that body parsing lets it through."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(413, f"the request body is larger than {limit_bytes} bytes")


def problem(
    status: int,
    detail: str,
    *,
    code: str = "",
    hint: str = "",
    errors: Sequence[dict[str, Any]] = (),
    request_id: str = "",
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """The one error body of this API. Whatever a request held, the body can be encoded and is small: it is built on the
    event loop, where all other requests wait."""
    title = HTTPStatus(status).phrase
    code = code or _CODES.get(status) or title.lower().replace(" ", "_")
    told = _sendable(
        {
            "detail": _cut(detail, 4 * TOLD_CHARACTERS),
            "hint": hint or HINTS.get(code, ""),
            "errors": [_Telling().finding(found) for found in errors[:FINDINGS_TOLD]],
        }
    )
    body = Problem(
        title=title,
        status=status,
        detail=told["detail"],
        code=code,
        hint=told["hint"],
        errors=[Finding(**e) for e in told["errors"]],
        request_id=request_id,
    )
    return JSONResponse(body.model_dump(mode="json"), status, headers=headers, media_type=MEDIA_TYPE)


_CODES = {413: "too_large", 416: "bad_range"}
"""Codes of statuses whose phrase Python has changed: a code must stay the same."""


class _Telling:
    """The part of a finding that is returned: no deeper than any JSON writer can write, and no longer than a reader can
    use; the sender knows what it sent."""

    def __init__(self) -> None:
        # One budget for the whole value: bounds per level would multiply.
        self._left = TOLD_PARTS

    def finding(self, found: dict[str, Any]) -> dict[str, Any]:
        words = {key: _cut(told) if isinstance(told, str) else told for key, told in found.items()}
        return {**words, "value": self._part(found.get("value"), TOLD_DEEP)}

    def _part(self, value: Any, deep: int) -> Any:
        self._left -= 1
        if isinstance(value, str):
            return _cut(value)
        if not isinstance(value, (dict, list)):
            return value
        if not deep or self._left <= 0:
            return "…"
        # No more than the budget is even looked at: the value may have millions of parts.
        within = islice(value.items() if isinstance(value, dict) else enumerate(value), self._left)
        told = {key: self._part(part, deep - 1) for key, part in within if self._left > 0}
        rest = len(value) - len(told)
        if isinstance(value, list):
            return [*told.values(), *([f"… and {rest:,} more"] if rest else [])]
        return {_cut(str(key)): part for key, part in told.items()} | (
            {"…": f"{rest:,} more"} if rest else {}
        )


def _cut(text: str, most: int = TOLD_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def _sendable(told: dict[str, Any]) -> Any:
    """The body with lone surrogates escaped and NaN and infinities as words."""
    # A request may hold both, and its values are told back.
    return json.loads(utf8_json(told, allow_nan=True), parse_constant=str)
