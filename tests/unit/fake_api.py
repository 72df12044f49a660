"""A control plane in memory, behind the SDK's transport seam: routes and shapes of the REST API, and its outages."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

AT = "2026-01-02T03:04:05Z"
TOKEN = "t0ken"
URL = "http://127.0.0.1:9"


def job_view(number: int = 1, **changes: Any) -> dict[str, Any]:
    view: dict[str, Any] = {
        "id": job_id(number),
        "name": f"digits-{number}",
        "project": "default",
        "labels": {},
        "owner": "me",
        "spec": {"name": "digits", "entrypoint": "m:f", "workers": {"min": 2, "max": 3}},
        "state": "running",
        "pending_reason": None,
        "reason": None,
        "attempt": 1,
        "generation": 1,
        "world_size": 3,
        "progress": {"step": 7, "total_steps": 920, "epoch": 0},
        "created_at": AT,
        "started_at": AT,
        "finished_at": None,
        "failures": {"spent": 0, "max": 3},
        "result": None,
        "tracking": {"run_id": "", "url": ""},
        "urls": {"self": f"/api/v1/jobs/{job_id(number)}", "page": f"/jobs/{job_id(number)}"},
    }
    return view | changes


def job_id(number: int) -> str:
    return f"job_{number:026d}"


RESULT: dict[str, Any] = {
    "steps": 920,
    "samples": 57480,
    "loss": 0.01,
    "scores": {"accuracy": 0.98},
    "generations": 3,
    "reproducible": True,
    "weights_sha256": "ab" * 32,
    "wall_s": 12.0,
    "compute_s": 9.0,
    "exposed_communication_s": 1.0,
    "idle_s": 1.0,
    "recovery_s": 0.1,
}
PREVIEW: dict[str, Any] = {
    "starts_now": False,
    "pending_reason": {"code": "no_capacity", "message": "3 CPUs are free", "hint": "Wait."},
    "logical_shards": 3,
    "reproducible": True,
    "reproducible_why": "",
    "surplus": "workers above min (2) use free capacity only: autoscale: {surplus: true} would add nodes for them",
}
SUCCEEDED: dict[str, Any] = {"state": "succeeded", "result": RESULT}
FAILED: dict[str, Any] = {
    "state": "failed",
    "reason": {"code": "entrypoint_raised", "message": "ZeroDivisionError in train.py:3", "hint": "Fix it."},
}


OCCUPIED: dict[str, Any] = {
    "reachable": True,
    "trouble": "",
    "nodes": [
        {
            "id": "n1" * 16,
            "address": "10.0.0.7",
            "cpus": 4.0,
            "gpus": 1.0,
            "memory_gb": 8.0,
            "others": {"cpus": 0.5},
            "jobs": [
                {
                    **{"job": job_id(1), "name": "digits-1", "project": "default"},
                    **{"cpus": 2.0, "memory_gb": 1.5, "places": 2, "servers": 1, "members": ["w0"]},
                },
                {
                    **{"job": None, "name": None, "project": None},
                    **{"cpus": 1.0, "places": 1, "servers": 0, "members": []},
                },
            ],
        },
        {"id": "n2", "cpus": 4.0, "others": {}, "jobs": []},
    ],
    "queue": [
        {
            **{
                "place": 1,
                "job": job_id(2),
                "name": "cifar",
                "project": "default",
                "workers": 4,
                "since": AT,
            },
            "why": {"code": "waiting_for_capacity", "message": "3 CPUs are free, 4 needed"},
            "starts_by": "2026-01-02T04:05:06Z",
        },
        {"place": 2},
    ],
    "waiting": 5,
    "projects": [{"name": "default", "quota": {"workers": 9}, "held": {"workers": 2, "waiting": 1}}],
    "growing": None,
}


class Broken(httpx.SyncByteStream):
    """A body that ends in a broken connection."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        yield self._body
        raise httpx.RemoteProtocolError("peer closed connection")


