"""The rules of axe-core for a page: what those meet who hear it or use keys."""

from pathlib import Path

import pytest
from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / "api" / "web" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = """async () => (await axe.run()).violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`)"""


def serious(page: Page) -> list[str]:
    """The serious and critical faults of a page as it is now. Skips the test where axe-core is not installed."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: npm ci in api/web")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    faults: list[str] = page.evaluate(SERIOUS)
    return faults
