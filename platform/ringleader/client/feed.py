"""A numbered feed (events, logs) followed to its end: pages to catch up, then server-sent events, resumed by seq."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from ringleader.client.http import Api
from ringleader.errors import ApiProblem, ApiUnreachable

PAGE = 1000  # the most that the API gives at once
PATIENCE_S = 120.0

_CHECK_END_EVERY_S = 2.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


def pages(api: Api, path: str, after: int = 0) -> Iterator[dict[str, Any]]:
    """All items numbered above `after` that are there now."""
    while True:
        page = api.get(path, {"after": after, "limit": PAGE})
        for item in page["items"]:
            if item["seq"] > after:
                after = item["seq"]
                yield item
        if not page["items"] or page.get("next") is None:
            return


def follow(
    api: Api, path: str, ended: Callable[[], bool], after: int = 0, patience_s: float = PATIENCE_S
) -> Iterator[dict[str, Any]]:
    """Every item above `after`, each once and in order, until the job has ended and its feed is read to the end.

    Survives reconnects and restarts of the API, and waits while nothing comes.

    Raises:
        ApiUnreachable: no contact for `patience_s`.
    """
    pause_s = _FIRST_PAUSE_S
    last_contact = time.monotonic()
    while True:
        try:
            over = ended()  # asked before reading: what was written before the end is then seen by the pages
            for item in pages(api, path, after):
                after = item["seq"]
                yield item
                last_contact = time.monotonic()
            if over:
                return
            last_contact, pause_s = time.monotonic(), _FIRST_PAUSE_S
            for heard in _streamed(api, path, after, ended):
                if heard is not None:
                    after = heard["seq"]
                    yield heard
                # Behind the item, since the time that the program took over it was no silence of the server's; a
                # keep-alive counts, too.
                last_contact = time.monotonic()
        except httpx.ReadTimeout:
            pass  # a quiet stream
        except (httpx.TransportError, ApiUnreachable) as error:
            if time.monotonic() - last_contact > patience_s:
                raise _unreachable(api, path, patience_s, error) from None
        except ApiProblem as problem:
            if problem.status < 500 or time.monotonic() - last_contact > patience_s:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _unreachable(api: Api, path: str, patience_s: float, error: Exception) -> ApiUnreachable:
    return ApiUnreachable(
        f"could not reach {api.url}{path} for {patience_s:g} s ({error}).",
        hint="The job keeps running; try again once the control plane is back.",
    )


def _streamed(api: Api, path: str, after: int, ended: Callable[[], bool]) -> Iterator[dict[str, Any] | None]:
    """Items of one connection, None for a keep-alive. Returns when the server closes it or the job is found to have
    ended."""
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    with api.stream(path, headers=headers, params={"after": after}) as response:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            return
        check_at = time.monotonic() + _CHECK_END_EVERY_S
        for data in messages(response.iter_bytes()):
            if data is None:
                yield None
            else:
                item = json.loads(data)
                if item.get("seq", 0) > after:
                    after = item["seq"]
                    yield item
            # Behind keep-alives too: on a quiet feed nothing else shows that the job has ended.
            if time.monotonic() >= check_at:
                if ended():
                    return
                check_at = time.monotonic() + _CHECK_END_EVERY_S


def messages(chunks: Iterator[bytes]) -> Iterator[str | None]:
    """The data of each server-sent event; None for a keep-alive comment."""
    rest = b""
    data: list[str] = []
    for chunk in chunks:
        # With the rest before it: a chunk may end between CR and LF, or in the middle of a character.
        # Not by str.splitlines, which would also cut at U+2028. A lone CR, which the specification allows, no control
        # plane sends.
        *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            if line.startswith(b":"):
                yield None
            elif line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
            elif not line and data:
                yield "\n".join(data)
                data = []
