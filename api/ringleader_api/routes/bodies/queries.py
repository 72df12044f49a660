"""Query parameters: one that a route does not have is refused, and so is one given twice that is no list."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from ringleader.errors import and_more, first_findings
from ringleader_api.problems import Unprocessable

NAME_SHOWN = 100
"""The most characters of a name that are told back."""


async def _known(request: Request) -> None:
    """Refuse what the route would ignore: with `dryrun=true` for `dry_run=true` it would start a job."""
    if not request.query_params:
        return
    known = _parameters(request.scope["route"])
    given = Counter(name for name, _ in request.query_params.multi_items())
    found, more = first_findings(_findings(given, known))
    if found:
        told = "; ".join(f"{each['pointer']}: {each['message']}" for each in found) + and_more(more)
        raise Unprocessable(f"the query is refused: {told}.", code="bad_query", errors=found)


KnownQuery = Depends(_known)


def _findings(given: Counter[str], known: dict[str, bool]) -> Iterator[dict[str, Any]]:
    allowed = ", ".join(known) or "none"
    for name, times in given.items():
        shown = name[:NAME_SHOWN]
        if name not in known:
            message = f"no such parameter; allowed: {allowed}"
        elif times > 1 and not known[name]:
            message = f"given {times} times, and takes one value"
        else:
            continue
        yield {"pointer": f"query: {shown}", "value": shown, "allowed": allowed, "message": message}


def _parameters(route: APIRoute) -> dict[str, bool]:
    """The names of a route's query parameters, and whether each takes a list."""
    return {each.alias: _is_list(each.field_info.annotation) for each in _of(route.dependant)}


def _of(dependant: Dependant) -> Iterator[Any]:
    yield from dependant.query_params
    for part in dependant.dependencies:
        yield from _of(part)


def _is_list(annotation: Any) -> bool:
    return any(get_origin(each) is list for each in (annotation, *get_args(annotation)))
