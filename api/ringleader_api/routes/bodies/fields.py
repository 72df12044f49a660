"""The part of a list that is answered: `limit` and `cursor` choose the items, `fields=id,state` the fields of each."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict

from ringleader.wire.views import JobView, View
from ringleader_api.problems import Unprocessable
from ringleader_api.services.records.metrics import Axis, Interval

Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[
    str | None, Query(description="The `next_cursor` of the previous page; leave it out for the first page.")
]
Finite = Annotated[float | None, Query(allow_inf_nan=False)]
Fields = frozenset[str] | None
"""Names of fields; None: all."""


class Partial(BaseModel):
    """An item with the fields that were asked for."""

    model_config = ConfigDict(extra="allow")


class PartialPage(View):
    """A page of items with the fields that were asked for."""

    items: list[Partial]
    next_cursor: str | None


def interval_of(
    *,
    axis: Annotated[Axis, Query(description="The unit of `from` and `to`.")] = Axis.STEP,
    first: Annotated[Finite, Query(alias="from")] = None,
    last: Annotated[Finite, Query(alias="to")] = None,
) -> Interval:
    """A dependency: the stretch of curves that is asked for. Raises Unprocessable if it ends before it begins."""
    if first is not None and last is not None and first > last:
        raise Unprocessable(
            f"the stretch ends before it begins: from {first:g}, to {last:g}.",
            hint="Swap from and to.",
            code="bad_query",
        )
    return Interval(axis, first, last)


def fields_of(view: type[View], one: str) -> Callable[..., Awaitable[Fields]]:
    """A dependency: the fields of a `view` that the request names. `one` is its name in errors: "a job"."""

    async def selected(
        fields: Annotated[
            str | None,
            Query(description=f"The fields of {one} to return, separated by commas; all fields if left out."),
        ] = None,
    ) -> Fields:
        """The fields; None: all. Raises Unprocessable, naming those that do not exist."""
        if fields is None:
            return None
        named = frozenset(name.strip() for name in fields.split(","))
        if unknown := sorted(named - view.model_fields.keys()):
            allowed = ", ".join(view.model_fields)
            findings = [
                {
                    "pointer": "query: fields",
                    "value": name,
                    "allowed": allowed,
                    "message": f"is not a field of {one}",
                }
                for name in unknown
            ]
            raise Unprocessable(
                f"{one} has no field {unknown[0]!r}.",
                hint=f"Its fields: {allowed}.",
                code="bad_fields",
                errors=findings,
            )
        return named

    return selected


selected = fields_of(JobView, "a job")


def page_as_json(page: BaseModel, fields: Fields) -> Response:
    """The page as a response, with these fields of its items."""
    return as_json(page, {"next_cursor": True, "items": {"__all__": fields}} if fields else None)


def as_json(
    view: BaseModel, include: Any, headers: Mapping[str, str] | None = None, *, status: int = 200
) -> Response:
    """`view` as a response; `include` as pydantic takes it, None for everything."""
    content = view.model_dump_json(include=include)
    return Response(content, status, headers=headers, media_type="application/json")
