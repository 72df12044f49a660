"""Default deny: who gets in, from where, and what a page's request must show."""

import re
from pathlib import Path

import anyio
import pytest
from control_plane import SPEC, URL, FakeCluster, Stage, stage
from fastapi.testclient import TestClient
from starlette.routing import BaseRoute, Mount, Route

from ringleader_api.__main__ import config_of
from ringleader_api.app import create_app
from ringleader_api.edge.credentials import (
    AuthenticationMissing,
    TokenExposed,
    first_token,
    require_set_up,
)
from ringleader_api.edge.guard import OPEN
from ringleader_api.settings import Settings, SettingsInvalid


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path, mlflow_url="http://127.0.0.1:9/mlflow")


def stranger(here: Stage) -> TestClient:
    return TestClient(here.client.app, base_url=URL, raise_server_exceptions=False)


def paths(routes: list[BaseRoute], prefix: str = "") -> list[tuple[str, str]]:
    """(method, path) of every route, mounts included."""
    found: list[tuple[str, str]] = []
    for route in routes:
        if isinstance(route, Mount):
            found += [("GET", f"{prefix}{route.path}/x"), *paths(list(route.routes), prefix + route.path)]
        elif isinstance(route, Route):
            filled = re.sub(r"{[^}]*}", "job_" + "0" * 26, prefix + route.path)
            found += [(method, filled) for method in route.methods or ()]
        else:
            nested = getattr(route, "routes", None) or getattr(
                getattr(route, "original_router", None), "routes", None
            )
            assert nested is not None, f"an unknown kind of route: {route!r}"
            context = getattr(route, "include_context", None)
            found += paths(list(nested), prefix + getattr(context, "prefix", ""))
    return found


def test_every_route_refuses_a_stranger(here: Stage) -> None:
    client = stranger(here)
    walked = [p for p in paths(here.client.app.routes) if p not in OPEN]  # type: ignore[attr-defined]
    assert len(walked) > 30, walked
    for wanted in (
        "/api/v1/jobs",
        "/mlflow/job_" + "0" * 26,
        "/api/v1/openapi.json",
        "/readyz",
        "/metrics",
        "/",
    ):
        assert wanted in {path for _, path in walked}
    for method, path in walked:
        answer = client.request(method, path)
        assert answer.status_code == 401, (method, path, answer.status_code)
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "path",
    ["/no/such", "/assets/index.js", "/healthz/", "//healthz", "/login/../api/v1/jobs", "/mlflow/api/2.0/x"],
)
def test_what_is_no_route_refuses_a_stranger_too(here: Stage, path: str) -> None:
    assert stranger(here).get(path).status_code == 401


def test_only_log_in_and_health_are_open(here: Stage) -> None:
    assert {path for _, path in OPEN} == {
        "/healthz",
        "/login",
        "/login/oidc",
        "/login/oidc/callback",
        "/api/v1/login",
    }
    assert stranger(here).get("/healthz").json() == {"ok": True, "trouble": []}
    assert "<script" not in stranger(here).get("/login").text


def test_a_wrong_token_is_refused_and_an_ingest_token_opens_nothing_else(here: Stage) -> None:
    job_id = here.started()
    client = stranger(here)
    ingest = here.cluster.alive[job_id, 1].ingest_token
    for token in ("", "x", ingest):
        headers = {"Authorization": f"Bearer {token}"}
        assert client.get("/api/v1/jobs", headers=headers).status_code == 401
        assert client.get(f"/api/v1/jobs/{job_id}", headers=headers).status_code == 401
    other = here.submit(name="other")
    here.post(other, attempt=1, token=ingest, expect=401)
    operator = here.client.post(f"/api/v1/jobs/{job_id}/ingest", json={"attempt": 1})
    assert operator.status_code == 403


def test_a_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(here: Stage) -> None:
    client = stranger(here)
    token = (here.home / "token").read_text()
    assert client.post("/api/v1/login", json={"token": "wrong"}).status_code == 401
    answer = client.post("/api/v1/login", json={"token": token})
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert token not in cookie
    assert client.get("/api/v1/jobs").status_code == 200
    client.delete("/api/v1/login", headers={"Origin": URL})
    assert client.get("/api/v1/jobs").status_code == 401


