"""One request keeps nobody else waiting: rights before bodies, bodies within limits, and refusals that are small."""

import asyncio
import json
import socket
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from control_plane import SPEC, URL, Stage, metric, no_pause, stage
from test_api_guard import paths, stranger

from ringleader.errors import FINDINGS_TOLD, SpecInvalid
from ringleader.spec import JobSpec
from ringleader_api.edge import body_limit
from ringleader_api.routes.bodies import bodies
from ringleader_api.routes.bodies.duplicate_keys import named_twice

MIB = 1 << 20
NOBODYS_OWN = {("POST", "/api/v1/login"), ("POST", "/api/v1/tokens")}
"""What is read of strangers, and of users without a role."""


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path, mlflow_url="http://127.0.0.1:9/mlflow")


class Request:
    """A request as the server hands it over; `asked` counts how often its body was asked for."""

    def __init__(self, method: str, path: str, token: str = "", length: int = 10, query: bytes = b"") -> None:
        told = {"content-type": "application/json", "content-length": str(length), "host": URL.split("//")[1]}
        told |= {"authorization": f"Bearer {token}"} if token else {}
        self.scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": query, "root_path": "", "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in told.items()],
            "client": ("192.0.2.1", 5000), "server": ("127.0.0.1", 80), "state": {},
        }  # fmt: skip
        self.asked = 0
        self.told: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        self.asked += 1
        return await asyncio.get_running_loop().create_future()  # the body never comes

    async def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    def answered_by(self, app: Any) -> int:
        anyio.run(app, self.scope, self.receive, self.send)
        return int(self.told[0]["status"])


def test_nobodys_body_is_read_before_their_right_to_the_route_is_known(here: Stage) -> None:
    here.submit()
    nobody = here.user("nobody").headers["Authorization"].removeprefix("Bearer ")
    app: Any = here.client.app
    walked = {(m, p) for m, p in paths(app.routes) if m in ("POST", "PUT", "PATCH")}
    assert len(walked) > 15
    for method, path in sorted(walked - NOBODYS_OWN):
        for token, refusals in (("", {401}), (nobody, {403, 404, 405})):
            request = Request(method, path, token)
            assert request.answered_by(app) in refusals, (method, path)
            assert request.asked == 0, (method, path, "their body was asked for")


def test_only_the_ingest_of_a_job_takes_the_large_body_of_one(here: Stage) -> None:
    token = here.client.headers["Authorization"].removeprefix("Bearer ")
    for method, path in (
        ("PATCH", "/api/v1/jobs/ingest"),
        ("PUT", "/api/v1/secrets/p/ingest"),
        ("PATCH", "/api/v1/projects/ingest"),
        ("POST", "/api/v1/jobs/x/ingest"),
        ("POST", "/api/v1/jobs"),
    ):
        assert Request(method, path, token, length=MIB + 1).answered_by(here.client.app) == 413, path
    job_id = here.running()
    values = {f"name{n}" * 40: 0.5 for n in range(6000)}
    records = [metric(1, 1, **values)]
    assert len(json.dumps(records)) > MIB
    here.post(job_id, records=records)


@pytest.mark.parametrize(
    ("method", "path", "limit"),
    [
        ("PUT", "projects/default/alerts/x", 32 << 10),
        ("POST", "projects", 32 << 10),
        ("PUT", "users/ann/roles/default", 32 << 10),
        ("POST", "jobs/job_01J00000000000000000000000/faults", 32 << 10),
        ("PATCH", "jobs/job_01J00000000000000000000000", MIB),
        ("POST", "sweeps", MIB),
        ("PUT", "secrets/default/KEY", MIB),
    ],
)
def test_what_the_event_loop_checks_is_small(here: Stage, method: str, path: str, limit: int) -> None:
    here.submit()
    token = here.client.headers["Authorization"].removeprefix("Bearer ")
    request = Request(method, f"/api/v1/{path}", token, length=limit + 1)
    assert request.answered_by(here.client.app) == 413
    assert f"{limit} bytes" in json.loads(request.told[1]["body"])["detail"]


def test_a_log_in_is_small_and_a_form_of_few_fields(here: Stage) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for body, status in ((b"a=1&" * 3000, 413), (b"a=1&" * 100, 422), (b"token=x", 401)):
        answer = stranger(here).post("/api/v1/login", content=body, headers=form)
        assert answer.status_code == status, body[:20]


