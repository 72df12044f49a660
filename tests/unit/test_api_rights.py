"""Who may do what: the table, what a role opens on every route, and that what one may not see is not there."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest
from control_plane import SPEC, URL, Stage, stage
from fastapi.testclient import TestClient
from starlette.requests import Request
from starlette.responses import Response
from test_api_guard import paths

from ringleader.wire.access import EVERY, Role
from ringleader_api.edge.guard import OPEN, PRINCIPAL
from ringleader_api.edge.rate import FILTERED
from ringleader_api.problems import TooMany
from ringleader_api.rights import NEEDS, WHOLE, Action, Caller, may, role_in, roles_of, visible
from ringleader_api.routes.streams.follow import PING, _still, items, stream
from ringleader_api.services.records.feeds import Wanted


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def caller(roles: dict[str, Role], scope: dict[str, Role] | None = None) -> Caller:
    return Caller("ada", roles, WHOLE if scope is None else scope, "tok_1")


def test_a_role_may_do_what_the_table_says_in_its_project_only() -> None:
    assert set(NEEDS) == set(Action)
    for role, action in product(Role, Action):
        who = caller({"vision": role})
        assert may(who, action, "vision") is (role.rank >= NEEDS[action].rank), (role, action)
        assert not may(who, action, "speech")
        assert not may(who, action, EVERY)
        assert may(caller({EVERY: role}), action, "vision") is may(who, action, "vision")


def test_the_greater_of_two_roles_counts_and_a_scope_only_takes_away() -> None:
    assert role_in(caller({EVERY: Role.VIEWER, "vision": Role.OPERATOR}), "vision") is Role.OPERATOR
    for role, cap in product(Role, Role):
        held = role_in(caller({EVERY: role}, {"vision": cap}), "vision")
        assert held is min(role, cap, key=lambda r: r.rank)
        assert role_in(caller({EVERY: role}, {"vision": cap}), "speech") is None
    assert roles_of(caller({EVERY: Role.ADMIN}, {"vision": Role.VIEWER})) == {"vision": Role.VIEWER}
    assert visible(caller({EVERY: Role.VIEWER})) is None
    assert visible(caller({"vision": Role.VIEWER}, {"speech": Role.ADMIN})) == frozenset()


def codes(client: TestClient, job_id: str) -> dict[str, int]:
    """The status of each request that the table tells apart, on a job of somebody else in `vision`."""
    base = f"/api/v1/jobs/{job_id}"
    return {
        "read": client.get(base).status_code,
        "resize": client.patch(base, json={"workers": {"max": 3}}).status_code,
        "submit": client.post("/api/v1/jobs?dry_run=true", json={**SPEC, "project": "vision"}).status_code,
        "grant": client.put("/api/v1/users/bob/roles/vision", json={"role": "viewer"}).status_code,
        "audit": client.get("/api/v1/audit").status_code,
        "watch": client.get("/metrics").status_code,
        "users": client.get("/api/v1/users").status_code,
        "found": client.post("/api/v1/projects", json={"name": "vision"}).status_code,
        "track": client.get("/mlflow/").status_code,
    }


@pytest.mark.parametrize(
    ("role", "opens"),
    [
        ("viewer", {"read"}),
        ("submitter", {"read", "submit"}),
        ("operator", {"read", "submit", "resize"}),
        ("admin", {"read", "submit", "resize", "grant", "audit"}),
    ],
)
def test_each_role_opens_its_routes_in_its_project(here: Stage, role: str, opens: set[str]) -> None:
    job_id = here.submit(project="vision")
    here.user("bob")
    found = codes(here.user("ada", vision=role), job_id)
    assert {name for name, code in found.items() if code == 200} == opens
    assert {code for name, code in found.items() if name not in opens} == {403}


def test_who_has_no_role_in_a_project_does_not_learn_that_anything_of_it_is_there(here: Stage) -> None:
    job_id = here.submit(project="vision")
    absent = "job_" + "0" * 26
    ada = here.user("ada", speech="admin")
    walked = [(m, p) for m, p in paths(here.client.app.routes) if f"/jobs/{absent}" in p and "/api/" in p]  # type: ignore[attr-defined]
    assert len(walked) >= 11, walked
    for method, path in walked:
        if path.endswith(("/ingest", "/secrets")):  # a supervisor's alone
            assert ada.request(method, path, json={"attempt": 1}).status_code == 403
            continue
        there = ada.request(method, path.replace(absent, job_id), json={})
        not_there = ada.request(method, path, json={})
        assert (there.status_code, not_there.status_code) == (404, 404), (method, path)
        assert (
            there.text.replace(job_id, absent).partition('"request_id"')[0]
            == (not_there.text.partition('"request_id"')[0])
        )
    assert ada.get("/api/v1/jobs").json()["items"] == []
    for project in ("vision", "nowhere"):
        refused = ada.post("/api/v1/jobs", json={**SPEC, "project": project})
        assert (refused.status_code, refused.json()["detail"]) == (404, f"there is no project '{project}'.")
    assert here.state(job_id) == "queued"


def test_a_submitter_steers_their_own_jobs_and_nobody_elses(here: Stage) -> None:
    ada, bob = here.user("ada", vision="submitter"), here.user("bob", vision="submitter")
    job = ada.post("/api/v1/jobs", json={**SPEC, "project": "vision"}).json()
    assert job["owner"] == "ada"
    refused = bob.post(f"/api/v1/jobs/{job['id']}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "operator" in refused.json()["hint"]
    assert ada.post(f"/api/v1/jobs/{job['id']}/cancel").json()["reason"]["message"] == "cancelled by ada"
    assert bob.delete(f"/api/v1/jobs/{job['id']}").status_code == 403
    assert ada.delete(f"/api/v1/jobs/{job['id']}").status_code == 204


def test_the_list_holds_the_jobs_of_the_callers_projects(here: Stage) -> None:
    jobs = {project: here.submit(project=project) for project in ("vision", "speech", "text")}
    ada = here.user("ada", vision="viewer", text="admin")
    assert [j["project"] for j in ada.get("/api/v1/jobs").json()["items"]] == ["text", "vision"]
    assert ada.get("/api/v1/jobs?project=speech").json()["items"] == []
    assert [(p["name"], p["role"]) for p in ada.get("/api/v1/projects").json()["items"]] == [
        ("text", "admin"),
        ("vision", "viewer"),
    ]
    assert len(here.user("eve", every="viewer").get("/api/v1/jobs").json()["items"]) == len(jobs)


def test_a_job_begins_with_no_checkpoint_of_a_job_that_its_sender_may_not_read(here: Stage) -> None:
    theirs, hers, gone = (here.submit(project=project) for project in ("speech", "vision", "vision"))
    here.client.post(f"/api/v1/jobs/{gone}/cancel")
    here.client.delete(f"/api/v1/jobs/{gone}")
    ada = here.user("ada", vision="submitter")

    def begin(source: str) -> Any:
        return ada.post("/api/v1/jobs?dry_run=true", json={**SPEC, "project": "vision", "init_from": source})

    step = "step-000000000004-a1-g1"
    for job_id in (theirs, gone):
        for place in (f"{here.home}/checkpoints/", "file:///other/", "s3://bucket/a/../", "/home/%"):
            named = job_id if place[-1] == "/" else f"{ord('j'):x}{job_id[1:]}"
            answer = begin(f"{place}{named}/{step}")
            assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/init_from")
            assert "the ID of a job that you can read" in answer.json()["detail"]
    for source in (f"{here.home}/checkpoints/{hers}/{step}", f"s3://bucket/job_{'0' * 26}/{step}"):
        assert begin(source).status_code == 200, "her own project's, and that of another control plane"


def test_two_users_may_choose_the_same_idempotency_key(here: Stage) -> None:
    key = {"Idempotency-Key": "k"}
    first = here.client.post("/api/v1/jobs", json=SPEC, headers=key)
    ada = here.user("ada", default="submitter")
    other = ada.post("/api/v1/jobs", json={**SPEC, "seed": 3}, headers=key)
    assert (first.status_code, other.status_code) == (201, 201)
    assert first.json()["id"] != other.json()["id"]


def test_a_key_shows_its_job_no_longer_than_its_sender_may_read_it(here: Stage) -> None:
    key, body = {"Idempotency-Key": "k"}, {**SPEC, "project": "vision"}
    ada = here.user("ada", vision="submitter", speech="submitter")
    job_id = ada.post("/api/v1/jobs", json=body, headers=key).json()["id"]
    capped = here.holding(here.token(user="ada", scope={"speech": "submitter"}))
    here.client.put("/api/v1/users/ada/roles/vision", json={"role": "viewer"})
    assert ada.post("/api/v1/jobs", json=body, headers=key).json()["id"] == job_id
    here.client.delete("/api/v1/users/ada/roles/vision")
    for client in (ada, capped):
        again = client.post("/api/v1/jobs", json=body, headers=key)
        there = client.get(f"/api/v1/jobs/{job_id}")
        assert (again.status_code, again.json()["detail"]) == (404, there.json()["detail"])


def test_roles_are_given_and_taken_at_once_and_never_ones_own(here: Stage) -> None:
    job_id = here.submit(project="vision")
    bob = here.user("bob", speech="operator")
    ada = here.user("ada", vision="admin")
    assert bob.get(f"/api/v1/jobs/{job_id}").status_code == 404
    granted = ada.put("/api/v1/users/bob/roles/vision", json={"role": "viewer"})
    assert granted.json()["roles"] == {"vision": "viewer"}, "no word of a project that is not ada's"
    of_all = here.client.put("/api/v1/users/bob/roles/vision", json={"role": "viewer"})
    assert of_all.json()["roles"] == {"speech": "operator", "vision": "viewer"}
    assert bob.get(f"/api/v1/jobs/{job_id}").status_code == 200
    assert ada.put("/api/v1/users/bob/roles/*", json={"role": "viewer"}).status_code == 403
    assert ada.put("/api/v1/users/bob/roles/speech", json={"role": "viewer"}).status_code == 404
    assert ada.put("/api/v1/users/ada/roles/vision", json={"role": "viewer"}).json()["code"] == "own_rights"
    assert ada.delete("/api/v1/users/bob/roles/vision").status_code == 204
    assert bob.get(f"/api/v1/jobs/{job_id}").status_code == 404
    assert here.client.delete("/api/v1/users/admin").json()["code"] == "own_rights"


def test_a_disabled_user_opens_nothing_until_enabled(here: Stage) -> None:
    bob = here.user("bob", default="viewer")
    assert here.client.delete("/api/v1/users/bob").status_code == 204
    assert bob.get("/api/v1/me").status_code == 401
    assert here.client.post("/api/v1/tokens", json={"name": "x", "user": "bob"}).status_code == 404
    here.client.post("/api/v1/users/bob/enable")
    assert bob.get("/api/v1/me").json()["roles"] == {"default": "viewer"}


def test_a_user_without_a_role_opens_what_concerns_everybody_and_nothing_else(here: Stage) -> None:
    nobody = here.user("nobody")
    here.submit()
    opened = set()
    for method, path in paths(here.client.app.routes):  # type: ignore[attr-defined]
        if (method, path) in OPEN or method == "OPTIONS":
            continue
        body = {"json": {"name": "x"}} if method != "GET" else {}
        answer = nobody.request(method, path, follow_redirects=False, **body)  # type: ignore[arg-type]
        if answer.status_code not in (401, 403, 404, 405):
            opened.add((method, path.replace("job_" + "0" * 26, "ID"), answer.status_code))
    assert opened == {
        *(
            ("GET", path, 200)
            for path in (
                "/",
                "/submit",
                "/access",
                "/alerts",
                "/cluster",
                "/compare",
                "/jobs",
                "/jobs/ID",
                "/sweeps",
                "/sweeps/ID",
                "/api/v1/docs",
            )
        ),
        *(
            ("GET", f"/api/v1/{path}", 200)
            for path in ("me", "tokens", "projects", "secrets", "jobs", "jobs/facets", "cluster", "version")
        ),
        ("GET", "/api/v1/alerts", 200),  # none
        *((method, "/api/v1/openapi.json", 200) for method in ("GET", "HEAD")),
        # Free and used resources are told to all, jobs and projects only to those who may read them.
        *(("GET", f"/api/v1/cluster/{path}", 200) for path in ("occupancy", "history")),
        ("GET", "/api/v1/curves", 422),  # it asks of which jobs
        ("GET", "/api/v1/curves/report", 422),
        ("GET", "/api/v1/jobs/groups", 422),  # and by what
        ("GET", "/api/v1/sweeps", 200),
        ("GET", "/api/v1/healthz", 200),
        ("GET", "/guide", 308),
        ("POST", "/api/v1/tokens", 201),  # their own, worth as little as they are
        ("DELETE", "/api/v1/login", 204),
    }
    assert nobody.get("/api/v1/jobs").json()["items"] == []


def test_a_stream_ends_when_its_follower_may_not_follow_any_more(here: Stage) -> None:
    job_id = here.running(project="vision")
    here.user("ada", vision="viewer")
    allowed = [True]

    async def follow() -> tuple[bytes, list[bytes]]:
        feed = items(here.control, job_id, 0, here.control.feeds.events, lambda: allowed[0], ping_s=0.01)
        while (first := await anext(feed)) == PING:
            pass
        here.time.pass_s(31)
        assert await anext(feed) == PING, "who may still follow stays"
        allowed[0] = False
        here.time.pass_s(31)
        return first, [chunk async for chunk in feed if chunk != PING]

    first, rest = anyio.run(follow)
    assert [word in first for word in (b"job.queued", b"job.starting", b"job.running")] == [True] * 3
    assert rest == []


def test_whether_somebody_may_still_follow_is_asked_like_a_new_request(here: Stage) -> None:
    job_id = here.running(project="vision")
    ada = here.user("ada", vision="viewer")
    asked: list[Callable[[], bool]] = []
    app = here.client.app

    async def spying(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)  # type: ignore[operator]
        asked.append(_still(Request(scope), here.control, job_id))

    client = TestClient(spying, base_url=URL, headers=dict(ada.headers))
    assert client.get(f"/api/v1/jobs/{job_id}").status_code == 200
    assert asked[0]()
    here.client.delete("/api/v1/users/ada/roles/vision")
    assert not asked[0]()
    here.client.put("/api/v1/users/ada/roles/vision", json={"role": "viewer"})
    assert asked[0]()
    here.client.delete("/api/v1/users/ada")
    assert not asked[0]()


def test_a_user_follows_so_many_streams_at_once_and_no_more(tmp_path: Path) -> None:
    here = stage(tmp_path, streams_per_user=2)
    job_id = here.running()
    sse = {"Accept": "text/event-stream"}
    ends = [here.control.streams.begin("admin", job_id, filtered=False) for _ in range(2)]
    refused = here.client.get(f"/api/v1/jobs/{job_id}/events", headers=sse)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    assert here.client.get(f"/api/v1/jobs/{job_id}/events").status_code == 200, "pages are no streams"
    for end in ends:
        end()
    assert here.control.streams.open_of("admin") == 0

    scope = {
        "type": "http", "method": "GET", "path": f"/api/v1/jobs/{job_id}/logs", "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"accept", b"text/event-stream"),
                    (b"authorization", here.client.headers["authorization"].encode())],
    }  # fmt: skip

    begun = []

    async def gone(message: dict[str, Any]) -> None:
        begun.append(message["status"])
        raise ConnectionError

    async def silent() -> None:
        await anyio.sleep_forever()

    for query in (b"", b"text=a", b"after=%00"):
        with suppress(Exception):
            anyio.run(here.client.app, {**scope, "query_string": query}, silent, gone)
        assert here.control.streams.open_of("admin") == 0, "nobody was there any more when it began"
    assert begun == [200, 200, 422]


def test_a_stream_counts_from_the_question_on_and_those_of_chosen_lines_are_fewer(tmp_path: Path) -> None:
    here = stage(tmp_path, streams_per_user=FILTERED + 2)
    jobs = [here.running(workers={"min": 1, "max": 1}) for _ in range(2)]
    who = Caller("ada", {}, {}, None, None)

    async def ask(job_id: str, text: str | None) -> Response:
        request = Request({"type": "http", "headers": [], PRINCIPAL: who})
        read = partial(here.control.feeds.logs, wanted=Wanted(text=text))
        return await stream(request, here.control, job_id, 0, read, filtered=text is not None)

    async def asked() -> list[bool]:
        """Which are answered; none is read."""
        found = []
        for job_id, text in [
            *[(jobs[0], str(n)) for n in range(FILTERED + 1)],
            (jobs[1], "a"),
            *[(jobs[0], None)] * 2,
        ]:
            try:
                await ask(job_id, text)
                found.append(True)
            except TooMany:
                found.append(False)
        return found

    assert anyio.run(asked) == [*[True] * FILTERED, False, True, True, False]
