"""The documentation: the reference, written from the code, and the site that is made of docs/.

Called as `python scripts/docs.py [reference] [site]`, both by default. The site is written to where the control plane
serves it from, and a wheel carries it. A link to a page or heading that is not there fails the build.
"""

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
SITE = ROOT / "api" / "ringleader_api" / "guide"


def main() -> int:
    wanted = sys.argv[1:] or ["reference", "site"]
    if unknown := set(wanted) - {"reference", "site"}:
        print(f"docs: there is no {', '.join(sorted(unknown))}; name reference or site.", file=sys.stderr)
        return 2
    if "reference" in wanted:
        write_reference(REFERENCE)
    return build_site(DOCS, SITE) if "site" in wanted else 0


def reference() -> Mapping[str, str]:
    """The pages of the reference, by file name. They need the engine and the server installed."""
    from reference import pages

    return pages()


def write_reference(folder: Path) -> None:
    """Write the pages, and remove those that there are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = reference()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for old in set(folder.glob("*.md")) - {folder / name for name in texts}:
        old.unlink()
    print(f"reference: {len(texts)} pages in {folder.relative_to(ROOT)}")


def build_site(docs: Path, site: Path) -> int:
    """Build the site from the Markdown pages in `docs`; returns Sphinx's exit code, and 1 for any warning.

    A site that was there stays until the new one is whole.
    """
    from sphinx.cmd.build import main as sphinx

    with tempfile.TemporaryDirectory(dir=site.parent, prefix=".guide-") as work:
        made = Path(work) / "site"
        configured = ["-c", str(ROOT / "scripts" / "guide"), "-d", str(Path(work) / "doctrees")]
        strict = ["-q", "-n", "-W", "--keep-going"]
        if code := sphinx(["-b", "html", *configured, *strict, str(docs), str(made)]):
            return code
        (made / ".buildinfo").unlink()
        shutil.rmtree(site, ignore_errors=True)
        made.rename(site)
    print(f"guide: {sum(1 for _ in site.rglob('*.html'))} pages in {site.name}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
