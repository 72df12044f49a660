"""/me and /users: the caller, all users, and their roles by project."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, ConfigDict

from ringleader.wire.access import MeView, ProjectOrEvery, Role, Roles, UserName, UserPage, UserView
from ringleader_api.rights import roles_of
from ringleader_api.routes.bodies.bodies import AsJson, RightsFirst
from ringleader_api.routes.bodies.fields import Cursor, Fields, Limit, PartialPage, fields_of, page_as_json
from ringleader_api.routes.dependencies import ByAdmitter, ByCaller, ByGranter, Here, refusals

router = APIRouter(tags=["users"], route_class=RightsFirst)


class NewUser(BaseModel):
    """The user to create, and their roles by project; `*` is all projects."""

    model_config = ConfigDict(extra="forbid")

    name: UserName
    roles: Roles = {}


class GrantBody(BaseModel):
    """The role to give."""

    model_config = ConfigDict(extra="forbid")

    role: Role


@router.get("/me", responses=refusals(), summary="Show the caller")
def me(here: Here, who: ByCaller) -> MeView:
    """Show the caller, and their roles with this credential."""
    longest = here.tokens.longest(who)
    return MeView(
        name=who.name,
        roles=roles_of(who),
        token=who.token,
        longest_token_s=None if longest is None else longest.total_seconds(),
    )


@router.get("/users", response_model=UserPage | PartialPage, responses=refusals(422), summary="List users")
def list_users(
    *,
    here: Here,
    _: ByAdmitter,
    fields: Annotated[Fields, Depends(fields_of(UserView, "a user"))],
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List all users, by name."""
    return page_as_json(here.users.page(limit, cursor), fields)


@router.post(
    "/users",
    status_code=201,
    dependencies=[AsJson],
    responses=refusals(404, 409, 415, 422),
    summary="Create a user",
)
def add_user(here: Here, _: ByAdmitter, body: NewUser) -> UserView:
    """Create a user. POST /tokens then creates a token for them."""
    return here.users.add(body.name, body.roles)


@router.delete("/users/{name}", status_code=204, responses=refusals(404, 409), summary="Disable a user")
def disable_user(here: Here, who: ByAdmitter, name: str) -> None:
    """Disable a user: all their credentials are refused; their jobs and history stay."""
    here.users.disable(who, name)


@router.post("/users/{name}/enable", responses=refusals(404), summary="Enable a user")
def enable_user(here: Here, _: ByAdmitter, name: str) -> UserView:
    """Enable a disabled user again."""
    return here.users.enable(name)


@router.put(
    "/users/{name}/roles/{project}",
    dependencies=[AsJson],
    responses=refusals(404, 409, 415, 422),
    summary="Give a role",
)
def grant(
    here: Here, who: ByGranter, name: str, project: Annotated[ProjectOrEvery, Path()], body: GrantBody
) -> UserView:
    """Give the user a role in the project (`*`: in all projects), replacing the previous one. The answer shows the
    roles of the user in projects where the caller is an admin."""
    return here.users.grant(who, name, project, body.role)


@router.delete(
    "/users/{name}/roles/{project}", status_code=204, responses=refusals(404, 409), summary="Take a role away"
)
def take_away(here: Here, who: ByGranter, name: str, project: str) -> None:
    """Take away the user's role in the project."""
    here.users.take_away(who, name, project)