def test_a_logged_out_or_expired_cookie_opens_nothing(here: Stage) -> None:
    client = stranger(here)
    client.post("/api/v1/login", json={"token": (here.home / "token").read_text()})
    kept = dict(client.cookies)
    client.delete("/api/v1/login", headers={"Origin": URL})
    client.cookies.update(kept)
    assert client.get("/api/v1/jobs").status_code == 401, "a logged-out session must be dead on the server"
    client.post("/api/v1/login", json={"token": (here.home / "token").read_text()}, headers={"Origin": URL})
    here.time.pass_s(8 * 24 * 3600)
    assert client.get("/api/v1/jobs").status_code == 401


@pytest.mark.parametrize(
    "headers", [{}, {"Origin": "http://evil.test"}, {"Origin": URL, "Sec-Fetch-Site": "cross-site"}]
)
def test_a_cookie_does_not_authorise_what_another_site_sends(here: Stage, headers: dict[str, str]) -> None:
    client = stranger(here)
    client.post("/api/v1/login", json={"token": (here.home / "token").read_text()})
    job_id = here.submit()
    for method, path in (("POST", f"/api/v1/jobs/{job_id}/cancel"), ("DELETE", f"/api/v1/jobs/{job_id}")):
        assert client.request(method, path, headers=headers).status_code == 403
    assert here.state(job_id) == "queued"
    assert client.post(f"/api/v1/jobs/{job_id}/cancel", headers={"Origin": URL}).status_code == 202


def test_a_cookie_is_not_taken_under_a_foreign_host_name(here: Stage) -> None:
    client = stranger(here)
    client.post("/api/v1/login", json={"token": (here.home / "token").read_text()})
    answer = client.get("/api/v1/jobs", headers={"Host": "rebound.test"})
    assert (answer.status_code, answer.json()["code"]) == (403, "wrong_host")


def test_a_browser_is_led_to_the_log_in_and_back_inside_only(here: Stage) -> None:
    client = stranger(here)
    html = {"Accept": "text/html"}
    answer = client.get("/jobs/job_x?a=1", headers=html, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/jobs/job_x%3Fa%3D1")
    token = (here.home / "token").read_text()
    for target, lands in (
        ("/submit", "/submit"),
        ("//evil.test", "/"),
        ("https://evil.test", "/"),
        ("/\\evil", "/"),
    ):
        form = {"token": token, "next": target}
        answer = stranger(here).post("/api/v1/login", data=form, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, lands)
    answer = stranger(here).post("/api/v1/login", data={"token": "wrong", "next": '"><script>'})
    assert answer.status_code == 401
    assert "<script" not in answer.text


def test_answers_carry_the_protecting_headers(here: Stage) -> None:
    headers = here.client.get("/api/v1/jobs").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert "strict-transport-security" not in headers


def test_a_body_beyond_its_limit_is_refused_announced_or_not(here: Stage) -> None:
    answer = here.client.post("/api/v1/jobs", content=b" " * (2 << 20))
    assert (answer.status_code, answer.json()["status"]) == (413, 413)
    chunks = (b" " * 65536 for _ in range(40))
    answer = here.client.post("/api/v1/jobs", content=chunks, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")


def test_the_token_file_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    token = first_token(tmp_path)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert first_token(tmp_path) == token
    assert len(token) > 40
    assert [p.name for p in tmp_path.iterdir()] == ["token"]
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(TokenExposed):
        first_token(tmp_path)


@pytest.mark.parametrize("rest", ["u:hun:ter2@h:ter2/db", "u:hun@ter2@h/db", "u:hunter2@h:54x2/db"])
def test_a_malformed_database_url_is_named_and_nothing_of_it_shown(tmp_path: Path, rest: str) -> None:
    environ = {"RINGLEADER_HOME": str(tmp_path), "RINGLEADER_DATABASE_URL": f"postgresql://{rest}"}
    with pytest.raises(SettingsInvalid, match="RINGLEADER_DATABASE_URL") as refused:
        Settings.from_env(environ)
    assert not [part for part in ("hun", "ter2", "54x2") if part in str(refused.value)]


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "1e300"])
@pytest.mark.parametrize(
    "name", ["LEASE_S", "TICK_S", "VANISH_AFTER_S", "JOBS_KEPT_DAYS", "PACKAGES_KEPT_DAYS", "AUTOSCALE_CPUS"]
)
def test_a_number_without_an_end_is_refused_by_the_name_of_its_variable(
    tmp_path: Path, name: str, number: str
) -> None:
    environ = {"RINGLEADER_HOME": str(tmp_path), f"RINGLEADER_{name}": number}
    with pytest.raises(SettingsInvalid, match=f"RINGLEADER_{name}"):
        Settings.from_env(environ)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org"])
