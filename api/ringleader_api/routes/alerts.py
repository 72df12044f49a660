"""/alerts: what was raised, and what became of it. /projects/{project}/alerts: the rules."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from ringleader.spec.alerts import AlertTerms, RuleName
from ringleader.wire.access import ProjectName
from ringleader.wire.alerts import AlertPage, AlertRulePage, AlertRuleSet, AlertState
from ringleader_api.routes.bodies.bodies import AsJson, RightsFirst
from ringleader_api.routes.bodies.fields import Cursor, Limit
from ringleader_api.routes.dependencies import ByAlertKeeper, ByCaller, ByProjectReader, Here, refusals

router = APIRouter(tags=["alerts"], route_class=RightsFirst)
Rule = Annotated[RuleName, Path()]


@router.get("/alerts", responses=refusals(422), summary="List alerts")
def list_alerts(
    *,
    here: Here,
    who: ByCaller,
    job: Annotated[str | None, Query(description="Return only alerts of the job with this ID.")] = None,
    project: str | None = None,
    state: AlertState | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> AlertPage:
    """List alerts, newest first: one for each channel of a rule that fired, and whether it was sent."""
    return here.alerts.page(who, job=job, project=project, state=state, limit=limit, cursor=cursor)


@router.get("/projects/{project}/alerts", responses=refusals(404), summary="List alert rules")
def list_rules(here: Here, _: ByProjectReader, project: ProjectName) -> AlertRulePage:
    """List the alert rules of a project, by name. Those of job files stand in the jobs."""
    return here.alerts.rules(project)


@router.put(
    "/projects/{project}/alerts/{name}",
    dependencies=[AsJson],
    responses=refusals(404, 409, 415, 422),
    summary="Set an alert rule",
)
def put_rule(
    here: Here, who: ByAlertKeeper, project: ProjectName, name: Rule, body: AlertTerms
) -> AlertRuleSet:
    """Set or replace a rule. It looks at what happens from now on, in all jobs of the project."""
    return here.alerts.put(who, project, name, body)


@router.delete(
    "/projects/{project}/alerts/{name}",
    status_code=204,
    responses=refusals(404),
    summary="Delete an alert rule",
)
def drop_rule(here: Here, _: ByAlertKeeper, project: ProjectName, name: Rule) -> None:
    """Delete a rule. Alerts that it has raised are still sent."""
    here.alerts.drop(project, name)


@router.post(
    "/projects/{project}/alerts/{name}/test",
    status_code=202,
    responses=refusals(404),
    summary="Test an alert rule",
)
def test_rule(here: Here, who: ByAlertKeeper, project: ProjectName, name: Rule) -> AlertPage:
    """Send a test to each channel of a rule. What became of it is in `GET /alerts`."""
    return here.alerts.try_out(who, project, name)
