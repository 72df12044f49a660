"""/docs: the routes as a plain table, from the OpenAPI document; no script, and nothing loaded from elsewhere."""

import html

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from ringleader_api.routes.dependencies import ByCaller

router = APIRouter(include_in_schema=False)

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Ringleader REST API</title>
<h1>Ringleader REST API</h1><p>The full contract: <a href="openapi.json">openapi.json</a></p>
<table><tr><th>method<th>path<th>what it does</tr>{rows}</table></html>"""


@router.get("/docs")
async def docs(request: Request, _: ByCaller) -> HTMLResponse:
    """The table of routes, one a line."""
    rows = [
        f"<tr><td>{html.escape(method.upper())}<td>{html.escape(path)}"
        f"<td>{html.escape(operation.get('description', ''))}</tr>"
        for path, operations in request.app.openapi()["paths"].items()
        for method, operation in operations.items()
    ]
    return HTMLResponse(PAGE.format(rows="".join(rows)))
