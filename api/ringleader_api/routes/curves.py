"""/curves: metrics of several jobs in one answer, or as a report."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse, Response

from ringleader.wire.artifacts import report_name
from ringleader.wire.lists import parted
from ringleader.wire.views import Comparison
from ringleader_api.problems import Unprocessable
from ringleader_api.reports.reports import MAX_CHARTS
from ringleader_api.rights import visible
from ringleader_api.routes.bodies.fields import interval_of
from ringleader_api.routes.bodies.files import report_file
from ringleader_api.routes.dependencies import ByCaller, Here, refusals
from ringleader_api.services.records.metrics import Interval

MAX_JOBS = 100
MAX_NAMES = MAX_CHARTS
router = APIRouter(tags=["jobs"])

Ids = Annotated[str, Query(description=f"Ids of jobs, separated by commas: at most {MAX_JOBS}.")]
Within = Annotated[Interval, Depends(interval_of)]


@router.get("/curves", responses=refusals(422), summary="Compare metrics of several jobs")
def compare(
    *,
    here: Here,
    who: ByCaller,
    jobs: Ids,
    names: Annotated[
        str,
        Query(
            description=f"Names of metrics, separated by commas: at most {MAX_NAMES}; one with a comma in quotation "
            "marks."
        ),
    ] = "loss",
    interval: Within,
    max_points: Annotated[int, Query(ge=4, le=20_000, description="Of each curve.")] = 500,
) -> Comparison:
    """Read the same metrics of several jobs, each thinned so that peaks and dips stay. Jobs that do not exist, or that
    the caller may not read, are named in `left_out`."""
    ids = _listed(jobs, "jobs", MAX_JOBS)
    return here.curves.compare(ids, _listed(names, "names", MAX_NAMES), interval, max_points, visible(who))


@router.get(
    "/curves/report", response_class=HTMLResponse, responses=refusals(422), summary="Report on several jobs"
)
def report(
    *,
    here: Here,
    who: ByCaller,
    jobs: Ids,
    interval: Within,
    names: Annotated[
        str | None,
        Query(
            description=f"Names of metrics, separated by commas: at most {MAX_NAMES}. Left out: all, up to that."
        ),
    ] = None,
) -> Response:
    """Download a comparison as one HTML file, which needs no other and runs no script: the jobs, their curves and last
    values, and what their job files differ in. The curves are drawn by `axis`, from `from` to `to`. Jobs that do not
    exist, or that the caller may not read, are named in it as left out."""
    chosen = _listed(names, "names", MAX_NAMES) if names is not None else []
    ids = _listed(jobs, "jobs", MAX_JOBS)
    return report_file(here.reports.of_jobs(ids, chosen, interval, visible(who)), report_name(ids))


def _listed(text: str, parameter: str, most: int) -> list[str]:
    """The parts of a list, see `wire.lists`.

    Raises:
        Unprocessable: there are none, or more than `most`.
    """
    parts = parted(text)
    if not 1 <= len(parts) <= most:
        raise Unprocessable(f"{parameter} names {len(parts)}, and takes 1 to {most}.", code="bad_list")
    return parts
