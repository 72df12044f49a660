"""An attack on a control plane, from a process of its own.

`python -m ringleader.bench.control_plane.attack KIND URL TOKEN SECONDS JOB` prints {"began": true} once it is
under way, and at its end how often it was answered with which status.
"""

import http.client
import json
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from ringleader.bench.processes.children import die_with_parent

CLIENTS, WRITERS, IDLE, FOLLOWERS = 4, 24, 3_000, 200
FINDINGS = 50_000
TINY = 200_000
MIB = 1 << 20
WAIT_S = 30.0
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


class AttackTarget(NamedTuple):
    """The target of an attack: address, credential ("": none), end by the monotonic clock, and a job."""

    address: str
    token: str
    until_s: float
    job_id: str

    def going_on(self) -> bool:
        return time.monotonic() < self.until_s


class AttackRequest(NamedTuple):
    """A request to be sent again and again, with the attacker's token or one that is made for each."""

    method: str
    path: str
    body: bytes
    kind: str = JSON
    token: Callable[[], str] | None = None
    encoding: str = ""


def log_ins() -> list[AttackRequest]:
    """Log-ins of 1 MiB, which were accepted once, and of 8 KB, which are accepted now."""
    large = AttackRequest("POST", "/api/v1/login", b"a=1&" * (MIB // 4 - 1), FORM)
    small = AttackRequest("POST", "/api/v1/login", json.dumps({"token": "x" * 8000}).encode())
    return [*[large] * CLIENTS, *[small] * CLIENTS]


def guesses() -> list[AttackRequest]:
    """Reads with another wrong token each, so that none can be known from before."""
    return [AttackRequest("GET", "/api/v1/jobs", b"", token=lambda: f"rl_{secrets.token_urlsafe(32)}")] * (
        2 * CLIENTS
    )


def bodies() -> list[AttackRequest]:
    """Large bodies to paths whose ending once raised the limit, and to the route of submissions."""
    large = [
        AttackRequest(method, f"/api/v1/{path}/ingest", b"[" + b"1," * (16 * MIB - 8) + b"1]")
        for method, path in (("PATCH", "jobs"), ("PUT", "secrets/p"), ("PATCH", "projects"))
    ]
    return [*large, AttackRequest("POST", "/api/v1/jobs", b"[" + b"1," * (MIB // 2 - 8) + b"1]")]


def findings() -> list[AttackRequest]:
    """Job files in which everything is wrong, for a user who may submit."""
    unknown = json.dumps({f"k{n}": 1 for n in range(FINDINGS)}).encode()
    twice = b"{" + b'"k":1,' * (3 * FINDINGS) + b'"k":1}'
    return [AttackRequest("POST", "/api/v1/jobs", unknown)] * 2 + [
        AttackRequest("POST", "/api/v1/jobs", twice)
    ] * 2


def chunks() -> list[AttackRequest]:
    """Bodies in chunks of one byte."""
    body = b"1\r\n \r\n" * TINY + b"0\r\n\r\n"
    return [
        AttackRequest("POST", f"/api/v1/{path}", body, encoding="chunked") for path in ("login", "jobs")
    ] * 2


def refused() -> list[AttackRequest]:
    return [AttackRequest("POST", "/api/v1/projects", b'{"name": "x"}')] * WRITERS


ATTACK_REQUESTS: Mapping[str, Callable[[], list[AttackRequest]]] = {
    "login-flood": log_ins,
    "wrong-tokens": guesses,
    "big-bodies": bodies,
    "findings": findings,
    "tiny-chunks": chunks,
    "refused-writes": refused,
}


def strike(target: AttackTarget, requests: list[AttackRequest], began: Callable[[], None]) -> Counter[str]:
    """Send each request over and over from a client of its own. Returns how often each status came."""
    told: Counter[str] = Counter()

    def client(request: AttackRequest) -> None:
        while target.going_on():
            status = _sent(target, request)
            told[status] += 1
            if status == "broken off":
                time.sleep(0.01)  # a server that does not listen is no measurement

    threads = [threading.Thread(target=client, args=(request,), daemon=True) for request in requests]
    for thread in threads:
        thread.start()
    began()
    for thread in threads:
        # A request that is under way at the end may still take its whole timeout.
        thread.join(WAIT_S + target.until_s - time.monotonic())
    return told


def _sent(target: AttackTarget, request: AttackRequest) -> str:
    headers = {"Content-Type": request.kind}
    token = target.token if request.token is None else request.token()
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Transfer-Encoding": request.encoding} if request.encoding else {}
    connection = http.client.HTTPConnection(target.address, timeout=WAIT_S)
    try:
        connection.request(request.method, request.path, request.body, headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        return "broken off"
    finally:
        connection.close()
    return str(answer.status)


def hold(target: AttackTarget, sent: list[bytes], began: Callable[[], None]) -> Counter[str]:
    """Hold connections that send the given bytes and read nothing, and reopen those that were closed."""
    told: Counter[str] = Counter()
    held: dict[int, socket.socket] = {}
    began_already = False
    while target.going_on():
        for number, words in enumerate(sent):
            if not target.going_on():
                break
            if number not in held or _closed(held[number]):
                with suppress(OSError):
                    held[number] = _dialled(target, words)
                    told["opened"] += 1
        # Only once all connections stand are the waits of others counted as beside the attack.
        if not began_already:
            began()
            began_already = True
        time.sleep(0.05)
    told["held at the end"] = sum(not _closed(one) for one in held.values())
    return told


def _dialled(target: AttackTarget, words: bytes) -> socket.socket:
    host, _, port = target.address.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=WAIT_S)
    made.sendall(words)
    # From here on a look must not wait for a server that says nothing.
    made.setblocking(False)
    return made


def _closed(one: socket.socket) -> bool:
    """Whether the server has closed the connection; what it has sent stays unread."""
    try:
        # Reading would make room in the buffer, and the server could go on sending: a peek takes nothing out.
        gone = one.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        gone = True
    if gone:
        one.close()
    return gone


def idle() -> list[bytes]:
    """The bytes of silent connections: for one half nothing, for the other half of a request's head."""
    return [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: "] * (IDLE // 2)


def followers(target: AttackTarget) -> list[bytes]:
    asked = (
        f"GET /api/v1/jobs/{target.job_id}/logs HTTP/1.1\r\nHost: {target.address}\r\n"
        f"Authorization: Bearer {target.token}\r\nAccept: text/event-stream\r\n\r\n"
    )
    return [asked.encode()] * FOLLOWERS


def main() -> None:
    kind, url, token, seconds, job_id = (*sys.argv[1:], "")[:5]
    target = AttackTarget(urlsplit(url).netloc, token, time.monotonic() + float(seconds), job_id)

    def began() -> None:
        print(json.dumps({"began": True}), flush=True)

    if kind in ATTACK_REQUESTS:
        told = strike(target, ATTACK_REQUESTS[kind](), began)
    else:
        told = hold(target, idle() if kind == "idle-connections" else followers(target), began)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    die_with_parent()
    main()
