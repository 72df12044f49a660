"""Alerts in a real browser: rules, a test that is sent, what was raised, and the notice on a job's page."""

from pathlib import Path

import pytest
from axe import serious
from playwright.sync_api import Page
from receivers import receiver, reply

from ringleader.bench.control_plane.crowd import KeptConnection, plane
from ringleader.bench.page.browser import logged_in

pytestmark = pytest.mark.timeout(420)  # a machine that does much else
MARKUP = "<img src=x onerror=alert(1)>"
CUT = """() => [...document.querySelectorAll('main td')].filter((cell) => {
  const { width, right } = cell.getBoundingClientRect();
  return cell.innerText !== '' && (right > innerWidth || width < 150);
}).map((cell) => cell.innerText)"""
"""The cells that are out of sight, or too narrow to be read."""


def _sets_a_rule(page: Page) -> None:
    """A wrong rule is refused by its key, the right one is listed, and a host without an address is said."""
    page.get_by_text("Set a rule", exact=True).click()
    page.locator(".rule-form input").fill("from-the-page")
    page.locator(".rule-form textarea").fill("when: {stat: failed}\nchannels: [{slack: HOOK}]")
    page.get_by_role("button", name="Set the rule").click()
    page.locator(".rule-form").get_by_text("/when/stat", exact=True).wait_for()
    page.locator(".rule-form textarea").fill(
        "when: {state: failed}\nchannels: [{webhook: 'https://nowhere.invalid/x', secret: HOOK}]"
    )
    page.get_by_role("button", name="Set the rule").click()
    page.get_by_test_id("alert-said").get_by_text("The host nowhere.invalid has no address now.").wait_for()
    page.get_by_test_id("alert-rules").get_by_role("row", name="from-the-page").get_by_text(
        "state: failed"
    ).wait_for()


def test_a_rule_is_tested_and_what_was_raised_is_shown(tmp_path: Path, browser_path: str) -> None:
    home = tmp_path / "home"
    with (
        receiver() as hook,
        plane(home, cpus=1, alert_hosts="127.0.0.1") as server,
        KeptConnection(server.url, server.token) as caller,
    ):
        caller.submit()
        job_id = caller.submit()
        caller.call("PUT", "/api/v1/secrets/default/HOOK", {"value": "a-key-of-the-hook"})
        for name, when in (("ended", {"state": "cancelled"}), ("odd", {"metric": MARKUP, "above": 1.0})):
            body = {"when": when, "channels": [{"webhook": hook.url, "secret": "HOOK"}]}
            assert caller.call("PUT", f"/api/v1/projects/default/alerts/{name}", body)[0] == 200
        hook.answer = lambda posted, handler: reply(handler, 500 if b'"kind":"state"' in posted.body else 204)
        caller.call("POST", f"/api/v1/jobs/{job_id}/cancel")
        with logged_in(server) as page:
            errors: list[str] = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.get_by_role("link", name="Alerts").click()
            rules = page.get_by_test_id("alert-rules")
            rules.get_by_text(f"metric: {MARKUP}, above: 1, steps: 1").wait_for()
            rules.get_by_role("row", name="odd").get_by_role("button", name="Send a test").click()
            page.get_by_test_id("alert-said").wait_for()
            raised = page.get_by_test_id("alerts")
            raised.locator('[data-alert="sent"]', has_text="a test of the rule odd").wait_for()
            raised.locator('[data-alert="pending"]', has_text="the answer was 500").wait_for()
            assert serious(page) == []
            page.get_by_role("combobox", name="State").select_option("pending")
            page.wait_for_url("**/alerts?state=pending")
            page.get_by_role("link", name="Open job").click()
            notice = page.get_by_test_id("job-alerts")
            notice.get_by_text("1 alert, 1 still to be sent").wait_for()
            notice.get_by_role("link").click()
            page.wait_for_url(f"**/alerts?job={job_id}")
            page.locator("main").get_by_role("link", name="bench").first.wait_for()
            _sets_a_rule(page)
            page.set_viewport_size({"width": 360, "height": 900})
            assert page.evaluate(CUT) == []
            assert serious(page) == []
            assert errors == []
