"""Dependencies of the routes: the control plane, and the caller once they are permitted.

What needs no database is a coroutine, which no thread has to be found for.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from anyio import to_thread
from fastapi import Depends, Request

from ringleader.wire.access import EVERY
from ringleader_api.control import Control
from ringleader_api.edge.guard import PRINCIPAL
from ringleader_api.problems import MEDIA_TYPE, Forbidden
from ringleader_api.rights import Action, Caller, Principal, SupervisorCaller
from ringleader_api.services.users.access import permit, permit_job, permit_somewhere

_ANSWERED = "ringleader.rights"


class Right:
    """A right that a route asks for: a dependency that returns the caller who has it. `routes.bodies.RightsFirst`
    checks it before the body is read; it is checked once a request."""

    def __init__(self, ask: Callable[[Request], Awaitable[Principal]]) -> None:
        self._ask = ask

    async def __call__(self, request: Request) -> Any:
        """The caller. Raises Refused where they lack the right."""
        # In the scope, which all of one request share: checking over a job costs a query.
        answered: dict[Right, Principal] = request.scope.setdefault(_ANSWERED, {})
        if self not in answered:
            answered[self] = await self._ask(request)
        return answered[self]


async def _control(request: Request) -> Control:
    control: Control = request.app.state.control
    return control


async def _caller(request: Request) -> Caller:
    who: Principal = request.scope[PRINCIPAL]
    if not isinstance(who, Caller):
        raise Forbidden("a supervisor's token is valid only for posting the records of its own job.")
    return who


async def _supervisor(request: Request) -> SupervisorCaller:
    who: Principal = request.scope[PRINCIPAL]
    if not isinstance(who, SupervisorCaller) or who.job_id != request.path_params["job_id"]:
        raise Forbidden("only the job's own supervisor may do this.")
    return who


def _everywhere(action: Action) -> Right:
    async def permitted(request: Request) -> Caller:
        who = await _caller(request)
        permit(who, action, EVERY)
        return who

    return Right(permitted)


def _in_project(action: Action) -> Right:
    async def permitted(request: Request) -> Caller:
        who = await _caller(request)
        permit(who, action, request.path_params["project"])
        return who

    return Right(permitted)


def _over_job(action: Action) -> Right:
    async def permitted(request: Request) -> Caller:
        who, here = await _caller(request), await _control(request)
        # On a thread: it asks the database, and all other requests would wait for that.
        await to_thread.run_sync(permit_job, here.store, who, action, request.path_params["job_id"])
        return who

    return Right(permitted)


async def _submitter(request: Request) -> Caller:
    """The caller who may submit in some project: only the body names the project, and packages belong to none."""
    who = await _caller(request)
    permit_somewhere(who, Action.SUBMIT)
    return who


Here = Annotated[Control, Depends(_control)]
ByCaller = Annotated[Caller, Depends(Right(_caller))]
"""Any known caller; the service decides what of it they may do."""
BySupervisor = Annotated[SupervisorCaller, Depends(Right(_supervisor))]
ByReader = Annotated[Caller, Depends(_over_job(Action.READ))]
BySteerer = Annotated[Caller, Depends(_over_job(Action.STEER))]
ByBreaker = Annotated[Caller, Depends(_over_job(Action.BREAK))]
BySubmitter = Annotated[Caller, Depends(Right(_submitter))]
ByWatcher = Annotated[Caller, Depends(_everywhere(Action.WATCH))]
ByTracker = Annotated[Caller, Depends(_everywhere(Action.TRACK))]
ByFounder = Annotated[Caller, Depends(_everywhere(Action.FOUND))]
ByAdmitter = Annotated[Caller, Depends(_everywhere(Action.ADMIT))]
ByKeeper = Annotated[Caller, Depends(_in_project(Action.KEEP_SECRETS))]
ByAlertKeeper = Annotated[Caller, Depends(_in_project(Action.KEEP_ALERTS))]
ByProjectReader = Annotated[Caller, Depends(_in_project(Action.READ))]
ByGranter = Annotated[Caller, Depends(_in_project(Action.GRANT))]


def body_of(schema: str) -> dict[str, Any]:
    """A JSON body of that schema, for the OpenAPI document of a route that checks its body itself."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"requestBody": {"required": True, "content": content}}


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The problem responses of a route, for the OpenAPI document."""
    body = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    words = {
        400: "The request cannot be read.",
        401: "The request carries no valid credential.",
        403: "Not permitted.",
        404: "Not found, or not visible to the caller.",
        409: "Not possible in the current state.",
        412: "Changed in the meantime.",
        413: "The request body is too large.",
        415: "Not JSON.",
        422: "The input is not valid.",
        429: "Too many requests.",
    }
    # Who reads JSON can also meet a body that is torn, or too large.
    with_body = (400, 413) if 415 in codes else ()
    # A query can be wrong everywhere: one that a route does not have is refused.
    shown = sorted({401, 403, 422, 429, *with_body, *codes})
    return {code: {"description": words.get(code, "Refused."), **body} for code in shown}
