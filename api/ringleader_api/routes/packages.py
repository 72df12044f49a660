"""/packages/{sha256}: upload a working directory under its hash."""

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Request, Response

from ringleader_api.problems import NotFound
from ringleader_api.routes.dependencies import BySubmitter, Here, refusals
from ringleader_api.services.packages import PackageView

router = APIRouter(prefix="/packages", tags=["packages"])


Offset = Annotated[
    int | None, Header(ge=0, description="where the bytes sent begin, to go on with an upload that broke off")
]


@router.head("/{name}", status_code=200, responses=refusals(404, 422))
async def has_package(here: Here, who: BySubmitter, name: str) -> Response:
    """Tell whether a package is stored; a 404 says in `Upload-Offset` how much of it is."""
    try:
        await to_thread.run_sync(here.packages.find, name)
    except NotFound as absent:
        absent.headers["Upload-Offset"] = str(await to_thread.run_sync(here.packages.begun, name, who.name))
        raise
    return Response(status_code=200)


@router.put(
    "/{name}",
    status_code=201,
    responses={200: {"description": "Stored before."}, **refusals(400, 409, 413, 422)},
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
    """Store a package: streamed, hashed, every entry checked; nothing of it is unpacked here.

    The bytes of an upload that broke off stay for a day. `Upload-Offset` sends the rest from there on; if it is not the
    end of the stored bytes, the answer (409, `bad_upload`) says where that is.
    """
    view, new = await here.packages.take(name, who.name, request.stream(), upload_offset)
    response.status_code = 201 if new else 200
    return view
