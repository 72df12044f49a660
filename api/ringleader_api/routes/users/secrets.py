"""/secrets: names are listed, values are written only."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Path, Response

from ringleader.wire.access import SecretName, SecretPage, SecretView
from ringleader_api.routes.bodies.bodies import AsSecretJson, RightsFirst
from ringleader_api.routes.bodies.fields import Cursor, Fields, Limit, PartialPage, fields_of, page_as_json
from ringleader_api.routes.dependencies import ByCaller, ByKeeper, Here, refusals

router = APIRouter(prefix="/secrets", tags=["secrets"], route_class=RightsFirst)

VALUE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["value"],
                    "properties": {"value": {"type": "string", "writeOnly": True}},
                }
            }
        },
    }
}


@router.get("", response_model=SecretPage | PartialPage, responses=refusals(422), summary="List secrets")
def list_secrets(
    *,
    here: Here,
    who: ByCaller,
    fields: Annotated[Fields, Depends(fields_of(SecretView, "a secret"))],
    project: str | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List the names of secrets, by project, and who set them."""
    return page_as_json(here.secrets.page(who, project, limit, cursor), fields)


@router.put(
    "/{project}/{name}",
    dependencies=[AsSecretJson],
    openapi_extra=VALUE,
    responses=refusals(404, 415, 422),
    summary="Set a secret",
)
def put_secret(
    *,
    here: Here,
    who: ByKeeper,
    project: str,
    name: Annotated[SecretName, Path()],
    body: Annotated[Any, Body()],
) -> SecretView:
    """Set or replace a secret. A job names it in `secrets:` and gets it as an environment variable."""
    return here.secrets.put(who, project, name, body)


@router.delete("/{project}/{name}", status_code=204, responses=refusals(404), summary="Delete a secret")
def drop_secret(here: Here, _: ByKeeper, project: str, name: str) -> None:
    """Delete a secret."""
    here.secrets.drop(project, name)
