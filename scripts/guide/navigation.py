"""The navigation: every page of docs/ has its place by its folder, or by its name here. Pages hold no directives, so
that they read the same on a code host."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTIONS: dict[str, tuple[str, ...]] = {
    "Tutorial": ("tutorial/",),
    "How-to": ("how-to/", "port-your-script", "moved-in-0.2"),
    "Reference": ("reference/", "glossary"),
    "Explanation": ("explanation/", "what-runs-again"),
}
"""By section its pages: a name, or a folder with all that is in it, its index first. A page that is in none fails the
build."""


def pages_of(section: str, known: set[str]) -> list[str]:
    """The pages of a section that are there, in order."""
    found = []
    for place in SECTIONS[section]:
        if place.endswith("/"):
            inside = sorted(page for page in known if page.startswith(place))
            found += sorted(inside, key=lambda page: not page.endswith("/index"))
        elif place in known:
            found.append(place)
    return found


def add(app: "Sphinx", page: str, source: list[str]) -> None:
    """Append the tables of contents to the first page as it is read."""
    if page != app.config.root_doc:
        return
    for section in SECTIONS:
        if pages := pages_of(section, app.project.docnames):
            lines = "\n".join(f"/{name}" for name in pages)
            source[0] += f"\n\n```{{toctree}}\n:caption: {section}\n:hidden:\n\n{lines}\n```\n"


def setup(app: "Sphinx") -> dict[str, Any]:
    app.connect("source-read", add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
