"""What every route gets handed: the control plane, and who is asking."""

from typing import Annotated, Any

from fastapi import Depends, Request

from ringleader_api.control import Control
from ringleader_api.edge.credentials import Operator, Principal, Supervisor
from ringleader_api.edge.guard import PRINCIPAL
from ringleader_api.problems import MEDIA_TYPE, Forbidden, UnsupportedMediaType


def _control(request: Request) -> Control:
    control: Control = request.app.state.control
    return control


def _operator(request: Request) -> Operator:
    who: Principal = request.scope[PRINCIPAL]
    if not isinstance(who, Operator):
        raise Forbidden("a supervisor's token is valid for its own ingest only.")
    return who


def _supervisor(request: Request, job_id: str) -> Supervisor:
    who: Principal = request.scope[PRINCIPAL]
    if not isinstance(who, Supervisor) or who.job_id != job_id:
        raise Forbidden("records are taken from the job's own supervisor only.")
    return who


def _says_json(request: Request) -> None:
    """A body that is not declared as JSON would come in as bytes."""
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMediaType(
            f"the body is declared as {given or 'nothing'}, not as JSON.",
            hint="Send the header Content-Type: application/json; with curl: -H 'Content-Type: application/json'.",
        )


Here = Annotated[Control, Depends(_control)]
ByOperator = Annotated[Operator, Depends(_operator)]
BySupervisor = Annotated[Supervisor, Depends(_supervisor)]
AsJson = Depends(_says_json)


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The problem responses of a route, for the OpenAPI document."""
    body = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    words = {
        404: "No such job.",
        409: "Not in this state.",
        412: "Changed meanwhile.",
        415: "No JSON.",
        422: "Wrong input.",
    }
    return {code: {"description": words.get(code, "Refused."), **body} for code in (401, *codes)}
