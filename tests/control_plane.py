"""A control plane for tests: the real application over a cluster in memory, a clock that stands, ticks by hand."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import sleep
from fastapi.testclient import TestClient

from ringleader.client import Client
from ringleader_api.app import create_app
from ringleader_api.backend import Launch, NobodyThere
from ringleader_api.clock import Pause
from ringleader_api.control import Control
from ringleader_api.scheduling import Demand, NodeShape, Seen, WorkerNeed
from ringleader_api.settings import Settings
from ringleader_api.store import Store

URL = "http://127.0.0.1:8123"
DATABASE = "ringleader.db"
SPEC: dict[str, Any] = {
    "name": "digits",
    "entrypoint": "ringleader_jobs.digits:train",
    "params": {"lr": 0.1, "layers": {"hidden": 64}},
    "labels": {"team": "vision"},
    "workers": {"min": 2, "max": 3},
}


class FakeCluster:
    """`Backend` in memory. `cut` is called with a name before and after every deed; it may raise.

    `starts` are the supervisors that came to be, `calls` says how often each was asked for, `left` is what those that
    are gone had not posted, `uprooted` are those whose node is gone.
    """

    def __init__(self, cpus: float = 4) -> None:
        self.nodes = [NodeShape("n1", cpus, 0, 16)]
        self.alive: dict[tuple[str, int], Launch] = {}
        self.starts: list[tuple[str, int]] = []
        self.calls: Counter[tuple[str, int]] = Counter()
        self.told: list[tuple[Any, ...]] = []
        self.asked: list[dict[WorkerNeed, int]] = []
        self.forgotten: list[str] = []
        self.left: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self.trouble = ""
        self.places: dict[tuple[str, int], list[tuple[str, int]]] | None = None
        self.addresses: dict[str, str] = {}
        self.down = False
        self.lingers = False
        self.frozen: set[tuple[str, int]] = set()
        self.uprooted: set[tuple[str, int]] = set()
        self.asked_whether: list[tuple[str, int]] = []
        self.reached = 1000
        self.cut: Callable[[str], None] = lambda where: None

    def start(self, launch: Launch) -> None:
        with self._deed("start"):
            self.calls[launch.job_id, launch.attempt] += 1
            if (launch.job_id, launch.attempt) not in self.alive:
                self.alive[launch.job_id, launch.attempt] = launch
                self.starts.append((launch.job_id, launch.attempt))

    def supervisors(self) -> set[tuple[str, int]]:
        with self._deed("supervisors"):
            return set(self.alive)

    def answers(self, asked: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bool]:
        with self._deed("answers"):
            reached = asked[: self.reached]
            self.asked_whether.extend(reached)
            return {who: who not in self.frozen for who in reached}

    def resize(self, job_id: str, attempt: int, workers_min: int, workers_max: int) -> None:
        with self._deed("resize"):
            self.told.append(("resize", job_id, attempt, workers_min, workers_max))

    def pause(self, job_id: str, attempt: int, grace_s: float) -> None:
        with self._deed("pause"):
            self.told.append(("pause", job_id, attempt, grace_s))

    def cancel(self, job_id: str, attempt: int, grace_s: float) -> None:
        with self._deed("cancel"):
            self.told.append(("cancel", job_id, attempt, grace_s))

    def fault(self, job_id: str, attempt: int, fault: str, worker: str | None, for_s: float) -> str:
        with self._deed("fault"):
            if worker == "nobody":
                raise NobodyThere("the job has no member nobody at present.")
            self.told.append(("fault", job_id, attempt, fault, worker, for_s))
            return f"{fault} to process 7"

    def release(self, job_id: str, attempt: int) -> None:
        with self._deed("release"):
            self.told.append(("release", job_id, attempt))
            if not self.lingers:
                self.alive.pop((job_id, attempt), None)

    def node_lost(self, job_id: str, attempt: int) -> bool:
        with self._deed("node_lost"):
            return (job_id, attempt) in self.uprooted

    def unposted(self, home: Path, job_id: str, attempt: int) -> Iterator[list[dict[str, Any]]]:
        with self._deed("unposted"):
            for told in self.left.get((job_id, attempt), []):
                assert (job_id, attempt) not in self.alive
                yield [told]
            self.left.pop((job_id, attempt), None)

    def forget(self, job_id: str) -> None:
        with self._deed("forget"):
            self.forgotten.append(job_id)

    def capacity(self) -> Seen:
        return Seen(self.nodes, places=self.places, trouble=self.trouble, addresses=self.addresses)

    def ask(self, demand: Demand) -> None:
        with self._deed("ask"):
            self.asked.append(dict(demand))

    def close(self) -> None:
        pass

    @contextmanager
    def _deed(self, name: str) -> Iterator[None]:
        if self.down:
            raise ConnectionError("the head is gone")
        self.cut(f"before {name}")
        yield
        self.cut(f"after {name}")


def raising(where: str, error: Exception) -> Callable[[str], None]:
    """A `cut` that raises there."""

    def cut(at: str) -> None:
        if at == where:
            raise error

    return cut


@dataclass
class Time:
    """A clock moved by hand."""

    now: datetime = field(default_factory=lambda: datetime(2026, 11, 20, 12, tzinfo=UTC))

    def __call__(self) -> datetime:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class Stage:
    """The application, its cluster and clock, and a client with the operator's token."""

    home: Path
    cluster: FakeCluster
    time: Time
    control: Control
    client: TestClient

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.control.reconciler.tick()

    def rounds(self, seconds: float, each: float = 5.0) -> None:
        """So much time in rounds of the reconciler: one counts for a few seconds at most."""
        for _ in range(ceil(seconds / each)):
            self.time.pass_s(each)
            self.tick()

    def submit(self, **changes: Any) -> str:
        answer = self.client.post("/api/v1/jobs", json={**SPEC, **changes})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def user(self, name: str, **roles: str) -> TestClient:
        """A client of a new user with these roles by project; `every` is all projects."""
        granted = {"*" if project == "every" else project: role for project, role in roles.items()}
        for project in granted.keys() - {"*", "default"}:
            self.client.post("/api/v1/projects", json={"name": project})
        made = self.client.post("/api/v1/users", json={"name": name, "roles": granted})
        assert made.status_code == 201, made.text
        return self.holding(self.token(user=name))

    def token(self, **wanted: Any) -> str:
        """A new token."""
        answer = self.client.post("/api/v1/tokens", json={"name": "test", **wanted})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def holding(self, token: str) -> TestClient:
        """A client with this token."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return TestClient(self.client.app, base_url=URL, headers=headers, raise_server_exceptions=False)

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.client.get(f"/api/v1/jobs/{job_id}").json())

    def state(self, job_id: str) -> str:
        return str(self.job(job_id)["state"])

    def events(self, job_id: str) -> list[str]:
        items = self.client.get(f"/api/v1/jobs/{job_id}/events?limit=1000").json()["items"]
        return [e["type"] for e in items]

    def started(self, **changes: Any) -> str:
        """A submitted job whose supervisor is there."""
        job_id = self.submit(**changes)
        self.tick()
        assert self.state(job_id) == "starting"
        return job_id

    def running(self, **changes: Any) -> str:
        job_id = self.started(**changes)
        self.post(job_id, status=status("running"))
        assert self.state(job_id) == "running"
        return job_id

    def post(self, job_id: str, attempt: int = 1, expect: int = 200, token: str = "", **body: Any) -> Any:
        """What the attempt's supervisor posts."""
        token = token or self.cluster.alive[job_id, attempt].ingest_token
        answer = self.client.post(
            f"/api/v1/jobs/{job_id}/ingest",
            json={"attempt": attempt, **body},
            headers={"Authorization": f"Bearer {token}"},
        )
        assert answer.status_code == expect, answer.text
        return answer.json()


