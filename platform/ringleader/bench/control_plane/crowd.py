"""Clients of a control plane, as cheap as they can be: what is measured is the server."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from ringleader.bench.broken import BrokenPromise, PeerFailed
from ringleader.bench.processes.children import Child

START_S = 60.0
DEADLINE_S = 30.0
JOB = {
    "name": "bench",
    "entrypoint": "ringleader.bench.elasticity.trained:train",
    "workers": {"min": 1, "max": 1},
}


class Plane:
    """A control plane over a folder, in a process of its own."""

    def __init__(self, child: Child, home: Path) -> None:
        self.child = child
        self.url = str(child.answer(0, START_S)["url"])
        self.token = (home / "token").read_text().strip()


@contextmanager
def plane(home: Path, *, cpus: float, database_url: str = "", **settings: object) -> Iterator[Plane]:
    """A running control plane, killed at the end of the block if it still lives. `cpus` are those of its cluster."""
    # All clients share one user, whose limit of requests would be the figure otherwise.
    given = {"home": home, "database_url": database_url, "requests_per_s": 1e6, **settings}
    environ = {f"RINGLEADER_{name.upper()}": str(value) for name, value in given.items()}
    child = Child("ringleader.bench.control_plane.plane", [str(home.parent / "cluster"), str(cpus)], environ)
    try:
        yield Plane(child, home)
    finally:
        child.end()


class KeptConnection:
    """A client with one kept connection."""

    def __init__(self, url: str, token: str) -> None:
        self._address = urlsplit(url).netloc
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection = http.client.HTTPConnection(self._address, timeout=DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and body. Raises OSError or HTTPException where the server goes away."""
        content = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, content, {**self._headers, **(headers or {})})
            answer = self._connection.getresponse()
            told = answer.read()
        except (OSError, http.client.HTTPException):
            # In the middle of a request it takes no other; once closed it is opened anew by the next.
            self._connection.close()
            raise
        return answer.status, json.loads(told) if told else None

    def submit(self, **job: object) -> str:
        """Submit JOB with these changes; returns its id. Raises BrokenPromise where it is not accepted."""
        status, told = self.call("POST", "/api/v1/jobs", {**JOB, **job})
        if status != 201:
            raise BrokenPromise(f"a submission was answered with {status}: {told}")
        return str(told["id"])


def at_once(clients: int, work: Callable[[int], None]) -> float:
    """Run `work` in so many threads. Returns seconds until the last is done. Raises PeerFailed with the first error."""
    # One place for this thread: its clock starts when all clients do.
    gate = threading.Barrier(clients + 1)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        gate.wait(DEADLINE_S)
        try:
            work(number)
        except Exception as error:  # told to whoever waits
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    gate.wait(DEADLINE_S)
    began = time.perf_counter()
    for thread in threads:
        thread.join(10 * DEADLINE_S)
    if errors or any(thread.is_alive() for thread in threads):
        raise PeerFailed(f"a client failed: {errors[:1] or 'it hangs'}")
    return time.perf_counter() - began


def p99(samples: Sequence[float]) -> float:
    """The 99th percentile, never below the exact one by rank: the largest of a hundred samples."""
    return sorted(samples)[min(len(samples) - 1, round(0.99 * len(samples)))]
