"""Links from docs/ to other files of the repository: the site does not hold those, so they are shown as paths."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LINK = re.compile(r"(?<!!)\[(?P<words>[^\]\[]*)\]\((?P<target>\.\.?/[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")


def as_paths(text: str, page: Path, docs: Path) -> str:
    """The text of a page in which links that leave `docs` are words with the file's path. One to a file that is not
    there stays a link: Sphinx then fails on it."""

    def shown(link: re.Match[str]) -> str:
        file = (page.parent / link["target"]).resolve()
        if file.is_relative_to(docs) or not file.exists():
            return link[0]
        path = file.relative_to(docs.parent).as_posix()
        words = link["words"]
        return f"`{path}`" if words.strip("`") == path else f"{words} (`{path}`)"

    return LINK.sub(shown, text)


def replace(app: "Sphinx", page: str, source: list[str]) -> None:
    source[0] = as_paths(source[0], Path(app.env.doc2path(page)), Path(app.srcdir).resolve())


def setup(app: "Sphinx") -> dict[str, Any]:
    app.connect("source-read", replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
