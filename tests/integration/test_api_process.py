"""The control plane as a real process and server: durable through SIGKILL, followed live, ended cleanly."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from control_plane import RESULT, SPEC, FakeCluster, line, outcome, status
from ports import free_port
from waiting import wait_for

from ringleader_api.app import create_app
from ringleader_api.settings import Settings

HANG_S = 60.0


@contextmanager
def process(home: Path, **environ: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """`python -m ringleader_api` without a cluster, and a client with its token."""
    address = f"127.0.0.1:{free_port()}"  # nobody listens there
    env = {**os.environ, "RINGLEADER_HOME": str(home), "RINGLEADER_RAY_ADDRESS": address, **environ}
    log = home.parent / "api.log"
    with log.open("ab") as stderr:
        api = subprocess.Popen(
            [sys.executable, "-m", "ringleader_api"], env=env, stdout=subprocess.PIPE, stderr=stderr
        )
    try:
        assert api.stdout is not None
        told = api.stdout.readline()
        assert told, log.read_text()[-2000:]
        url = json.loads(told)["url"]
        headers = {"Authorization": f"Bearer {(home / 'token').read_text()}"}
        with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=HANG_S) as client:
            yield api, client
    finally:
        api.kill()
        api.wait(timeout=HANG_S)
        assert api.stdout is not None
        api.stdout.close()


def test_an_accepted_job_survives_sigkill_and_the_same_port_comes_back(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with process(home) as (api, client):
        job = client.post("/api/v1/jobs", json=SPEC, headers={"Idempotency-Key": "once"}).json()
        api.send_signal(signal.SIGKILL)
        first = client.base_url
    with process(home) as (_, client):
        assert client.base_url == first, "supervisors that outlived the process still post there"
        again = client.post("/api/v1/jobs", json=SPEC, headers={"Idempotency-Key": "once"})
        assert (again.status_code, again.json()["id"]) == (200, job["id"])


@pytest.mark.parametrize("left", [b"", b"\0\0\0\0", b"99999", b"-1", b"4711x", "４".encode()])
def test_a_port_that_a_power_cut_has_torn_is_none(tmp_path: Path, left: bytes) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "port").write_bytes(left)
    with process(home) as (_, client):
        assert client.get("/healthz").status_code == 200
        assert int((home / "port").read_text()) == client.base_url.port
    assert "Traceback" not in (tmp_path / "api.log").read_text()


def test_without_a_cluster_jobs_wait_and_the_process_says_what_is_missing(tmp_path: Path) -> None:
    with process(tmp_path / "home") as (_, client):
        job = client.post("/api/v1/jobs", json=SPEC).json()
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503
        assert client.get(f"/api/v1/jobs/{job['id']}").json()["state"] == "queued"


def test_sigterm_ends_the_process_although_a_stream_is_open(tmp_path: Path) -> None:
    with process(tmp_path / "home") as (api, client):
        job = client.post("/api/v1/jobs", json=SPEC).json()
        stream = {"Accept": "text/event-stream"}
        with client.stream("GET", f"/api/v1/jobs/{job['id']}/events", headers=stream) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            api.send_signal(signal.SIGTERM)
            for _ in lines:
                pass
        assert api.wait(timeout=HANG_S) == 0
    assert "Traceback" not in (tmp_path / "api.log").read_text()


def test_a_process_that_would_bind_beyond_loopback_refuses_to_start(tmp_path: Path) -> None:
    env = {**os.environ, "RINGLEADER_HOME": str(tmp_path), "RINGLEADER_HOST": "0.0.0.0"}
    ended = subprocess.run(
        [sys.executable, "-m", "ringleader_api"],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert ended.returncode == 2
    assert "RINGLEADER_ALLOW_REMOTE" in ended.stderr
    env |= {"RINGLEADER_ALLOW_REMOTE": "true", "RINGLEADER_PUBLIC_URL": "https://ringleader.test"}
    ended = subprocess.run(
        [sys.executable, "-m", "ringleader_api"],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "authentication is not set up" in ended.stderr
    assert list(tmp_path.iterdir()) == [], "a token that nobody knows was made"
    assert "Traceback" not in ended.stderr


class Live:
    """A served application over a cluster in memory, its threads running."""

    def __init__(self, home: Path, tick_s: float = 0.1) -> None:
        self.cluster = FakeCluster()
        port = free_port()
        app = create_app(Settings(home=home, port=port, tick_s=tick_s), self.cluster)
        self._server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
        self._thread = threading.Thread(target=self._server.run)
        headers = {"Authorization": f"Bearer {(home / 'token').read_text()}"}
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False, timeout=HANG_S
        )

    def __enter__(self) -> "Live":
        self._thread.start()
        wait_for("server", lambda: self._server.started)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join(HANG_S)

    def post(self, job_id: str, **body: Any) -> None:
        launch = self.cluster.alive[job_id, 1]
        assert launch.ingest_url.endswith(f"/api/v1/jobs/{job_id}/ingest")
        headers = {"Authorization": f"Bearer {launch.ingest_token}"}
        httpx.post(
            launch.ingest_url,
            json={"attempt": 1, **body},
            headers=headers,
            trust_env=False,
            timeout=HANG_S,
        ).raise_for_status()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path) as running:
        yield running


def follow(
    live: Live, path: str, into: list[dict[str, Any]], stop_after: int = 1 << 30, resume: int = 0
) -> None:
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": str(resume)} if resume else {})}
    with live.client.stream("GET", path, headers=headers) as answer:
        for row in answer.iter_lines():
            if row.startswith("data: "):
                into.append(json.loads(row.removeprefix("data: ")))
            if len(into) >= stop_after:
                return


def test_a_submitted_job_starts_at_once(tmp_path: Path) -> None:
    """Long before the next tick."""
    with Live(tmp_path, tick_s=3600.0) as live:
        job = live.client.post("/api/v1/jobs", json=SPEC).json()
        wait_for("supervisor", lambda: (job["id"], 1) in live.cluster.alive)


def test_a_follower_waits_from_the_queue_to_the_end_and_resumes_in_between(live: Live) -> None:
    hog = live.client.post("/api/v1/jobs", json={**SPEC, "workers": {"min": 4, "max": 4}}).json()["id"]
    wait_for("first job", lambda: (hog, 1) in live.cluster.alive)
    job_id = live.client.post("/api/v1/jobs", json=SPEC).json()["id"]
    events: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    followers = [
        threading.Thread(target=follow, args=(live, f"/api/v1/jobs/{job_id}/events", events)),
        threading.Thread(target=follow, args=(live, f"/api/v1/jobs/{job_id}/logs", lines)),
    ]
    for follower in followers:
        follower.start()
    wait_for("event while queued", lambda: events)
    live.post(hog, records=[outcome(1, "succeeded", result=RESULT)])
    wait_for("second job", lambda: (job_id, 1) in live.cluster.alive)
    live.post(job_id, status=status("running"), records=[line(1, "hello")])
    wait_for("line", lambda: lines)
    assert all(f.is_alive() for f in followers)
    live.post(job_id, records=[line(2, "bye"), outcome(1, "succeeded", result=RESULT)])
    for follower in followers:
        follower.join(HANG_S)
        assert not follower.is_alive(), "a stream ends with its job"
    assert [e["type"] for e in events] == [
        "job.queued", "job.starting", "job.running", "job.stopping", "job.succeeded",
    ]  # fmt: skip
    assert [item["line"] for item in lines] == ["hello", "bye"]
    part: list[dict[str, Any]] = []
    follow(live, f"/api/v1/jobs/{job_id}/events", part, stop_after=2)
    follow(live, f"/api/v1/jobs/{job_id}/events", part, resume=part[-1]["seq"])
    assert part == events


def test_many_at_once_are_all_stored_and_none_twice(live: Live) -> None:
    """26 submissions at the same time, each key twice."""
    answers: list[tuple[int, str]] = []

    def submit(n: int) -> None:
        key = {"Idempotency-Key": f"k{n % 13}"}
        body = {**SPEC, "name": f"n{n % 13}", "workers": {"min": 1, "max": 1}}
        answer = live.client.post("/api/v1/jobs", json=body, headers=key)
        answers.append((answer.status_code, answer.json()["id"]))

    threads = [threading.Thread(target=submit, args=(n,)) for n in range(26)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert sorted(code for code, _ in answers) == [200] * 13 + [201] * 13
    assert len({job_id for _, job_id in answers}) == 13
    assert len(live.cluster.starts) == len(set(live.cluster.starts))
