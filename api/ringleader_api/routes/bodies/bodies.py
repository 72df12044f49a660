"""Request bodies: read once the caller's rights are known, declared as JSON, and naming no key twice."""

from collections.abc import Callable, Coroutine
from typing import Any

from anyio import to_thread
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from ringleader_api.edge.guard import PRINCIPAL
from ringleader_api.problems import Refused, Unprocessable, UnsupportedMediaType
from ringleader_api.rights import SupervisorCaller
from ringleader_api.routes.bodies.duplicate_keys import DuplicateKeys, named_twice
from ringleader_api.routes.dependencies import Right

AT_ONCE_BYTES = 4096
"""The size from which a body is checked in a thread, so that other requests go on meanwhile."""
LARGE_BYTES = 16 << 10
"""The size from which bodies are checked one at a time: threads that compute take turns with the event loop, which gets
one turn in as many as there are. Records posted by supervisors are checked as they come: none of them makes work for
nothing."""


class RightsFirst(APIRoute):
    """A route that checks the caller's rights before a byte of its body is read: FastAPI alone parses bodies first."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        carry_out = super().get_route_handler()
        # The same dependencies as FastAPI will ask again; each `Right` answers once a request.
        rights = [part.call for part in self.dependant.dependencies if isinstance(part.call, Right)]
        if self.body_field is None:
            return carry_out

        async def permitted_first(request: Request) -> Response:
            for right in rights:
                await right(request)
            # Read before it takes its turn: who dribbles must not keep others from theirs.
            if len(await request.body()) <= LARGE_BYTES or isinstance(
                request.scope[PRINCIPAL], SupervisorCaller
            ):
                return await carry_out(request)
            async with request.app.state.control.large:
                return await carry_out(request)

        return permitted_first


async def _says_json(request: Request) -> None:
    """Refuse a body that is not declared as JSON, and one that names a key twice."""
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    # FastAPI would hand such a body on as bytes.
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMediaType(
            f"the request body must be JSON, but its content type is {given or 'not set'}.",
            hint="Send the header Content-Type: application/json; with curl: -H 'Content-Type: application/json'.",
        )
    twice = await _twice(await request.body())
    if twice.findings:
        places = ", ".join(found["pointer"] for found in twice.findings)
        raise Unprocessable(
            f"the request body has duplicate keys: {places}{twice.rest}.",
            hint="Remove the duplicates.",
            code="key_twice",
            errors=twice.findings,
        )


async def _twice(body: bytes) -> DuplicateKeys:
    try:
        return await to_thread.run_sync(named_twice, body) if len(body) > AT_ONCE_BYTES else named_twice(body)
    except RecursionError:  # FastAPI has read it with a few frames less above it
        raise Refused("the request body is nested too deeply.") from None


async def _says_json_untold(request: Request) -> None:
    """The same, for secrets: a refused body is not quoted."""
    try:
        await _says_json(request)
    except Unprocessable as refused:
        raise Unprocessable(
            "the request body has duplicate keys.", hint=refused.hint, code=refused.code
        ) from None


AsJson = Depends(_says_json)
AsSecretJson = Depends(_says_json_untold)