def test_the_allowance_of_an_address_is_taken_before_the_body_of_its_log_in_is_read(here: Stage) -> None:
    there: list[bool] = []

    class Late(Request):
        async def receive(self) -> dict[str, Any]:
            there.append("192.0.2.1" in here.control.tried._left)
            return {"type": "http.request", "body": b'{"token": "x"}'}

    assert Late("POST", "/api/v1/login", length=14).answered_by(here.client.app) == 401
    assert there == [True]


def test_a_right_token_opens_also_behind_a_flood_of_its_own_address(
    tmp_path: Path,
) -> None:
    here = stage(tmp_path, pause=no_pause)
    while here.control.tried.take("testclient") == 0:
        pass
    right = {"token": (here.home / "token").read_text()}
    assert stranger(here).post("/api/v1/login", json=right).status_code == 204


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/v1/jobs"), ("POST", "/api/v1/login"), ("GET", "/login/oidc/callback?state=x")],
    ids=["a list", "a log-in", "back from the provider"],
)
def test_a_strangers_cookies_are_read_in_no_time_however_they_are_quoted(
    here: Stage, method: str, path: str
) -> None:
    anybody = stranger(here)
    name = here.control.credentials.cookie
    odd = "\\101" * 10_000
    told = {"Cookie": f'a="{odd}"; {name}="{odd}"; {name}_login="x"', "Origin": URL}
    begun = time.process_time()
    assert anybody.request(method, path, headers=told).status_code in (401, 403, 404, 422)
    assert time.process_time() - begun < 3, "it took the one core for seven seconds"


