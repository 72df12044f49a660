"""The filter, the order and the metrics of a list of jobs, as its query says them."""

import re
from typing import Annotated

from fastapi import Query

from ringleader.spec.job import LABEL, NAME
from ringleader.wire.lists import parted
from ringleader.wire.states import State
from ringleader_api.problems import Unprocessable
from ringleader_api.services.jobs.groups import Grouping
from ringleader_api.services.jobs.listing import Filter
from ringleader_api.services.jobs.sorting import COLUMNS, NEWEST_FIRST, Sort

PAIRS = 20
"""The most labels or parameters that a list may be filtered by: a database nests its conditions."""
METRICS = 10
"""The most metrics that a list shows."""


async def filtered(  # noqa: PLR0917 - FastAPI gives them by name
    state: State | None = None,
    project: str | None = None,
    name: str | None = None,
    owner: Annotated[str | None, Query(description="The name of the user who submitted the job.")] = None,
    label: Annotated[
        list[str] | None,
        Query(
            max_length=PAIRS,
            description="A label as key=value, or !key for jobs without it; a job must match all that are given.",
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        Query(
            max_length=PAIRS,
            description="A key of the job file's `params` with its value, as key=value: a text, or a number, true, "
            "false or null as JSON has them, or !key for jobs without it; a job must match all that are given. "
            "Lists and mappings match nothing.",
        ),
    ] = None,
    search: Annotated[
        str | None,
        Query(
            max_length=200,
            pattern=LABEL,
            description="A part of the id, of the name, or of a label as key=value, in letters of either case.",
        ),
    ] = None,
) -> Filter:
    """The filter that the query says. Raises Unprocessable: a label or a parameter is not key=value."""
    labels, params = _pairs(label), _pairs(param)
    if bad := [key for key, _ in labels if not re.fullmatch(NAME, key)]:
        raise Unprocessable(f"the label filter {bad[0][:100]!r} is not key=value.", code="bad_label")
    if bad := [key for key, _ in params if not key]:
        raise Unprocessable(f"the param filter {bad[0][:100]!r} is not key=value.", code="bad_param")
    # An empty text is a part of every job: as a filter it would cost a look at all of them, and leave none out.
    return Filter(state, project, name, owner, labels, params, search or None)


async def sorted_by(
    sort: Annotated[
        str,
        Query(
            max_length=300,
            description=f"One of {', '.join(COLUMNS)}, or `metric:NAME:last`, `…:min` or `…:max`, or `param:KEY` or "
            "`label:KEY`: numbers by size, behind them all others as texts; a leading `-` puts the greatest first. "
            "`workers` are those that there are now; lists and mappings count as no value.",
        ),
    ] = str(NEWEST_FIRST),
) -> Sort:
    return Sort.parse(sort)


async def metrics_named(
    metrics: Annotated[
        str | None,
        Query(
            description=f"Names of metrics, separated by commas, at most {METRICS}: each job then has their newest, "
            "lowest and highest values in `metrics`."
        ),
    ] = None,
) -> list[str]:
    """The metrics to show. Raises Unprocessable: there are more than METRICS."""
    named = parted(metrics or "")
    if len(named) > METRICS:
        raise Unprocessable(
            f"metrics names {len(named)}, and takes at most {METRICS}.",
            hint="Ask for the others in a list of their own.",
            code="bad_list",
        )
    return named


async def grouped_by(
    by: Annotated[str, Query(max_length=300, description="`label:KEY` or `param:KEY`.")],
) -> Grouping:
    return Grouping.parse(by)


def _pairs(given: list[str] | None) -> list[tuple[str, str | None]]:
    """Each key with its value, None for those that jobs are to lack; what is neither has the key "" or a sign in it."""
    found: list[tuple[str, str | None]] = []
    for text in given or []:
        key, sign, value = text.partition("=")
        lacking = key.startswith("!") and not sign
        found.append((key[1:], None) if lacking else (key if sign else "", value))
    return found
