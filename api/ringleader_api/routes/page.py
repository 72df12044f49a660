"""The built page: hashed files, and index.html for every path that the page routes itself."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, Response

from ringleader_api.problems import NotFound
from ringleader_api.routes.built_files import file_below
from ringleader_api.routes.dependencies import ByCaller

router = APIRouter(include_in_schema=False)

STATIC = Path(__file__).parents[1] / "static"
ABSENT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Ringleader</title>
<p>The page has not been built. <code>make setup</code> builds it; the REST API works without it.</p></html>"""


@router.get("/")
@router.get("/submit")
@router.get("/access")
@router.get("/jobs")
@router.get("/jobs/{job_id}")
def page(_: ByCaller) -> Response:
    """The page, which routes by itself."""
    index = STATIC / "index.html"
    if not index.is_file():
        return HTMLResponse(ABSENT)
    # Asked for again each time: it names the hashed files of the newest build.
    return FileResponse(index, headers={"Cache-Control": "no-cache"})


@router.get("/{path:path}")
def static(_: ByCaller, path: str) -> Response:
    """A file of the build; nothing outside it."""
    file = file_below(STATIC, path)
    if file is None:
        raise NotFound(f"there is no page at /{path}.")
    # Files below assets/ have their hash in the name: a new build changes the names.
    hashed = path.startswith("assets/")
    return FileResponse(
        file, headers={"Cache-Control": "max-age=31536000, immutable" if hashed else "no-cache"}
    )
