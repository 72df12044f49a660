"""Answers that are files to keep: a browser saves them, and shows none of them."""

from fastapi.responses import HTMLResponse

from ringleader_api.reports import CSP


def report_file(page: bytes, name: str) -> HTMLResponse:
    """A report as a download of that name, which may run nothing wherever it is opened."""
    return HTMLResponse(page, headers={"Content-Security-Policy": CSP, **saved_as(name)})


def saved_as(name: str) -> dict[str, str]:
    """The header with which a browser saves the answer; `name` is one of ours, and holds no quote."""
    return {"Content-Disposition": f'attachment; filename="{name}"'}
