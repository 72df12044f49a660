"""Requests to the REST API: one credential, deadlines, retries of what may be repeated, problems as errors."""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from ringleader.client.profile import Profile
from ringleader.errors import ApiProblem, ApiUnreachable, RingleaderError

BASE = "/api/v1"
DEADLINE_S = 30.0  # for one answer
PATIENCE_S = 30.0  # for repeating what may be repeated
STREAM_SILENCE_S = 5.0  # a quiet stream is reopened, which also notices that the job has ended

_BUSY = frozenset({429, 502, 503, 504})
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "PATCH"})  # PATCH is a merge-patch: twice is once
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class NotSendable(RingleaderError, ValueError):
    """A request holds what JSON in UTF-8 cannot carry."""

    code = "not_sendable"


class Api:
    """One control plane. Safe to share between threads."""

    def __init__(
        self,
        profile: Profile,
        *,
        transport: httpx.BaseTransport | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.url = profile.url
        self.patience_s = patience_s
        self._http = httpx.Client(
            base_url=profile.url,
            headers={"Authorization": f"Bearer {profile.token}"} if profile.token else {},
            timeout=httpx.Timeout(DEADLINE_S, connect=5.0),
            transport=transport,
            trust_env=not _is_local(profile.url),  # a proxy in the environment cannot reach our loopback
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        return self.request("GET", path, params=params).json()

    def pages(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """All pages of a list, one after the other: each as `get` returns it."""
        cursor = None
        while True:
            page = self.get(path, {**(params or {}), "cursor": cursor})
            yield page
            if (cursor := page.get("next_cursor")) is None:
                return

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> httpx.Response:
        """Send until answered, or until the deadline for what may be repeated.

        Args:
            repeatable: whether sending twice is the same as once; by default decided by the method.

        Raises:
            ApiProblem: the API refused.
            ApiUnreachable: no answer before the deadline.
            NotSendable: `json` holds nan, infinity or half a character.
        """
        may_repeat = method in _REPEATABLE if repeatable is None else repeatable
        try:
            request = self._http.build_request(
                method,
                BASE + path,
                json=json,
                content=content,
                params=_given(params),
                headers=dict(headers or {}),
            )
        except ValueError as error:
            raise NotSendable(
                f"{method} {path} cannot be sent ({error}).",
                hint="Give finite numbers, and text that can be encoded as UTF-8.",
            ) from None
        return self._until_answered(lambda: self._http.send(request), may_repeat)

    def body(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        """The bytes of an answer, as they arrive.

        Raises:
            ApiProblem: the API refused.
            ApiUnreachable: the connection broke before the end.
        """
        try:
            with self.stream(path, params=params, silence_s=DEADLINE_S) as response:
                yield from response.iter_bytes()
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        silence_s: float = STREAM_SILENCE_S,
    ) -> Iterator[httpx.Response]:
        """An answer whose body is read as it arrives; a silent connection ends in httpx.ReadTimeout."""
        request = self._http.build_request(
            "GET",
            BASE + path,
            params=_given(params),
            headers=dict(headers or {}),
            timeout=httpx.Timeout(silence_s, connect=5.0),
        )
        response = self._http.send(request, stream=True)
        try:
            if response.is_error:
                # A streamed answer has no body until it is read.
                response.read()
                raise _problem(response)
            yield response
        finally:
            response.close()

    def _until_answered(self, send: Callable[[], httpx.Response], may_repeat: bool) -> httpx.Response:
        give_up_at = time.monotonic() + self.patience_s
        for pause_s in pauses():
            # Known before the try: behind the last one there is no pause that would end too late.
            last = time.monotonic() + pause_s >= give_up_at
            try:
                response = send()
            except httpx.TransportError as error:
                # Without a connection nothing was sent: then anything may be tried again.
                not_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                if last or not (may_repeat or not_sent):
                    raise self._unreachable(error) from None
            else:
                if response.is_success:
                    return response
                if last or not may_repeat or response.status_code not in _BUSY:
                    raise _problem(response)
            time.sleep(pause_s)
        raise AssertionError  # pauses never end

    def _unreachable(self, error: Exception) -> ApiUnreachable:
        return ApiUnreachable(
            f"the control plane at {self.url} does not answer ({type(error).__name__}: {error}).",
            hint="Check it with `ringleader status`, start it with `ringleader up`. Running jobs continue without it.",
        )


def pauses() -> Iterator[float]:
    """Seconds between tries, ever longer."""
    pause_s = _FIRST_PAUSE_S
    while True:
        # With jitter, so that clients do not all try at the same moments.
        yield pause_s * (0.5 + random.random() / 2)  # noqa: S311 (jitter)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def over_at(timeout: float | None) -> float | None:
    """The end of a wait of `timeout` seconds from now, on the monotonic clock; None: never. Raises ValueError."""
    if timeout is None:
        return None
    # `nan` is neither greater nor smaller than the time: such a wait would have no end.
    if not 0 <= timeout < math.inf:
        raise ValueError(
            f"timeout is {timeout!r}: expected a number of seconds of at least 0, or None to wait until the end."
        )
    return time.monotonic() + timeout


def _problem(response: httpx.Response) -> ApiProblem:
    """The error body (RFC 9457) as an exception; anything else by its status alone."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {}
    code = str(body.get("code") or f"http_{response.status_code}")
    message = str(body.get("detail") or body.get("title") or f"the API answered {response.status_code}")
    hint = str(body.get("hint") or "")
    if response.status_code == 401 and not hint:
        hint = "Set RINGLEADER_TOKEN, or run `ringleader login URL`."
    errors = body.get("errors")
    return ApiProblem(
        response.status_code,
        code,
        message,
        hint=hint,
        errors=errors if isinstance(errors, list) else [],
        headers=response.headers,
    )


def _given(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {k: v for k, v in params.items() if v is not None} if params else None


def _is_local(url: str) -> bool:
    return httpx.URL(url).host in {"127.0.0.1", "localhost", "::1"}
