"""The page for access in a real browser, and the way through an identity provider on another site and back."""

from pathlib import Path

import httpx
from axe import serious
from control_plane import FakeCluster
from oidc_provider import CLIENT, provider
from playwright.sync_api import sync_playwright
from served import FLAGS, served

ADA = "ada@example.org"
SIDEWAYS = """() => [...document.querySelectorAll('.scroll')]
  .filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => one.innerText)"""


def test_who_comes_back_from_the_provider_is_in_and_makes_and_revokes_a_token(
    tmp_path: Path, browser_path: str
) -> None:
    # Another host name is another site: a strict cookie alone would be left behind on the way back.
    with (
        provider("localhost") as idp,
        served(tmp_path, FakeCluster(), oidc_issuer=idp.issuer, oidc_client_id=CLIENT) as url,
        sync_playwright() as playwright,
    ):
        idp.claims = {"email": ADA, "email_verified": True}
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        page = browser.new_page()
        page.goto(f"{url}/access")
        page.get_by_role("link", name="Log in through").wait_for()
        assert serious(page) == []
        page.get_by_role("link", name="Log in through").click()
        page.wait_for_url(f"{url}/access")
        page.get_by_text("no role in any project").wait_for()
        first = (tmp_path / "token").read_text()
        admin = httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {first}"})
        admin.put(f"/users/{ADA}/roles/*", json={"role": "admin"}).raise_for_status()
        page.reload()
        row = page.locator("[data-project=default]")
        row.get_by_role("button", name="Edit").click()
        page.get_by_label("Weight").fill("2")
        page.get_by_label("Workers").fill("8")
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        row.get_by_text("0 of 8").wait_for()
        quota = admin.get("/projects").json()["items"][0]["quota"]
        assert quota == {"workers": 8, "cpus": None, "gpus": None}
        page.get_by_label("Name").fill("laptop")
        page.get_by_label("Rights").select_option("viewer")
        page.get_by_label("In project").fill("default")
        days = page.get_by_label("Expires after (days)")
        assert (days.input_value(), days.get_attribute("max")) == ("30", "30")
        days.evaluate("it => it.removeAttribute('max')")  # as in a page from before the bound was lowered
        days.fill("31")
        page.get_by_role("button", name="Create token").click()
        page.locator(".token-form").get_by_role("alert").get_by_text("must expire within 30 days").wait_for()
        days.fill("30")
        page.get_by_role("button", name="Create token").click()
        token = page.get_by_test_id("new-token").locator("code").inner_text()
        mine = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/api/v1/me", headers=mine).json()["roles"] == {"default": "viewer"}
        page.get_by_test_id("audit").get_by_text("POST /api/v1/tokens").first.wait_for()
        assert serious(page) == []
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate(SIDEWAYS) == []
        assert serious(page) == []
        page.get_by_role("row", name="laptop").get_by_role("button", name="Revoke").click()
        page.get_by_test_id("tokens").get_by_text("laptop").wait_for(state="detached")
        assert httpx.get(f"{url}/api/v1/me", headers=mine).status_code == 401
        page.screenshot(path=tmp_path / "access.png", full_page=True)
        admin.close()
        browser.close()
