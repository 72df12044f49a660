"""The guide is a site of the pages in docs/: every page has its place, and no script or style stands in one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "import sys, docs, pathlib; sys.exit(docs.build_site(*map(pathlib.Path, sys.argv[1:])))"


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build a site in a process of its own: Sphinx keeps what it has registered."""
    command = [sys.executable, "-c", BUILD, str(docs), str(site)]
    return subprocess.run(
        command, cwd=ROOT / "scripts", capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A small repository: two pages, and a file beside docs/."""
    folder = tmp_path / "docs"
    (folder / "how-to").mkdir(parents=True)
    (folder / "index.md").write_text("# First\n\n[Recover](how-to/recover.md#by-hand)\n")
    (folder / "how-to" / "recover.md").write_text("# Recover\n\n## By hand\n\n```python\nx = 1\n```\n")
    (folder / "glossary.md").write_text(
        "# Glossary\n\n- [The design](../DESIGN.md#parts), and [DESIGN.md](../DESIGN.md)\n"
    )
    (tmp_path / "DESIGN.md").write_text("# Design\n")
    return folder


def test_pages_have_their_places_by_their_folders(docs: Path, tmp_path: Path) -> None:
    done = build(docs, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    sections = re.findall(r'<span class="caption-text">(.*?)</span>', first)
    assert sections == ["How-to", "Reference"]
    assert 'href="how-to/recover.html"' in first
    assert 'href="how-to/recover.html#by-hand"' in first


def test_pages_stand_in_the_order_in_which_a_reader_meets_them(docs: Path, tmp_path: Path) -> None:
    for name, more in (("zebra", "[An ape](ape.md)"), ("ape", ""), ("bee", ""), ("alone", "")):
        (docs / "how-to" / f"{name}.md").write_text(f"# {name.capitalize()}\n\n{more}\n")
    (docs / "index.md").write_text(
        "# First\n\n[Z](how-to/zebra.md), [B](how-to/bee.md#bee), [G](glossary.md)\n"
    )
    done = build(docs, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    tree = first[first.index('class="sidebar-tree"') :]
    shown = re.findall(
        r'class="reference internal" href="how-to/(\w+)\.html"', tree[: tree.index("Reference</span>")]
    )
    assert shown == ["zebra", "bee", "ape", "alone", "recover"]


def test_a_link_out_of_the_pages_is_shown_as_a_path(docs: Path, tmp_path: Path) -> None:
    assert build(docs, tmp_path / "site").returncode == 0
    text = (tmp_path / "site" / "glossary.html").read_text(encoding="utf-8")
    shown = re.sub(r"<.*?>", "", text)
    assert "The design (DESIGN.md), and DESIGN.md" in shown
    assert "../DESIGN" not in text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[x](how-to/none.md)", "how-to/none"),
        ("[x](how-to/recover.md#nothing)", "nothing"),
        ("[x](#nothing)", "nothing"),
        ("[x](../NONE.md)", "NONE"),
        ("![x](none.png)", "none.png"),
    ],
)
def test_a_link_to_what_is_not_there_fails_and_leaves_the_site_as_it_was(
    docs: Path, tmp_path: Path, line: str, told: str
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("the one before")
    (docs / "index.md").write_text(f"# First\n\n{line}\n")
    done = build(docs, site)
    assert done.returncode != 0
    assert told in done.stderr
    assert (site / "index.html").read_text() == "the one before"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".guide")] == []


def test_a_page_without_a_place_fails(docs: Path, tmp_path: Path) -> None:
    (docs / "stray.md").write_text("# Stray\n")
    done = build(docs, tmp_path / "site")
    assert done.returncode != 0
    assert "stray.md" in done.stderr


def test_what_only_looks_odd_is_no_fault(docs: Path, tmp_path: Path) -> None:
    diagram, example = "```mermaid\nflowchart LR\n  a --> b\n```", '```json\n{"id": "job_…", …}\n```'
    (docs / "index.md").write_text(f"# First\n\n### Of the third level\n\n{diagram}\n\n{example}\n")
    done = build(docs, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert "flowchart LR" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")


def test_no_page_holds_a_script_or_a_style_and_nothing_is_fetched_from_elsewhere(
    docs: Path, tmp_path: Path
) -> None:
    """The control plane sends `default-src 'self'`: what stands in a page would not run."""
    site = tmp_path / "site"
    assert build(docs, site).returncode == 0
    pages = list(site.rglob("*.html"))
    assert len(pages) == 4
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", text) == []
        assert re.findall(r"<style|<[^>]*\sstyle=|<[^>]*\son\w+=|javascript:", text) == []
        fetched = re.findall(r'<(?:script|img|iframe|source)[^>]*?src="([^"]+)"', text)
        fetched += re.findall(r'<link[^>]*?href="([^"]+)"', text)
        assert len(fetched) > 5
        for address in fetched:
            assert "//" not in address
            path = re.split("[?#]", address)[0]
            assert not path or (page.parent / path).is_file(), address


def test_what_a_theme_does_in_a_page_it_does_from_a_file(docs: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert build(docs, site).returncode == 0
    moved = {path.suffix: path.read_text(encoding="utf-8") for path in (site / "_static").glob("inline-*")}
    assert "document.body.dataset.theme" in moved[".js"]
    assert "display: none" in "".join(
        path.read_text(encoding="utf-8") for path in (site / "_static").glob("inline-*.css")
    )


@pytest.mark.skipif(not (ROOT / "docs" / "index.md").is_file(), reason="docs/ has no first page")
def test_the_pages_of_this_checkout_make_a_site(tmp_path: Path) -> None:
    done = build(ROOT / "docs", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "reference" / "job-file.html").is_file()
