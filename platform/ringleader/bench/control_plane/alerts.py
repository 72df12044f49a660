"""Alerts from the event to the webhook, in the ordinary case and over SIGKILLs of the control plane."""

import http.client
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ringleader.bench.broken import PeerFailed
from ringleader.bench.control_plane.assault import MortalPlane, free_port
from ringleader.bench.control_plane.crowd import KeptConnection

ORDINARY = 20
"""Alerts of which the time is taken, before anything is killed."""
LIVES_S = (0.05, 1.0)
ARRIVE_S = 120.0
RULE = "/api/v1/projects/default/alerts/cancelled"
KEY = "a-key-of-the-benchmark"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What reached the webhook.

    Attributes:
        took_s: of each ordinary one, the seconds from the request that causes it.
        arrived: of those raised under kills, how many came at least once.
        doubles: posts beyond the first of each.
        foreign: doubles under another id than the first: a receiver could not drop them.
    """

    took_s: list[float]
    arrived: int
    doubles: int
    foreign: int


class _Webhook:
    """Notes when it was posted which job's alert, and under which id."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.came = threading.Condition()
        self.posts: dict[str, list[tuple[float, str]]] = defaultdict(list)

    def take(self, body: bytes) -> None:
        told = json.loads(body)
        with self.came:
            self.posts[told["job"]["id"]].append((time.perf_counter(), told["id"]))
            self.came.notify_all()

    def wait_for(self, job_ids: set[str]) -> None:
        """Wait until each came. Raises PeerFailed where one does not."""
        with self.came:
            if not self.came.wait_for(lambda: job_ids <= self.posts.keys(), ARRIVE_S):
                missing = len(job_ids - self.posts.keys())
                raise PeerFailed(f"{missing} of {len(job_ids)} alerts did not arrive within {ARRIVE_S:g} s.")


def alerts_over_kills(
    home: Path, alerts: int, kills: int, seed: int, *, ordinary: int = ORDINARY
) -> Arrivals:
    """Raise so many alerts, each of a job that is cancelled, while the control plane is killed and comes back.

    Raises:
        PeerFailed: an alert did not arrive.
    """
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    with _webhook() as hook:
        plane = MortalPlane(home, "", free_port(), alert_hosts="127.0.0.0/8")
        try:
            plane.live()
            took_s = _ordinary(plane, hook, ordinary)
            jobs = _submitted(plane, alerts)
            cancelling = threading.Thread(target=_cancel_all, args=(plane, jobs), daemon=True)
            cancelling.start()
            for _ in range(kills):
                time.sleep(draw.uniform(*LIVES_S))
                plane.kill()
                plane.live()
            cancelling.join(ARRIVE_S)
            hook.wait_for(set(jobs))
        finally:
            plane.end()
        posts = [hook.posts[job_id] for job_id in jobs]
    return Arrivals(
        took_s=took_s,
        arrived=sum(bool(of_job) for of_job in posts),
        doubles=sum(len(of_job) - 1 for of_job in posts),
        foreign=sum(one != of_job[0][1] for of_job in posts for _, one in of_job),
    )


def _ordinary(plane: MortalPlane, hook: _Webhook, count: int) -> list[float]:
    took_s = []
    with _caller(plane) as caller:
        caller.submit()
        caller.call("PUT", "/api/v1/secrets/default/HOOK", {"value": KEY})
        channels = [{"webhook": hook.url, "secret": "HOOK"}]
        status, told = caller.call("PUT", RULE, {"when": {"state": "cancelled"}, "channels": channels})
        if status != 200:
            raise PeerFailed(f"the rule was answered with {status}: {told}")
        for _ in range(count):
            job_id = caller.submit()
            began = time.perf_counter()
            caller.call("POST", f"/api/v1/jobs/{job_id}/cancel")
            hook.wait_for({job_id})
            took_s.append(hook.posts[job_id][0][0] - began)
    return took_s


def _submitted(plane: MortalPlane, count: int) -> list[str]:
    with _caller(plane) as caller:
        return [caller.submit() for _ in range(count)]


def _cancel_all(plane: MortalPlane, jobs: list[str]) -> None:
    """Cancel each, again until it was answered."""
    for job_id in jobs:
        status = 0
        while status not in (200, 202, 409):
            with suppress(OSError, http.client.HTTPException, ValueError), _caller(plane) as caller:
                status, _ = caller.call("POST", f"/api/v1/jobs/{job_id}/cancel")
            if not status:
                time.sleep(0.05)
        time.sleep(0.02)


def _caller(plane: MortalPlane) -> KeptConnection:
    return KeptConnection(plane.url, (plane.home / "token").read_text().strip())


@contextmanager
def _webhook() -> Iterator[_Webhook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            here.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        here = _Webhook(f"http://127.0.0.1:{server.server_address[1]}/")
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield here
        finally:
            server.shutdown()
