"""The guide: how Sphinx makes a site of the Markdown pages in docs/. Read by `scripts/docs.py`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

project = "Ringleader"
author = "Ringleader contributors"
root_doc = "index"
extensions = ["myst_parser", "navigation", "repository_links", "without_inline"]

myst_heading_anchors = 4
# Every other warning fails the build. These are about looks: an example with `…` in it is no JSON, and a page may leave
# out a level of headings.
suppress_warnings = ["misc.highlighting_failure", "myst.header"]

html_theme = "furo"
html_title = "Ringleader"
html_static_path = ["static"]
html_css_files = ["guide.css"]
# Only what the pages ask for is served: no sources, no address of a tool's home.
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False


def setup(app: "Sphinx") -> None:
    # Code hosts draw these; here they are shown as they are written, for a drawing would need a script of its own.
    app.add_lexer("mermaid", TextLexer)
