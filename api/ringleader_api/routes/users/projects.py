"""/projects: the projects in which the caller has a role, with their weights and quotas."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict

from ringleader.wire.access import ProjectName, ProjectPage, ProjectView, Quota, Weight
from ringleader_api.routes.bodies.bodies import AsJson, RightsFirst
from ringleader_api.routes.bodies.fields import Cursor, Fields, Limit, PartialPage, fields_of, page_as_json
from ringleader_api.routes.dependencies import ByCaller, ByFounder, Here, refusals

router = APIRouter(prefix="/projects", tags=["projects"], route_class=RightsFirst)


class NewProject(BaseModel):
    """The project to create."""

    model_config = ConfigDict(extra="forbid")

    name: ProjectName


class Due(BaseModel):
    """The weight and quotas to change; those left out stay."""

    model_config = ConfigDict(extra="forbid")

    weight: Weight | None = None
    quota: Quota | None = None


@router.get("", response_model=ProjectPage | PartialPage, responses=refusals(422), summary="List projects")
def list_projects(
    *,
    here: Here,
    who: ByCaller,
    fields: Annotated[Fields, Depends(fields_of(ProjectView, "a project"))],
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List projects by name, with the caller's role in each."""
    return page_as_json(here.projects.page(who, limit, cursor), fields)


@router.post(
    "", status_code=201, dependencies=[AsJson], responses=refusals(409, 415, 422), summary="Create a project"
)
def add_project(here: Here, who: ByFounder, body: NewProject) -> ProjectView:
    """Create a project. An admin of all projects also creates one by submitting to it."""
    return here.projects.add(who, body.name)


@router.patch(
    "/{project}", dependencies=[AsJson], responses=refusals(404, 415, 422), summary="Set weight and quotas"
)
def share_out(here: Here, who: ByFounder, project: ProjectName, body: Due) -> ProjectView:
    """Set a project's weight and quotas. Jobs above a lowered quota give surplus workers back; no job is ended."""
    view = here.projects.share(who, project, body.weight, body.quota)
    here.reconciler.wake()
    return view
