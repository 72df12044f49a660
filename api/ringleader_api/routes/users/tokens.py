"""/tokens: create, list, revoke."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field

from ringleader.wire.access import NewTokenView, Roles, TokenPage, TokenView, UserName
from ringleader_api.routes.bodies.bodies import AsJson, RightsFirst
from ringleader_api.routes.bodies.fields import Cursor, Fields, Limit, PartialPage, fields_of, page_as_json
from ringleader_api.routes.dependencies import ByCaller, Here, refusals

router = APIRouter(prefix="/tokens", tags=["tokens"], route_class=RightsFirst)


class NewToken(BaseModel):
    """The token to create. Without a scope it has all rights of its user; without `expires_in_s` it does not expire.

    Users who log in through the identity provider must set an expiry within `RINGLEADER_OIDC_TOKEN_DAYS`.
    """

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=100)]
    user: UserName | None = None
    scope: Annotated[Roles, Field(min_length=1)] | None = None
    expires_in_s: Annotated[float, Field(strict=True, gt=0, le=10 * 366 * 86_400)] | None = None


@router.get("", response_model=TokenPage | PartialPage, responses=refusals(422), summary="List tokens")
def list_tokens(
    *,
    here: Here,
    who: ByCaller,
    fields: Annotated[Fields, Depends(fields_of(TokenView, "a token"))],
    user: str | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List your own tokens, newest first; an admin of all projects sees those of all users. The tokens themselves are
    never shown."""
    return page_as_json(here.tokens.page(who, user, limit, cursor), fields)


@router.post(
    "", status_code=201, dependencies=[AsJson], responses=refusals(404, 415, 422), summary="Create a token"
)
def make_token(here: Here, who: ByCaller, body: NewToken) -> NewTokenView:
    """Create a token. Only this answer contains it."""
    expires_at = here.now() + timedelta(seconds=body.expires_in_s) if body.expires_in_s else None
    return here.tokens.make(who, body.user or who.name, body.name, body.scope, expires_at)


@router.delete("/{token_id}", status_code=204, responses=refusals(404), summary="Revoke a token")
def revoke_token(here: Here, who: ByCaller, token_id: str) -> None:
    """Revoke a token: it is refused from now on."""
    here.tokens.revoke(who, token_id)
