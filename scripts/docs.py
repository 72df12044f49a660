"""The documentation: the site that is made of docs/.

Called as `python scripts/docs.py site`. The site is written to where the control plane serves it from, and a wheel
carries it. A link to a page or heading that is not there fails the build.
"""

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / "api" / "ringleader_api" / "guide"


def main() -> int:
    return build_site(DOCS, SITE)


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
