"""The guide and the page are served as they were built: behind the credential, from their folders alone."""

from pathlib import Path

import pytest
from control_plane import Stage, stage
from fastapi.testclient import TestClient

from ringleader_api.routes import page


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "guide"
    (folder / "reference").mkdir(parents=True)
    (folder / "_static").mkdir()
    (folder / "index.html").write_text("<h1>Guide</h1>")
    (folder / "reference" / "index.html").write_text("<h1>Reference</h1>")
    (folder / "_static" / "guide.css").write_text("table {}")
    (tmp_path / "secret").write_text("of others")
    monkeypatch.setattr(page, "GUIDE", folder)
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path / "home")


def stranger(here: Stage) -> TestClient:
    return TestClient(here.client.app, base_url=here.client.base_url, follow_redirects=False)


def test_a_reader_with_a_credential_gets_pages_and_their_files(here: Stage, site: Path) -> None:
    first = here.client.get("/guide", follow_redirects=False)
    assert (first.status_code, first.headers["location"]) == (308, "/guide/")
    for path, text, kind in (
        ("/guide/", "<h1>Guide</h1>", "text/html"),
        ("/guide/index.html", "<h1>Guide</h1>", "text/html"),
        ("/guide/reference/", "<h1>Reference</h1>", "text/html"),
        ("/guide/_static/guide.css", "table {}", "text/css"),
    ):
        answer = here.client.get(path)
        assert (answer.status_code, answer.text) == (200, text)
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in answer.headers["content-security-policy"]


def test_a_user_without_any_role_may_read_it(here: Stage, site: Path) -> None:
    assert here.user("nobody").get("/guide/").status_code == 200


@pytest.mark.parametrize("path", ["/guide", "/guide/", "/guide/_static/guide.css", "/guide/none"])
def test_nobody_reads_it_without_a_credential(here: Stage, site: Path, path: str) -> None:
    assert stranger(here).get(path).status_code == 401
    browser = stranger(here).get(path, headers={"accept": "text/html"})
    assert (browser.status_code, browser.headers["location"].startswith("/login?next=")) == (303, True)


@pytest.mark.parametrize(
    "path",
    [
        "none.html",
        "../secret",
        "..%2Fsecret",
        "%2e%2e/secret",
        "reference",
        "a%00b",
        "/etc/passwd",
        "x" * 5000,
    ],
)
def test_nothing_outside_the_folder_is_served(here: Stage, site: Path, path: str) -> None:
    answer = here.client.get(f"/guide/{path}")
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


def test_a_guide_that_was_not_built_says_how(
    here: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "GUIDE", tmp_path / "none")
    answer = here.client.get("/guide/")
    assert answer.status_code == 404
    assert "has not been built" in answer.json()["detail"]
    assert "`make docs`" in answer.json()["hint"]


def test_other_methods_are_refused(here: Stage, site: Path) -> None:
    answer = here.client.post("/guide/")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def test_who_opens_an_address_that_there_is_not_gets_the_page_which_says_so(
    here: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "index.html").write_text("<main></main>")
    monkeypatch.setattr(page, "STATIC", tmp_path / "static")
    for path in ("/nothing/here", "/jobs/a/b"):
        opened = here.client.get(path, headers={"accept": "text/html,*/*"})
        assert (opened.status_code, opened.text) == (404, "<main></main>")
        # A script asks for no HTML, and reads what is wrong.
        assert here.client.get(path).json()["detail"] == f"there is no page at {path}."
    for path in ("/api/v1/nothing", "/assets/old.js"):
        answer = here.client.get(path, headers={"accept": "text/html,*/*"})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
