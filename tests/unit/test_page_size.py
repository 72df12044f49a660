"""How much of the page a browser fetches."""

import gzip
from pathlib import Path

import pytest

from ringleader_api.routes import page

BUILT = Path(page.__file__).parents[1] / "static"
MOST_BYTES = 350_000  # all views together, compressed


def test_the_whole_page_is_small() -> None:
    files = [file for file in BUILT.rglob("*") if file.suffix in {".js", ".css"}]
    if not files:
        pytest.skip("the page is not built: make setup")
    sizes = {file.name: len(gzip.compress(file.read_bytes())) for file in files}
    assert sum(sizes.values()) <= MOST_BYTES, sorted(sizes.items(), key=lambda size: -size[1])[:9]
