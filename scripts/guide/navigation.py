"""The navigation: every page of docs/ has its place by its folder, or by its name here. Pages hold no directives, so
that they read the same on a code host."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTIONS: dict[str, tuple[str, ...]] = {
    "Tutorial": ("tutorial/",),
    "How-to": ("how-to/", "port-your-script", "moved-in-0.2"),
    "Reference": ("reference/", "glossary"),
    "Explanation": ("explanation/", "what-runs-again"),
}
"""By section its pages: by name, or by folder. A page that is in none fails the build."""
LINK = re.compile(r"\]\(([^)#\s:]+)\.md[)#]")


def pages_of(section: str, known: set[str], docs: Path, first: str) -> list[str]:
    """The pages of a section that are there, in the order in which a reader meets links to them: those of the first
    page, then those of each page of the section. Behind them stand those that none of these links to."""
    places = SECTIONS[section]
    folders = tuple(place for place in places if place.endswith("/"))
    inside = {page for page in known if page in places or page.startswith(folders)}
    found = [first]
    for page in found:
        text = (docs / f"{page}.md").read_text(encoding="utf-8")
        for link in LINK.findall(text):
            name = os.path.normpath(Path(page).parent / link)
            if name in inside and name not in found:
                found.append(name)
    return [*found[1:], *sorted(inside - set(found))]


def add(app: "Sphinx", page: str, source: list[str]) -> None:
    """Append the tables of contents to the first page as it is read."""
    if page != app.config.root_doc:
        return
    for section in SECTIONS:
        if pages := pages_of(section, app.project.docnames, Path(app.srcdir), page):
            lines = "\n".join(f"/{name}" for name in pages)
            source[0] += f"\n\n```{{toctree}}\n:caption: {section}\n:hidden:\n\n{lines}\n```\n"


def setup(app: "Sphinx") -> dict[str, Any]:
    app.connect("source-read", add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
