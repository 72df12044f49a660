"""A link of a Markdown page leads to a file of the repository, and to a heading that is there."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {".venv", "node_modules", "build", "dist", "static", "guide", "test-results"}
PAGES = sorted(
    page
    for page in ROOT.rglob("*.md")
    if not any(part in SKIPPED or part.startswith(".") for part in page.relative_to(ROOT).parts)
)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(?P<words>.+?)\s*$", re.MULTILINE)


def links_of(page: Path) -> list[str]:
    text = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    return [link["target"] for link in LINK.finditer(text) if "://" not in link["target"]]


def anchors_of(page: Path) -> set[str]:
    """The anchors that a code host gives the headings, the same that the guide has."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in HEADING.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["words"]).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    astray = []
    for target in links_of(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors_of(file)):
            astray.append(target)
    assert astray == []


def test_pages_and_links_are_found() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert {"README.md", "docs/glossary.md", "docs/reference/rest.md", "api/README.md"} <= names
    assert "../platform/README.md" in links_of(ROOT / "docs" / "glossary.md") or links_of(ROOT / "README.md")
