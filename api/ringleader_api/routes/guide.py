"""/guide: the documentation as it was built, static files behind the credential like everything else."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, RedirectResponse, Response

from ringleader_api.problems import NotFound
from ringleader_api.routes.built_files import file_below
from ringleader_api.routes.dependencies import ByCaller

router = APIRouter(include_in_schema=False)

GUIDE = Path(__file__).parents[1] / "guide"


@router.get("/guide")
def guide(_: ByCaller) -> Response:
    """The first page: links in it are relative to the folder."""
    return RedirectResponse("/guide/", 308)


@router.get("/guide/{path:path}")
def guide_file(_: ByCaller, path: str) -> Response:
    """A file of the site; a folder's index for the folder."""
    if not (GUIDE / "index.html").is_file():
        raise NotFound(
            "the guide has not been built.", hint="`make docs` builds it; its pages are in docs/, too."
        )
    file = file_below(GUIDE, f"{path}index.html" if path.endswith("/") or not path else path)
    if file is None:
        raise NotFound(f"there is nothing at /guide/{path}.", hint="The guide begins at /guide/.")
    return FileResponse(file, headers={"Cache-Control": "no-cache"})
