"""What of MLflow passes the proxy: tracking, and nothing beside it, whatever this version serves."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from threading import Thread

import pytest
from control_plane import URL, stage
from fastapi.testclient import TestClient

from ringleader.client.unix_socket import LONGEST, ClientRoute, unix_url
from ringleader_api.tracking import admitted

LOOKED_AT = Path(__file__).with_name("mlflow_routes.txt")
"""The routes that were looked at and are let through. A line for each: methods, path."""
WALK = """
import json, os
from mlflow.server import app as pages
from mlflow.server.fastapi_app import app

def walk(routes, prefix=""):
    for route in routes:
        if hasattr(route, "original_router"):  # as FastAPI keeps an included router
            yield from walk(route.original_router.routes, prefix + route.include_context.prefix)
        elif hasattr(route, "methods"):
            yield sorted(route.methods or []), prefix + route.path
        elif getattr(route, "path", None) or not hasattr(route, "app"):
            raise TypeError(f"{route}: a kind of route that this test cannot walk")

found = list(walk(app.routes))
found += [(sorted(rule.methods or []), rule.rule) for rule in pages.url_map.iter_rules()]
print(json.dumps(found))
"""
CLOSED = (
    "assistant",
    "gateway",
    "webhooks",
    "jobs",
    "invoke",
    "mcp",
    "scorer",
    "promptlab",
    "demo",
    "telemetry",
)


def routes_of_mlflow() -> list[tuple[list[str], str]]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("_MLFLOW")}
    walked = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WALK],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert walked.returncode == 0, walked.stderr
    return [(methods, path) for methods, path in json.loads(walked.stdout)]


def test_every_route_of_this_mlflow_that_is_let_through_was_looked_at() -> None:
    routes = routes_of_mlflow()
    assert len(routes) > 300, "the walk misses routes"
    assert any("/assistant/" in path for _, path in routes), "the walk misses the routers beside the page"
    through = [(methods, path) for methods, path in routes if admitted(path.removeprefix("/"))]
    said = sorted({f"{','.join(m for m in methods if m not in _ASKS)} {path}" for methods, path in through})
    assert said == LOOKED_AT.read_text(encoding="utf-8").splitlines(), (
        "MLflow serves something else below the paths that the proxy lets through: look at what it does, then "
        f"note it in {LOOKED_AT.name}, or close it in tracking/admitted.py"
    )
    assert [path for path in said if any(word in path for word in CLOSED)] == []


_ASKS = {"HEAD", "OPTIONS"}


@pytest.mark.parametrize(
    "path",
    [
        "ajax-api/3.0/mlflow/assistant/config",
        "api/2.0/mlflow/runs/../../../../ajax-api/3.0/mlflow/assistant/message",
        "api/2.0/mlflow/runs/%2e%2e/%2e%2e/%2e%2e/%2e%2e/ajax-api/3.0/mlflow/assistant/message",
        "api/2.0/mlflow/runs/%252e%252e/%252e%252e/3.0/mlflow/assistant/message",
        "api/2.0/mlflow/runs/..%2f..%2f3.0/mlflow/assistant/message",
        "static-files/..%2fajax-api/3.0/mlflow/assistant/message",
        "static-files/..\\ajax-api\\3.0\\mlflow\\assistant",
        "//ajax-api/3.0/mlflow/assistant/message",
        "api/2.0/mlflow//runs/search",
        "AJAX-API/2.0/mlflow/runs/search",
        "api/2.0/mlflow/runs/search#/assistant",
        "api/2.0/mlflow/runs/create-promptlab-run",
        "gateway/chat/mlflow/invocations",
        "v1/traces",
        "build/index.js",
        "api/4.0/mlflow/runs/search",
    ],
)
def test_no_spelling_of_a_path_leads_out_of_tracking(path: str) -> None:
    assert not admitted(path)


@dataclass
class Listening:
    """Something that stands in for MLflow on a socket, and what it was asked."""

    socket: Path
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return unix_url(self.socket, "/mlflow")


class _Threaded(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    here = Listening(tmp_path / "mlflow.sock")

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            here.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        do_POST = do_GET

        def address_string(self) -> str:
            return ""

        def log_message(self, *_: object) -> None: ...

    with _Threaded(str(here.socket), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield here
        server.shutdown()
        thread.join()


def test_who_may_see_everything_reaches_the_records_and_no_assistant(
    tmp_path: Path, listening: Listening
) -> None:
    here = stage(tmp_path / "home", mlflow_url=listening.url)
    with here.client:
        assert here.client.get("/mlflow/").text == "ok"
        for path in ("assistant/config", "assistant/sessions/1/stream", "gateway/endpoints/list"):
            refused = here.client.get(f"/mlflow/ajax-api/3.0/mlflow/{path}")
            assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
        assert here.client.get("/mlflow/api/2.0/mlflow/runs/get?run_id=1").text == "ok"
    assert [path for path, _ in listening.asked] == ["/mlflow/", "/mlflow/api/2.0/mlflow/runs/get?run_id=1"]


def test_mlflow_is_told_who_asks_truly_and_never_our_credential(tmp_path: Path, listening: Listening) -> None:
    here = stage(tmp_path / "home", mlflow_url=listening.url)
    lies = {
        "X-Forwarded-For": "127.0.0.1",
        "X-Forwarded-Proto": "gopher",
        "X-Real-IP": "::1",
        "Forwarded": "for=::1",
    }
    far = TestClient(here.client.app, base_url=URL, headers=here.client.headers, client=("203.0.113.9", 4711))
    with here.client:
        assert far.get("/mlflow/graphql", headers=lies).status_code == 200
    ((_, told),) = listening.asked
    assert told["x-forwarded-for"] == "203.0.113.9"
    assert {"authorization", "cookie", "x-forwarded-proto", "x-real-ip", "forwarded"} & told.keys() == set()


def test_a_socket_is_reached_however_deep_it_lies(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * LONGEST)
    deep.mkdir()
    way = ClientRoute.to(unix_url(deep / "a b.sock", "/mlflow"))
    assert way.url == "http://localhost/mlflow"
    assert way.uds is not None
    assert len(way.uds) <= LONGEST
    (deep / "a b.sock").touch()
    assert Path(way.uds).samefile(deep / "a b.sock")


def test_a_server_on_the_network_is_asked_there() -> None:
    assert ClientRoute.to("https://mlflow.example/prefix") == ClientRoute(
        "https://mlflow.example/prefix", None
    )
