"""What every route gets handed: the control plane, and who is asking, once they are permitted to.

What needs no database is a coroutine, which no thread has to be found for.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, Request

from ringleader.wire.access import EVERY
from ringleader_api.control import Control
from ringleader_api.edge.guard import PRINCIPAL
from ringleader_api.problems import MEDIA_TYPE, Forbidden, Unprocessable, UnsupportedMediaType
from ringleader_api.rights import Action, Caller, Principal, Supervisor, may, roles_of
from ringleader_api.routes.twice import named_twice
from ringleader_api.services.access import permit, permit_job


async def _control(request: Request) -> Control:
    control: Control = request.app.state.control
    return control


async def _caller(request: Request) -> Caller:
    who: Principal = request.scope[PRINCIPAL]
    if not isinstance(who, Caller):
        raise Forbidden("a supervisor's token is valid for its own ingest only.")
    return who


Here = Annotated[Control, Depends(_control)]
ByCaller = Annotated[Caller, Depends(_caller)]
"""Anybody who is known; the service decides what of it they may."""


async def _supervisor(request: Request, job_id: str) -> Supervisor:
    who: Principal = request.scope[PRINCIPAL]
    if not isinstance(who, Supervisor) or who.job_id != job_id:
        raise Forbidden("records are taken from the job's own supervisor only.")
    return who


def _everywhere(action: Action) -> Callable[..., Awaitable[Caller]]:
    async def permitted(who: ByCaller) -> Caller:
        permit(who, action, EVERY)
        return who

    return permitted


def _in_project(action: Action) -> Callable[..., Awaitable[Caller]]:
    async def permitted(who: ByCaller, project: str) -> Caller:
        permit(who, action, project)
        return who

    return permitted


def _over_job(action: Action) -> Callable[..., Caller]:
    def permitted(who: ByCaller, here: Here, job_id: str) -> Caller:
        permit_job(here.store, who, action, job_id)
        return who

    return permitted


async def _submitter(who: ByCaller) -> Caller:
    """Somebody who may submit in some project: packages belong to no project, but to whoever knows their hash."""
    if not any(may(who, Action.SUBMIT, project) for project in roles_of(who)):
        permit(who, Action.SUBMIT, EVERY)
    return who


async def _says_json(request: Request) -> None:
    """A body that is not declared as JSON would come in as bytes; of a key that it names twice one would be dropped."""
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMediaType(
            f"the body is declared as {given or 'nothing'}, not as JSON.",
            hint="Send the header Content-Type: application/json; with curl: -H 'Content-Type: application/json'.",
        )
    body = await request.body()
    if twice := list(named_twice(body)) if body else []:
        places = ", ".join(found["pointer"] for found in twice)
        raise Unprocessable(
            f"the body names a key twice: {places}.",
            hint="Leave one of them out.",
            code="key_twice",
            errors=twice,
        )


async def _says_json_untold(request: Request) -> None:
    """The same; nothing of a body that is refused is told back."""
    try:
        await _says_json(request)
    except Unprocessable as refused:
        raise Unprocessable("the body names a key twice.", hint=refused.hint, code=refused.code) from None


BySupervisor = Annotated[Supervisor, Depends(_supervisor)]
ByReader = Annotated[Caller, Depends(_over_job(Action.READ))]
BySteerer = Annotated[Caller, Depends(_over_job(Action.STEER))]
ByBreaker = Annotated[Caller, Depends(_over_job(Action.BREAK))]
BySubmitter = Annotated[Caller, Depends(_submitter)]
ByWatcher = Annotated[Caller, Depends(_everywhere(Action.WATCH))]
ByTracker = Annotated[Caller, Depends(_everywhere(Action.TRACK))]
ByFounder = Annotated[Caller, Depends(_everywhere(Action.FOUND))]
ByAdmitter = Annotated[Caller, Depends(_everywhere(Action.ADMIT))]
ByKeeper = Annotated[Caller, Depends(_in_project(Action.KEEP_SECRETS))]
ByGranter = Annotated[Caller, Depends(_in_project(Action.GRANT))]
AsJson = Depends(_says_json)
AsSecretJson = Depends(_says_json_untold)


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The problem responses of a route, for the OpenAPI document."""
    body = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    words = {
        400: "No request that can be read.",
        403: "Not permitted.",
        404: "Not there, or not to be seen by the caller.",
        409: "Not in this state.",
        412: "Changed meanwhile.",
        413: "Too large.",
        415: "No JSON.",
        422: "Wrong input.",
        429: "Too many requests.",
    }
    with_body = (400, 413) if 415 in codes else ()
    shown = sorted({401, 403, 429, *with_body, *codes})
    return {code: {"description": words.get(code, "Refused."), **body} for code in shown}
