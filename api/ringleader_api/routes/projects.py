"""/projects: those in which the caller has a role, and what they are due."""

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from ringleader.wire.access import ProjectName, ProjectPage, ProjectView, Quota, Weight
from ringleader_api.routes.here import AsJson, ByCaller, ByFounder, Here, refusals

router = APIRouter(prefix="/projects", tags=["projects"])


class NewProject(BaseModel):
    """A project."""

    model_config = ConfigDict(extra="forbid")

    name: ProjectName


class Due(BaseModel):
    """What to change; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    weight: Weight | None = None
    quota: Quota | None = None


@router.get("", responses=refusals())
def list_projects(here: Here, who: ByCaller) -> ProjectPage:
    """Projects, and the caller's role in each."""
    return here.projects.page(who)


@router.post("", status_code=201, dependencies=[AsJson], responses=refusals(409, 415, 422))
def add_project(here: Here, who: ByFounder, body: NewProject) -> ProjectView:
    """Make a project. An admin of all projects also makes one by submitting to it."""
    return here.projects.add(who, body.name)


@router.patch("/{project}", dependencies=[AsJson], responses=refusals(404, 415, 422))
def share_out(here: Here, who: ByFounder, project: ProjectName, body: Due) -> ProjectView:
    """Set a project's weight and quotas. Jobs above a lowered quota give surplus back; none is ended."""
    view = here.projects.share(who, project, body.weight, body.quota)
    here.reconciler.wake()
    return view