@pytest.mark.parametrize("path", ["/api/v1/login", "/api/v1/jobs"])
def test_a_body_that_does_not_go_on_is_given_up_and_its_connection_closed(
    here: Stage, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(body_limit, "TURN_S", 0.01)
    app = stage(here.home).client.app
    token = here.client.headers["Authorization"].removeprefix("Bearer ")
    request = Request("POST", path, token)
    assert request.answered_by(app) == 408
    assert (b"connection", b"close") in [(k.lower(), v) for k, v in request.told[0]["headers"]]


MOST_BYTES = 64 << 20
PACKAGE = f"/api/v1/packages/{'0' * 64}"
DRIBBLED = {
    "a log-in": ("POST", "/api/v1/login", 8000),
    "a job": ("POST", "/api/v1/jobs", 8000),
    "records": ("POST", f"/api/v1/jobs/job_{'0' * 26}/ingest", 1 << 20),
    "an upload": ("PUT", PACKAGE, 8000),
    "a large upload": ("PUT", PACKAGE, MOST_BYTES),
    "an upload of any size": ("PUT", PACKAGE, None),
    "to MLflow": ("POST", "/mlflow/ajax-api/2.0/mlflow/runs/log-batch", MOST_BYTES),
    "of any size to MLflow": ("POST", "/mlflow/ajax-api/2.0/mlflow/runs/log-batch", None),
}


class Clock:
    """A clock of seconds that stands until a request's body moves it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Dribbled(Request):
    """A body of `at_once` bytes, and then a byte each `EVERY_S`."""

    EVERY_S = 0.1

    def __init__(
        self, method: str, path: str, token: str, length: int | None, clock: Clock, at_once: int = 1
    ) -> None:
        super().__init__(method, path, token, length or 0)
        self._clock = clock
        if length is None:
            told = [name for name in self.scope["headers"] if name[0] != b"content-length"]
            self.scope["headers"] = [*told, (b"transfer-encoding", b"chunked")]
        self._at_once = at_once

    async def receive(self) -> dict[str, Any]:
        self.asked += 1
        self._clock.now += self.EVERY_S
        await asyncio.sleep(0)
        return {"type": "http.request", "body": self._next(), "more_body": self.asked < 8000}

    def _next(self) -> bytes:
        return b"[" * (self._at_once if self.asked == 1 else 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which the waits for bodies are measured."""
    clock = Clock()
    monkeypatch.setattr(body_limit, "current_time", clock)
    return clock


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Before an MLflow that reads whatever it is sent; a piece of any body has to come in ten seconds."""
    monkeypatch.setattr(body_limit, "UPLOAD_TURN_S", body_limit.TURN_S)
    with socket.create_server(("127.0.0.1", 0)) as mlflow:
        url = f"http://127.0.0.1:{mlflow.getsockname()[1]}/mlflow"
        here = stage(tmp_path, mlflow_url=url)
        # Which the application makes at its start, on the event loop of then.
        here.client.app.state.mlflow = httpx.AsyncClient(base_url=url, trust_env=False)  # type: ignore[attr-defined]
        yield here


def bearer(here: Stage) -> str:
    return str(here.client.headers["Authorization"]).removeprefix("Bearer ")


@pytest.mark.parametrize(("method", "path", "length"), DRIBBLED.values(), ids=DRIBBLED)
def test_a_body_that_comes_byte_by_byte_is_given_up_whatever_was_announced(
    short: Stage, clock: Clock, method: str, path: str, length: int | None
) -> None:
    """A bound by the largest size allowed let whoever announced nothing dribble for hours."""
    token = short.cluster.alive[short.running(), 1].ingest_token if "ingest" in path else bearer(short)
    if "ingest" in path:
        path = path.replace("job_" + "0" * 26, next(iter(short.cluster.alive))[0])
    request = Dribbled(method, path, token, length, clock)
    assert request.answered_by(short.client.app) == 408
    assert 1 < request.asked <= 101
    told = json.loads(request.told[1]["body"])
    assert told["code"] == "request_timeout"
    assert told["detail"].endswith("in 10 s; expected are 163840 bytes, or all that is left of it")
    assert (b"connection", b"close") in [(k.lower(), v) for k, v in request.told[0]["headers"]]


def test_what_came_fast_earns_no_time_to_dribble(short: Stage, clock: Clock) -> None:
    request = Dribbled("PUT", PACKAGE, bearer(short), MOST_BYTES, clock, at_once=32 << 20)
    assert request.answered_by(short.client.app) == 408
    assert 1 < request.asked <= 102


@pytest.mark.parametrize("length", [8000 * 2000, None], ids=["announced", "of any size"])
def test_a_slow_link_that_keeps_sending_has_its_upload_taken(
    short: Stage, clock: Clock, length: int | None
) -> None:
    """200 KB a second, for eight times as long as a piece may take."""

    class Slow(Dribbled):
        EVERY_S = 0.01

        def _next(self) -> bytes:
            return b"x" * 2000

    request = Slow("PUT", PACKAGE, bearer(short), length, clock)
    assert request.answered_by(short.client.app) == 422, "another hash: all of it was read"
    assert request.asked == 8000
    assert clock.now == pytest.approx(80)


def wrong_bodies() -> list[tuple[str, str]]:
    unknown = json.dumps({**SPEC, **{f"key{n}": n for n in range(50_000)}})
    twice = '{"name": "a", ' + ", ".join(['"k": 1'] * 100_000) + "}"
    inside = json.dumps({**SPEC, "params": {f"key{n}": "\ud800" for n in range(20_000)}})
    token = json.dumps({"name": "ci", **{f"k{n}": 1 for n in range(300)}})
    return [("jobs", unknown), ("jobs", twice), ("jobs", inside), ("tokens", token)]


@pytest.mark.parametrize(
    ("route", "body"), wrong_bodies(), ids=["unknown", "twice", "surrogates", "by FastAPI"]
)
def test_of_many_findings_the_first_are_told_and_the_rest_is_counted(
    here: Stage, route: str, body: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = here.client.post(f"/api/v1/{route}", content=body.encode(), headers=headers)
    told = answer.json()
    assert (answer.status_code, len(told["errors"])) == (422, FINDINGS_TOLD)
    left = [f"… and {count - FINDINGS_TOLD:,} more" for count in (50_000, 99_999, 20_000, 300)]
    assert any(words in told["detail"] for words in left)
    assert len(answer.content) < 32_000


MANY = 10_000
AROUND = [
    ('{"params": {"' + "k" * 20_000 + '": [', "]}}"),
    ('{"params": ' + '{"a": ' * 200 + "[", "]" + "}" * 201),
]


@pytest.mark.parametrize(("head", "tail"), AROUND, ids=["a long key", "deep"])
@pytest.mark.parametrize("part", ["0", "NaN", '"\\ud800"', "{}"])
def test_how_deep_a_body_nests_does_not_multiply_with_how_much_it_holds(
    head: str, tail: str, part: str
) -> None:
    body = f"{head}{', '.join([part] * MANY)}{tail}".encode()
    tracemalloc.start()
    try:
        assert not named_twice(body).findings
        with suppress(SpecInvalid):
            JobSpec.parse({**SPEC, **json.loads(body)})
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_keys_that_come_again_below_a_long_one_are_counted_without_their_places() -> None:
    again = ", ".join(['"a": 0'] * MANY)
    tracemalloc.start()
    try:
        found = named_twice(f'{{"{"k" * 20_000}": [{{{again}}}]}}'.encode())
        assert (len(found.findings), found.rest) == (
            FINDINGS_TOLD,
            f"; … and {MANY - 1 - FINDINGS_TOLD:,} more",
        )
        assert found.findings[0]["pointer"] == f"/{'k' * 20_000}/0/a"
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_an_entrypoint_is_as_long_as_a_path_may_be_before_anything_reads_it() -> None:
    begun = time.process_time()
    for entrypoint in ("a." * 300_000 + ":f", "a" * 600_000, "'" + "a" * 600_000):
        with pytest.raises(SpecInvalid, match="module:function"):
            JobSpec.parse({**SPEC, "entrypoint": entrypoint})
    assert time.process_time() - begun < 5, "it took 20 seconds of a core"


@pytest.mark.parametrize(
    "value",
    ["x" * 900_000, ["x" * 9] * 60_000, {f"k{n}": [n] * 9 for n in range(9000)}],
    ids=["a text", "a list", "a mapping"],
)
def test_of_a_large_value_no_more_is_told_back_than_one_reads(here: Stage, value: object) -> None:
    answers = [here.client.post("/api/v1/jobs", json={**SPEC, key: value}) for key in ("seed", "sead")]
    assert [answer.status_code for answer in answers] == [422, 422]
    assert max(len(answer.content) for answer in answers) < 32_000
    assert "…" in answers[1].text


def test_a_small_value_is_told_back_as_it_was_sent(here: Stage) -> None:
    value = {"a": [1, {"b": None}], "c": "text"}
    told = here.client.post("/api/v1/jobs", json={**SPEC, "sead": value}).json()
    assert told["errors"][0]["value"] == value


def test_a_long_body_is_looked_through_beside_the_event_loop() -> None:
    def turns(body: bytes) -> int:
        count = 0

        async def others() -> None:
            nonlocal count
            while True:
                await asyncio.sleep(0)
                count += 1

        async def look() -> None:
            beside = asyncio.create_task(others())
            await asyncio.sleep(0)
            await bodies._twice(body)
            beside.cancel()

        anyio.run(look)
        return count

    assert turns(json.dumps({f"key{n}": n for n in range(50_000)}).encode()) > 0
    assert turns(b"{}") == 0, "a thread would cost more than it"


def test_a_refused_job_file_says_how_much_more_is_wrong_also_on_the_command_line() -> None:
    with pytest.raises(SpecInvalid) as refused:
        JobSpec.parse({**SPEC, **{f"key{n}": n for n in range(100)}})
    assert len(refused.value.errors) == FINDINGS_TOLD
    assert str(refused.value).endswith("; … and 80 more")
    assert "unknown key 'key19'" in str(refused.value)
    assert "unknown key 'key20'" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "query"),
    [("#", b""), ("api/2.0/mlflow/runs/search", b"a=#"), ("", b"a=" + b"b" * 70_000), ("", b"a=\x7f")],
    ids=["fragment", "fragment behind a query", "long", "unprintable"],
)
def test_an_address_of_mlflow_that_is_none_is_refused(here: Stage, path: str, query: bytes) -> None:
    app: Any = here.client.app
    app.state.mlflow = httpx.AsyncClient(base_url="http://127.0.0.1:9/mlflow")
    token = here.client.headers["Authorization"].removeprefix("Bearer ")
    assert Request("GET", f"/mlflow/{path}", token, length=0, query=query).answered_by(app) in (400, 404)