@cache
def _as_migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        Store.at(Path(folder)).close()
        return (Path(folder) / DATABASE).read_bytes()


def migrate(home: Path) -> None:
    """Leave a database there as the migrations make it, where there is none: they take longer than most tests."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (home / DATABASE).exists():
        (home / DATABASE).write_bytes(_as_migrated())


DATABASES = ("sqlite", "postgresql")


class Database:
    """Where the control planes of a test keep what they know: SQLite in their home, unless `of` says another."""

    of: Callable[[Path], str] = staticmethod(lambda home: "")


@contextmanager
def stage_over(request: pytest.FixtureRequest, home: Path) -> Iterator[Stage]:
    """A stage over the database that the fixture's parameter names: one of DATABASES."""
    with ExitStack() as held:
        if request.param == "postgresql":
            lent = held.enter_context(request.getfixturevalue("databases").lent())
            held.enter_context(pytest.MonkeyPatch.context()).setattr(Database, "of", lent.__getitem__)
        here = stage(home)
        held.callback(here.control.close)
        yield here


_opened: list[Control] = []


@contextmanager
def closed_behind() -> Iterator[None]:
    """Closes the control plane of every stage made in the block."""
    before = len(_opened)
    yield
    while len(_opened) > before:
        _opened.pop().close()