@dataclass
class FakeApi(httpx.BaseTransport):
    """What it holds is what it answers; `faults` are raised or answered first, one a request."""

    jobs: list[dict[str, Any]] = field(default_factory=list)
    feeds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    packages: dict[str, bytes] = field(default_factory=dict)
    begun: dict[str, bytes] = field(default_factory=dict)
    """Uploads that broke off."""
    artifacts: dict[str, bytes] = field(default_factory=dict)
    newest: bytes = b""
    workers: list[dict[str, Any]] = field(default_factory=list)
    system: list[dict[str, Any]] = field(default_factory=list)
    points: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=lambda: {"groups": [], "more": False})
    occupancy: dict[str, Any] = field(default_factory=dict)
    faults: list[Exception | httpx.Response] = field(default_factory=list)
    history: dict[str, list[Any]] = field(default_factory=dict)
    """What changes of a job when it is looked at, one a look; an exception is raised instead."""
    streams: list[httpx.Response] = field(default_factory=list)
    seen: list[httpx.Request] = field(default_factory=list)
    page: int = 2

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return fault
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return problem(401, "unauthorized", "no credential")
        path = request.url.path.removeprefix("/api/v1")
        for pattern, answer in self._routes():
            if match := re.fullmatch(pattern, f"{request.method} {path}"):
                return answer(request, *match.groups())
        return problem(404, "not_found", f"no route {path}")

    def calls(self, method: str, path: str) -> list[httpx.Request]:
        return [r for r in self.seen if r.method == method and r.url.path == "/api/v1" + path]

    def _routes(self) -> list[tuple[str, Callable[..., httpx.Response]]]:
        return [
            ("POST /jobs", self._submit),
            ("GET /jobs", self._list),
            ("GET /jobs/groups", lambda request: httpx.Response(200, json=self.groups)),
            ("GET /jobs/([^/]+)", self._job),
            ("PATCH /jobs/([^/]+)", self._patch),
            ("DELETE /jobs/([^/]+)", self._delete),
            ("POST /jobs/([^/]+)/cancel", self._cancel),
            ("POST /jobs/([^/]+)/(pause|resume)", self._pause),
            ("GET /jobs/[^/]+/(events|logs)", self._feed),
            ("POST /jobs/[^/]+/faults", self._fault),
            ("GET /jobs/[^/]+/workers", lambda request: httpx.Response(200, json={"items": self.workers})),
            ("GET /jobs/[^/]+/system", lambda request: httpx.Response(200, json={"series": self.system})),
            ("GET /jobs/[^/]+/metrics", self._metrics),
            ("GET /curves", self._curves),
            ("GET /jobs/[^/]+/artifacts/(.+)", self._artifact),
            (
                "GET /jobs/[^/]+/checkpoints/newest/weights",
                lambda request: httpx.Response(200, content=self.newest),
            ),
            ("(?:HEAD|PUT) /packages/(.+)", self._package),
            (
                "GET /cluster",
                lambda request: httpx.Response(
                    200, json={"cpus": 4.0, "memory_gb": 20.83377, "nodes": [{"id": "n1", "cpus": 4.0}]}
                ),
            ),
            ("GET /cluster/occupancy", lambda request: httpx.Response(200, json=OCCUPIED | self.occupancy)),
            ("GET /version", lambda request: httpx.Response(200, json={"version": "0.2.0"})),
        ]

    def _submit(self, request: httpx.Request) -> httpx.Response:
        spec = json.loads(request.content)
        if request.url.params.get("dry_run"):
            return httpx.Response(200, json=PREVIEW | {"spec": spec})
        self.jobs.append(
            job_view(len(self.jobs) + 1, name=spec["name"], spec=spec, state="queued", world_size=0)
        )
        return httpx.Response(201, json=self.jobs[-1])

    def _list(self, request: httpx.Request) -> httpx.Response:
        wanted = request.url.params.get("name")
        found = [job for job in self.jobs if wanted in (None, job["name"])]
        start = int(request.url.params.get("cursor", 0))
        cursor = str(start + self.page) if start + self.page < len(found) else None
        return httpx.Response(200, json={"items": found[start : start + self.page], "next_cursor": cursor})

    def _job(self, request: httpx.Request, ident: str) -> httpx.Response:
        for at, job in enumerate(self.jobs):
            if job["id"] == ident:
                if self.history.get(ident):
                    change = self.history[ident].pop(0)
                    if isinstance(change, Exception):
                        raise change
                    self.jobs[at] = job | change
                return httpx.Response(200, json=self.jobs[at])
        return problem(404, "not_found", f"there is no job {ident}")

    def _patch(self, request: httpx.Request, ident: str) -> httpx.Response:
        job = next(job for job in self.jobs if job["id"] == ident)
        change = json.loads(request.content)
        merged = job["labels"] | change.pop("labels", {})
        job["labels"] = {key: value for key, value in merged.items() if value is not None}
        job["spec"] |= change | {"workers": job["spec"]["workers"] | change.get("workers", {})}
        return httpx.Response(200, json=job)

    def _delete(self, request: httpx.Request, ident: str) -> httpx.Response:
        self.jobs = [job for job in self.jobs if job["id"] != ident]
        return httpx.Response(204)

    def _cancel(self, request: httpx.Request, ident: str) -> httpx.Response:
        job = next(job for job in self.jobs if job["id"] == ident)
        job["state"] = "cancelled"
        return httpx.Response(202, json=job)

    def _pause(self, request: httpx.Request, ident: str, deed: str) -> httpx.Response:
        job = next(job for job in self.jobs if job["id"] == ident)
        job["state"] = "paused" if deed == "pause" else "queued"
        return httpx.Response(202, json=job)

    def _fault(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if body["worker"] == "gone":
            return problem(409, "no_such_member", "there is no member gone now")
        target = body["worker"] or "supervisor"
        at = "2026-11-20T12:00:00Z"
        return httpx.Response(
            200, json={"at": at, "fault": body["fault"], "target": target, "effect": "done"}
        )

    def _feed(self, request: httpx.Request, name: str) -> httpx.Response:
        after = int(request.headers.get("last-event-id") or request.url.params.get("after", 0))
        items = [item for item in self.feeds.get(name, []) if item["seq"] > after]
        if "text/event-stream" not in request.headers.get("accept", ""):
            return httpx.Response(
                200,
                json={
                    "items": items[: self.page],
                    "next": items[self.page - 1]["seq"] if len(items) > self.page else None,
                },
            )
        return self.streams.pop(0) if self.streams else stream(b"")

    def _metrics(self, request: httpx.Request) -> httpx.Response:
        name = request.url.params.get("name")
        if name is None:
            return httpx.Response(200, json={"names": sorted(self.points)})
        return httpx.Response(200, json={"points": self.points.get(name, [])})

    def _curves(self, request: httpx.Request) -> httpx.Response:
        asked = request.url.params
        curves = [
            {
                "job": asked["jobs"],
                "name": name,
                "steps": [point["step"] for point in self.points[name]],
                "times": [0.0 for _ in self.points[name]],
                "values": [point["value"] for point in self.points[name]],
            }
            for name in asked["names"].split(",")
            if name in self.points
        ]
        return httpx.Response(200, json={"jobs": [], "curves": curves, "left_out": []})

    def _artifact(self, request: httpx.Request, name: str) -> httpx.Response:
        if name not in self.artifacts:
            return problem(404, "not_found", f"no artifact {name}")
        return httpx.Response(200, content=self.artifacts[name])

    def _package(self, request: httpx.Request, name: str) -> httpx.Response:
        if request.method == "PUT":
            begun = self.begun.get(name, b"")
            if request.headers["Upload-Offset"] != str(len(begun)):
                return problem(409, "bad_upload", "elsewhere", errors=[{"pointer": "", "value": len(begun)}])
            self.packages[name] = begun + request.content
        told = {"Upload-Offset": str(len(self.begun.get(name, b"")))}
        return httpx.Response(200) if name in self.packages else httpx.Response(404, headers=told)


def problem(status: int, code: str, detail: str, **more: Any) -> httpx.Response:
    body = {"title": code, "status": status, "detail": detail, "code": code, **more}
    return httpx.Response(status, json=body, headers={"content-type": "application/problem+json"})


def stream(body: bytes, *, breaks: bool = False) -> httpx.Response:
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    return httpx.Response(200, headers=headers, stream=Broken(body) if breaks else httpx.ByteStream(body))


def sse(*items: dict[str, Any]) -> bytes:
    return b"".join(f"id: {i['seq']}\ndata: {json.dumps(i, ensure_ascii=False)}\n\n".encode() for i in items)


def log(seq: int, line: str = "") -> dict[str, Any]:
    return {"seq": seq, "at": AT, "worker": "w0", "level": "info", "line": line or f"line {seq}"}


def event(seq: int, kind: str, **data: Any) -> dict[str, Any]:
    return {"seq": seq, "type": kind, "at": AT, "attempt": 1, "generation": 2, "data": data}
