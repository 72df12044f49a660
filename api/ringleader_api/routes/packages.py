"""/packages/{sha256}: upload a working directory under its hash."""

from anyio import to_thread
from fastapi import APIRouter, Request, Response

from ringleader_api.routes.here import BySubmitter, Here, refusals
from ringleader_api.services.packages import PackageView

router = APIRouter(prefix="/packages", tags=["packages"])


@router.head("/{name}", status_code=200, responses=refusals(404, 422))
async def has_package(here: Here, _: BySubmitter, name: str) -> Response:
    """Whether a package is stored."""
    await to_thread.run_sync(here.packages.find, name)
    return Response(status_code=200)


@router.put(
    "/{name}", status_code=201, responses={200: {"description": "Stored before."}, **refusals(413, 422)}
)
async def put_package(
    here: Here, _: BySubmitter, name: str, request: Request, response: Response
) -> PackageView:
    """Store a package: streamed, hashed, every entry checked; nothing of it is unpacked here."""
    view, new = await here.packages.take(name, request.stream())
    response.status_code = 201 if new else 200
    return view