def test_binding_beyond_loopback_has_to_be_allowed(tmp_path: Path, host: str) -> None:
    environ = {"RINGLEADER_HOME": str(tmp_path), "RINGLEADER_HOST": host}
    with pytest.raises(SettingsInvalid, match="RINGLEADER_ALLOW_REMOTE"):
        Settings.from_env(environ)
    environ["RINGLEADER_ALLOW_REMOTE"] = "true"
    with pytest.raises(SettingsInvalid, match="RINGLEADER_PUBLIC_URL"):
        Settings.from_env(environ)
    environ["RINGLEADER_PUBLIC_URL"] = "https://ringleader.test"
    settings = Settings.from_env(environ)
    assert (settings.host, settings.hosts) == (host, frozenset({"ringleader.test"}))
    with pytest.raises(AuthenticationMissing):
        require_set_up(tmp_path, host, provider="")
    require_set_up(tmp_path, host, provider="https://id.test")
    require_set_up(tmp_path, "127.0.0.1", provider="")
    first_token(tmp_path)
    require_set_up(tmp_path, host, provider="")


def test_an_unforeseen_error_shows_a_number_and_no_traceback(here: Stage) -> None:
    here.control.feeds = None  # type: ignore[assignment]
    answer = here.client.get(f"/api/v1/jobs/{here.submit()}/events")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    assert "NoneType" not in answer.text


def test_what_is_refused_before_any_route_carries_its_number_too(here: Stage) -> None:
    refused = [
        stranger(here).get("/api/v1/jobs"),
        here.client.post("/api/v1/jobs", headers={"Origin": "http://evil.test"}),
        here.client.post("/api/v1/jobs", content=b" " * (2 << 20)),
    ]
    assert [answer.status_code for answer in refused] == [401, 403, 413]
    for answer in refused:
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_unknown_paths_and_methods_are_problems(here: Stage) -> None:
    nothing = [(method, "/api/v1/nothing", 404) for method in ("GET", "POST", "DELETE")]
    for method, path, expected in (*nothing, ("PUT", "/api/v1/jobs", 405)):
        answer = here.client.request(method, path)
        assert (answer.status_code, answer.headers["content-type"]) == (expected, "application/problem+json")
        assert answer.json()["status"] == expected


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/jobs", "GET, POST"),
        ("POST", "/api/v1/jobs/job_x", "DELETE, GET, PATCH"),
        ("PUT", "/api/v1/login", "DELETE, POST"),
        ("POST", "/api/v1/packages/x", "HEAD, PUT"),
        ("POST", "/jobs", "GET"),
        ("POST", "/healthz", "GET"),
    ],
)
def test_a_refused_method_is_told_all_that_the_path_takes(
    here: Stage, method: str, path: str, allowed: str
) -> None:
    answer = here.client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_every_route_of_the_api_is_in_the_openapi_document(here: Stage) -> None:
    document = here.client.get("/api/v1/openapi.json").json()
    assert {"/api/v1/jobs", "/api/v1/jobs/{job_id}/ingest", "/api/v1/packages/{name}"} <= set(
        document["paths"]
    )
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', str(document).replace("'", '"')))
    assert references <= set(document["components"]["schemas"])
    assert "$defs" not in str(document)
    assert "openapi.json" in here.client.get("/api/v1/docs").text


