"""SIGKILLs under load: every accepted job is still there, was started once, and leaves nothing behind."""

import http.client
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ringleader.bench.broken import PeerFailed
from ringleader.bench.control_plane.crowd import JOB, KeptConnection, plane
from ringleader.bench.control_plane.plane import attempts_in
from ringleader.bench.control_plane.postgres import postgres
from ringleader.bench.processes.children import Child

DATABASES = ("sqlite", "postgresql")
REPLICAS = {"sqlite": 1, "postgresql": 2}
CLIENTS = 4
CANCELLED = 3
"""Every third job is cancelled as soon as it was accepted."""
LIVES_S = (0.05, 1.5)
"""Seconds that a process lives after it began to listen, at least and at most."""
SETTLE_S = 120.0
PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Aftermath:
    """Counts once no job is on its way any more: jobs, control planes, jobs lost, starts too many, attempts left."""

    jobs: int
    planes: int
    lost: int
    twice: int
    orphans: int


class SubmittingClient:
    """A client that submits with idempotency keys and cancels some, until told to stop; repeats what got no answer."""

    def __init__(self, number: int, urls: Sequence[str], home: Path) -> None:
        self._number = number
        self._urls = urls
        self._home = home
        self._asked = 0
        self.accepted: dict[str, str] = {}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        for n in range(1 << 30):
            if self.stop.is_set():
                return
            key = f"c{self._number}-{n}"
            job_id = self._surely("POST", "/api/v1/jobs", {**JOB, "name": key}, {"Idempotency-Key": key})
            if job_id is not None:
                self.accepted[key] = job_id
                if n % CANCELLED == 0:
                    self._surely("POST", f"/api/v1/jobs/{job_id}/cancel", None, {})
            self.stop.wait(PAUSE_S)

    def _surely(self, method: str, path: str, body: object, headers: dict[str, str]) -> str | None:
        """The id in the answer of whichever process gives one; None when told to stop first."""
        while not self.stop.is_set():
            self._asked += 1
            # In turn, so that a repeated request reaches another process than the killed one.
            url = self._urls[self._asked % len(self._urls)]
            with suppress(OSError, http.client.HTTPException, ValueError):
                with KeptConnection(url, (self._home / "token").read_text().strip()) as caller:
                    status, told = caller.call(method, path, body, headers)
                if status in (200, 201, 202):
                    return str(told["id"])
            self.stop.wait(PAUSE_S)
        return None


def assault(home: Path, database: str, kills: int, seed: int) -> Aftermath:
    """Kill control planes `kills` times while clients submit and cancel, then let them finish the work.

    Raises:
        PeerFailed: jobs were still on their way after SETTLE_S.
    """
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    with database_at(database) as url:
        planes = [MortalPlane(home, url, free_port()) for _ in range(REPLICAS[database])]
        clients = [SubmittingClient(n, [one.url for one in planes], home) for n in range(CLIENTS)]
        with ExitStack() as living:
            for one in planes:
                # Before it lives: one that fails in its start is ended too.
                living.callback(one.end)
                one.live()
            for client in clients:
                client.thread.start()
            for _ in range(kills):
                time.sleep(draw.uniform(*LIVES_S))
                one = draw.choice(planes)
                one.kill()
                one.live()
            for client in clients:
                client.stop.set()
                client.thread.join(SETTLE_S)
            return _aftermath(planes, clients, home)


class MortalPlane:
    """A control plane at one address that is killed and comes back."""

    def __init__(self, home: Path, database_url: str, port: int, **settings: object) -> None:
        self.home = home
        self.url = f"http://127.0.0.1:{port}"
        # The port is fixed, so that clients find a control plane that comes back.
        self._settings = {
            "port": port,
            "public_url": self.url,
            # No supervisor of a FolderCluster ever posts: without these limits its attempts would be given up.
            "start_timeout_s": 1e5,
            "silent_after_s": 1e5,
            "tick_s": 0.1,
            "lease_s": 2,
            **settings,
        }
        self._database_url = database_url
        self._life: ExitStack | None = None
        self._child: Child | None = None

    def live(self) -> None:
        self._life = ExitStack()
        made = self._life.enter_context(
            plane(self.home, cpus=1e6, database_url=self._database_url, **self._settings)
        )
        self._child = made.child

    def kill(self) -> None:
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        if self._life is not None:
            self._life.close()
            self._life = None


def _aftermath(planes: Sequence[MortalPlane], clients: Sequence[SubmittingClient], home: Path) -> Aftermath:
    accepted = {job_id for client in clients for job_id in client.accepted.values()}
    cluster = home.parent / "cluster"
    with KeptConnection(planes[0].url, (home / "token").read_text().strip()) as caller:
        _rest(caller, {"queued", "stopping"})
        there = {str(job["id"]): job for job in _jobs(caller)}
        alive = attempts_in(cluster / "alive")
        # Nobody posts, so a started job stays `starting`, and nothing fails, so it is in its first attempt.
        held = {(job_id, 1) for job_id, job in there.items() if job["state"] == "starting"}
        lost = len(accepted - there.keys()) + len(held - alive)
        twice = started_twice(cluster, [str(job["name"]) for job in there.values()])
        for job_id in there:
            caller.call("POST", f"/api/v1/jobs/{job_id}/cancel")
        _rest(caller, {"queued", "starting", "stopping"})
        left = attempts_in(cluster / "alive")
    return Aftermath(len(there), len(planes), lost, twice, len(alive - held) + len(left))


def started_twice(cluster: Path, names: Sequence[str]) -> int:
    """The number of starts too many: of an attempt that was there, of a job's next attempt, and of a submission that
    became a second job.

    Args:
        cluster: the folder of a FolderCluster, in which no attempt fails by itself.
        names: of all jobs; each submission has one of its own.
    """
    started = attempts_in(cluster / "alive") | attempts_in(cluster / "gone")
    next_ones = sum(attempt > 1 for _, attempt in started)
    return len(attempts_in(cluster / "again")) + next_ones + len(names) - len(set(names))


def _rest(caller: KeptConnection, restless: set[str]) -> None:
    give_up_at = time.monotonic() + SETTLE_S
    while seen := {str(job["state"]) for job in _jobs(caller)} & restless:
        if time.monotonic() > give_up_at:
            raise PeerFailed(f"there are still jobs that are {', '.join(seen)} after {SETTLE_S:g} s.")
        time.sleep(0.2)


def _jobs(caller: KeptConnection) -> Iterator[dict[str, object]]:
    path = "/api/v1/jobs?limit=200&fields=id,name,state"
    cursor = ""
    while True:
        status, page = caller.call("GET", path + cursor)
        if status != 200:
            raise PeerFailed(f"the list was answered with {status}: {page}")
        yield from page["items"]
        if page["next_cursor"] is None:
            return
        cursor = f"&cursor={page['next_cursor']}"


@contextmanager
def database_at(name: str) -> Iterator[str]:
    """The address of a new database; empty for SQLite in the home."""
    if name == "sqlite":
        yield ""
        return
    with postgres(durable=True) as server:
        yield server.url()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
