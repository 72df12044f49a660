"""/packages/{sha256}: upload a working directory under its hash."""

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Request, Response

from ringleader_api.problems import NotFound
from ringleader_api.routes.dependencies import BySubmitter, Here, refusals
from ringleader_api.services.packages import PackageView

router = APIRouter(prefix="/packages", tags=["packages"])


Offset = Annotated[
    int | None, Header(ge=0, description="The offset of the bytes sent, to continue an interrupted upload.")
]


@router.head("/{name}", status_code=200, responses=refusals(404, 422), summary="Check a package")
async def has_package(here: Here, who: BySubmitter, name: str) -> Response:
    """Check whether a package is stored; with a 404, `Upload-Offset` says how many bytes of it are."""
    try:
        await to_thread.run_sync(here.packages.find, name)
    except NotFound as absent:
        absent.headers["Upload-Offset"] = str(await to_thread.run_sync(here.packages.begun, name, who.name))
        raise
    return Response(status_code=200)


@router.put(
    "/{name}",
    status_code=201,
    responses={200: {"description": "The package was stored already."}, **refusals(400, 409, 413, 422)},
    summary="Upload a package",
)
async def put_package(
    *,
    here: Here,
    who: BySubmitter,
    name: str,
    request: Request,
    response: Response,
    upload_offset: Offset = None,
) -> PackageView:
    """Store a package. It is streamed, hashed and checked entry by entry, but not unpacked here.

    The bytes of an interrupted upload are kept for a day. `Upload-Offset` continues it from there; if the offset is not
    the end of the stored bytes, the answer (409, `bad_upload`) says where that is.
    """
    view, new = await here.packages.take(name, who.name, request.stream(), upload_offset)
    response.status_code = 201 if new else 200
    return view