@pytest.mark.parametrize("extended", [True, False])
def test_a_websocket_is_refused_wherever_it_goes(here: Stage, extended: bool) -> None:
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def receive() -> dict[str, object]:
        raise AssertionError("nothing of it is read")

    for path in ("/", "/api/v1/jobs", "/mlflow/", "/healthz"):
        scope = {"type": "websocket", "path": path, "headers": [], "query_string": b""}
        scope["extensions"] = {"websocket.http.response": {}} if extended else {}
        anyio.run(here.client.app, scope, receive, send)
    first = [m for m in sent if m["type"] in ("websocket.http.response.start", "websocket.close")]
    assert [m.get("status", m.get("code")) for m in first] == [401 if extended else 1008] * 4


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.test"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "rebound.test"},
        {"Host": "127.0.0.1.evil.test:8123"},
        {"Host": "[::bad"},
    ],
)
def test_no_unsafe_verb_is_taken_from_another_site_or_host_not_even_with_a_token(
    here: Stage, headers: dict[str, str]
) -> None:
    job_id = here.submit()
    unsafe = [p for p in paths(here.client.app.routes) if p[0] not in ("GET", "HEAD", "OPTIONS")]  # type: ignore[attr-defined]
    assert {m for m, _ in unsafe} == {"POST", "PUT", "PATCH", "DELETE"}
    for method, path in unsafe:
        answer = here.client.request(method, path.replace("job_" + "0" * 26, job_id), headers=headers)
        assert answer.status_code == 403, (method, path)
        assert answer.json()["code"] in ("cross_origin", "wrong_host")
    assert here.state(job_id) == "queued"


def test_further_host_names_are_those_that_are_set(tmp_path: Path) -> None:
    here = stage(tmp_path, other_hosts="ringleader.internal, api.test")
    for host, expected in (("api.test:8000", 201), ("ringleader.internal", 201), ("test", 403)):
        assert here.client.post("/api/v1/jobs", json=SPEC, headers={"Host": host}).status_code == expected


@pytest.mark.parametrize(
    ("trusted", "peer", "source"),
    [
        ("", "127.0.0.1", "127.0.0.1"),
        ("10.1.0.0/16, 192.168.0.7", "127.0.0.1", "127.0.0.1"),
        ("10.1.0.0/16, 192.168.0.7", "10.1.2.3", "203.0.113.9"),
        ("10.1.0.0/16, 192.168.0.7", "192.168.0.7", "203.0.113.9"),
    ],
)
def test_only_a_proxy_that_is_named_says_where_a_request_came_from(
    tmp_path: Path, trusted: str, peer: str, source: str
) -> None:
    here = stage(tmp_path)
    settings = Settings(home=tmp_path, trusted_proxies=trusted)
    config = config_of(here.client.app, settings)  # type: ignore[arg-type]
    config.load()
    client = TestClient(config.loaded_app, base_url=URL, headers=here.client.headers, client=(peer, 5000))
    client.post("/api/v1/projects", json={"name": "a"}, headers={"X-Forwarded-For": "203.0.113.9"})
    assert [row["source"] for row in here.client.get("/api/v1/audit").json()["items"]] == [source]


@pytest.mark.parametrize("proxies", ["*", "proxy.test", "10.0.0.1/8"])
def test_proxies_are_named_by_address(tmp_path: Path, proxies: str) -> None:
    environ = {"RINGLEADER_HOME": str(tmp_path), "RINGLEADER_TRUSTED_PROXIES": proxies}
    with pytest.raises(SettingsInvalid, match="RINGLEADER_TRUSTED_PROXIES"):
        Settings.from_env(environ)


def test_behind_tls_browsers_are_told_to_stay_there_and_cookies_too(tmp_path: Path) -> None:
    home = tmp_path
    app = create_app(Settings(home=home, public_url="https://ringleader.test"), FakeCluster())
    client = TestClient(app, base_url="https://ringleader.test")
    answer = client.post("/api/v1/login", json={"token": (home / "token").read_text()})
    assert answer.headers["strict-transport-security"] == "max-age=31536000"
    assert "; secure" in answer.headers["set-cookie"].lower()
