"""The built page and the guide: files that the set-up has made, behind the credential like everything else."""

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from ringleader_api.problems import NotFound
from ringleader_api.routes.dependencies import ByCaller

router = APIRouter(include_in_schema=False)

STATIC = Path(__file__).parents[1] / "static"
GUIDE = Path(__file__).parents[1] / "guide"
ABSENT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Ringleader</title>
<p>The page has not been built. <code>make setup</code> builds it; the REST API works without it.</p></html>"""


@router.get("/guide")
def guide(_: ByCaller) -> Response:
    """The first page of the guide: links in it are relative to the folder."""
    return RedirectResponse("/guide/", 308)


@router.get("/guide/{path:path}")
def guide_file(_: ByCaller, path: str) -> Response:
    """A file of the guide; a folder's index for the folder."""
    if not (GUIDE / "index.html").is_file():
        raise NotFound(
            "the guide has not been built.", hint="`make docs` builds it; its pages are in docs/, too."
        )
    file = _file_below(GUIDE, f"{path}index.html" if path.endswith("/") or not path else path)
    if file is None:
        raise NotFound(f"there is nothing at /guide/{path}.", hint="The guide begins at /guide/.")
    return FileResponse(file, headers={"Cache-Control": "no-cache"})


@router.get("/")
@router.get("/submit")
@router.get("/access")
@router.get("/compare")
@router.get("/alerts")
@router.get("/cluster")
@router.get("/jobs")
@router.get("/jobs/{job_id}")
@router.get("/sweeps")
@router.get("/sweeps/{sweep_id}")
def page(_: ByCaller) -> Response:
    """The page, which routes by itself."""
    index = STATIC / "index.html"
    if not index.is_file():
        return HTMLResponse(ABSENT)
    # Asked for again each time: it names the hashed files of the newest build.
    return FileResponse(index, headers={"Cache-Control": "no-cache"})


# Last: it takes every path.
@router.get("/{path:path}")
def static(_: ByCaller, request: Request, path: str) -> Response:
    """A file of the page's build; nothing outside it. To who opens another address the page says that there is none."""
    file = _file_below(STATIC, path)
    index = STATIC / "index.html"
    opened = "text/html" in request.headers.get("accept", "") and not path.startswith(("api/", "assets/"))
    if file is None and opened and index.is_file():
        return FileResponse(index, 404, headers={"Cache-Control": "no-cache"})
    if file is None:
        raise NotFound(f"there is no page at /{path}.")
    # Files below assets/ have their hash in the name: a new build changes the names.
    hashed = path.startswith("assets/")
    return FileResponse(
        file, headers={"Cache-Control": "max-age=31536000, immutable" if hashed else "no-cache"}
    )


def _file_below(folder: Path, path: str) -> Path | None:
    """The file at `path` below the folder; None where there is none, or it is outside."""
    try:
        # Before it is compared: a path may lead out by `..`, or by a link.
        file = (folder / path).resolve()
        return file if file.is_relative_to(folder.resolve()) and file.is_file() else None
    except (OSError, ValueError):  # no name of a file: too long, or with a NUL
        return None
