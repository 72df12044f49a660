"""A browser without a screen that has logged in to a control plane."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ringleader.bench.broken import PeerFailed
from ringleader.bench.control_plane.crowd import Plane

if TYPE_CHECKING:
    from playwright.sync_api import Page

DEADLINE_MS = 60_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]  # root in a container


def browser_path() -> str:
    """$CHROMIUM, or one on PATH. Raises PeerFailed where there is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise PeerFailed("there is no Chromium: set CHROMIUM or put one on PATH.")
    return found


@contextmanager
def logged_in(server: Plane) -> "Iterator[Page]":
    """A page of a browser that has logged in."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise PeerFailed("this benchmark needs Playwright: pip install playwright.") from error
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(DEADLINE_MS)
        page.goto(server.url)
        page.get_by_label("Token").fill(server.token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="Jobs").wait_for()
        yield page
        browser.close()