async def no_pause(_: float) -> None:
    """Answers that are held back come at once."""


def stage(home: Path, cluster: FakeCluster | None = None, *, pause: Pause = sleep, **settings: Any) -> Stage:
    """An application whose threads do not run: tests call `tick`."""
    cluster = cluster or FakeCluster()
    time = Time()
    settings.setdefault("database_url", Database.of(home))
    if not settings["database_url"]:
        migrate(home)
    made = create_app(Settings(home=home, public_url=URL, **settings), cluster, time, pause=pause)
    control: Control = made.state.control
    _opened.append(control)
    token = (home / "token").read_text()
    client = TestClient(
        made, base_url=URL, headers={"Authorization": f"Bearer {token}"}, raise_server_exceptions=False
    )
    return Stage(home, cluster, time, control, client)


def connected(here: Stage) -> Client:
    """A client of the SDK with the operator's token, whose requests reach the application without a network."""

    def answer(request: httpx.Request) -> httpx.Response:
        told = here.client.request(request.method, request.url.raw_path.decode(), content=request.read())
        return httpx.Response(told.status_code, headers=told.headers, content=told.content)

    token = (here.home / "token").read_text()
    return Client("http://ringleader.test", token, transport=httpx.MockTransport(answer))


def status(state: str, step: int = 0, world_size: int = 3, **more: Any) -> dict[str, Any]:
    return {
        "state": state,
        "generation": 1,
        "world_size": world_size,
        "progress": {"step": step, "total_steps": 100, "epoch": 0},
        "workers": [],
        **more,
    }


AT = "2026-11-20T12:00:01Z"


def metric(seq: int, step: int, **values: float | None) -> dict[str, Any]:
    return {"stream": "metrics", "seq": seq, "at": AT, "generation": 1, "step": step, "values": values}


def event(seq: int, kind: str, **data: Any) -> dict[str, Any]:
    return {"stream": "events", "seq": seq, "at": AT, "generation": 1, "type": kind, "data": data}


def place(job_id: str, name: str) -> str:
    """Where a checkpoint of the job lies."""
    return f"/home/checkpoints/{job_id}/{name}"


def saved(job_id: str, seq: int, step: int, *removed: str) -> dict[str, Any]:
    """What the supervisor tells of a checkpoint."""
    data = {"step": step, "uri": place(job_id, f"step-{step}"), "size_bytes": 3, "copied_s": 0.1}
    return event(seq, "checkpoint.saved", **data, removed=list(removed))


def line(seq: int, text: str) -> dict[str, Any]:
    return {"stream": "logs", "seq": seq, "at": AT, "worker": "w0", "level": "info", "line": text}


def outcome(seq: int, how: str, code: str = "", **more: Any) -> dict[str, Any]:
    reason = {"code": code, "message": f"because of {code}"} if code else None
    return {"stream": "outcome", "seq": seq, "at": AT, "outcome": how, "reason": reason, **more}


RESULT: dict[str, Any] = {
    "steps": 100,
    "samples": 6400,
    "loss": 0.1,
    "scores": {"accuracy": 0.97},
    "generations": 1,
    "reproducible": True,
    "weights_sha256": "ab" * 32,
    "wall_s": 2.0,
    "compute_s": 1.5,
    "exposed_communication_s": 0.2,
    "idle_s": 0.1,
    "recovery_s": 0.0,
}
