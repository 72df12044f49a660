"""The guide: how Sphinx makes a site of the Markdown pages in docs/. Read by `scripts/docs.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "Ringleader"
author = "Ringleader contributors"
root_doc = "index"
extensions = ["myst_parser", "navigation", "repository_links", "without_inline"]

myst_heading_anchors = 4
myst_enable_extensions = ["strikethrough"]

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
