"""Scripts and styles that a theme writes into its pages become files beside them: the control plane's
Content-Security-Policy (`default-src 'self'`) lets none run that stand in a page."""

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
SHEET = re.compile(r"<style>(.*?)</style>", re.DOTALL)
ATTRIBUTE = re.compile(r'(<[a-zA-Z][^<>]*?) style="([^"]*)"')


def move(site: Path) -> None:
    """Rewrite every page of a built site."""
    files: dict[str, str] = {}
    for page in sorted(site.rglob("*.html")):
        up = "../" * (len(page.relative_to(site).parts) - 1)
        page.write_text(_moved(page.read_text(encoding="utf-8"), up, files), encoding="utf-8")
    for name, content in files.items():
        (site / "_static" / name).write_text(content, encoding="utf-8")


def _moved(text: str, up: str, files: dict[str, str]) -> str:
    """The page without them; what has to be beside it goes into `files`, by name."""

    def place(content: str, kind: str) -> str:
        name = f"inline-{_mark(content)}.{kind}"
        files[name] = content
        return f"{up}_static/{name}"

    def marked(found: re.Match[str]) -> str:
        rules.add(f'[data-style="{_mark(found[2])}"]{{{found[2]}}}')
        return f'{found[1]} data-style="{_mark(found[2])}"'

    rules: set[str] = set()
    text = SCRIPT.sub(lambda found: f'<script src="{place(found[1], "js")}"></script>', text)
    text = SHEET.sub(lambda found: f'<link rel="stylesheet" href="{place(found[1], "css")}">', text)
    text = ATTRIBUTE.sub(marked, text)
    if rules:
        sheet = f'<link rel="stylesheet" href="{place("".join(sorted(rules)), "css")}">'
        text = text.replace("</head>", f"{sheet}</head>", 1)
    return text


def _mark(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _built(app: "Sphinx", error: Exception | None) -> None:
    if error is None:
        move(Path(app.outdir))


def setup(app: "Sphinx") -> dict[str, Any]:
    app.connect("build-finished", _built)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
