"""/audit: the log of changes and refused requests, with who sent them."""

from typing import Annotated

from fastapi import APIRouter, Query

from ringleader.wire.access import AuditPage
from ringleader_api.routes.dependencies import ByCaller, Here, refusals

router = APIRouter(prefix="/audit", tags=["audit"])


@router.get("", responses=refusals(422), summary="List the audit log")
def read_audit(
    *,
    here: Here,
    who: ByCaller,
    by: Annotated[str | None, Query(description="Return only requests of this user.")] = None,
    project: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[
        int | None, Query(ge=0, le=2**62, description="Return only entries with a smaller ID than this one.")
    ] = None,
) -> AuditPage:
    """List the audit log, newest first."""
    return here.audit.page(who, by, project, limit, before)
