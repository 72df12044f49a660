"""`fields=id,state`: only these fields of a job are answered."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict

from ringleader.wire.views import JobView, View
from ringleader_api.problems import Unprocessable


class PartialJob(BaseModel):
    """The fields of a job that were asked for."""

    model_config = ConfigDict(extra="allow")


class PartialPage(View):
    """A page of jobs, with the fields that were asked for."""

    items: list[PartialJob]
    next_cursor: str | None


async def selected(
    fields: Annotated[str | None, Query(description="fields of a job, by commas; all without it")] = None,
) -> frozenset[str] | None:
    """The names asked for. Raises Unprocessable: naming those that a job does not have."""
    if fields is None:
        return None
    named = frozenset(name.strip() for name in fields.split(","))
    if unknown := sorted(named - JobView.model_fields.keys()):
        allowed = ", ".join(JobView.model_fields)
        findings = [
            {"pointer": "query: fields", "value": name, "allowed": allowed, "message": "is no field of a job"}
            for name in unknown
        ]
        raise Unprocessable(
            f"a job has no field {unknown[0]!r}.",
            hint=f"Its fields: {allowed}.",
            code="bad_fields",
            errors=findings,
        )
    return named


def as_json(
    view: BaseModel, include: Any, headers: Mapping[str, str] | None = None, *, status: int = 200
) -> Response:
    """`view` as the answer; `include` as pydantic takes it, None for everything."""
    content = view.model_dump_json(include=include)
    return Response(content, status, headers=headers, media_type="application/json")
