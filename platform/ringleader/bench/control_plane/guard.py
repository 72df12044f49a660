"""The waits of others while somebody attacks the control plane: real HTTP, the attacker in a process of its own."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ringleader.bench.broken import BrokenPromise, PeerFailed
from ringleader.bench.control_plane.api import home_folder
from ringleader.bench.control_plane.crowd import KeptConnection, Plane, plane
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.children import Child
from ringleader.bench.registry import Wish

ATTACK_S, LONG_S = 6.0, 20.0
EVERY_S = 0.02
START_S = 90.0
LINES, LINE_BYTES, A_POST = 20_000, 1_000, 1_000
OTHERS_S, FOLLOWED_S = 0.25, 0.1
MOST_TIMES = 3


@dataclass(frozen=True, slots=True)
class Attack:
    """A case: the attack in words, and the waits of others before there was a defence.

    Attributes:
        roles: of the attacking user; None: no user at all.
        target_s: the longest that others may wait.
    """

    words: str
    before: str
    roles: dict[str, str] | None = field(default_factory=dict)
    target_s: float = OTHERS_S


ATTACKS = {
    "login-flood": Attack(
        "eight clients without a credential log in, four with 1 MiB of fields, four with 8 KB",
        "median 0.84 s beside four of 1 MiB, 9.8 s on a loaded machine",
        roles=None,
    ),
    "wrong-tokens": Attack(
        "eight clients read with another wrong token each time",
        "the longest wait was 0.485 s",
        roles=None,
    ),
    "big-bodies": Attack(
        "a user without a role sends 32 MiB to addresses that end in /ingest, and 1 MiB as a job",
        "9 to 12 s for one request, 30 s on a loaded machine",
    ),
    "findings": Attack(
        "a submitter sends job files with 50,000 unknown keys, and with a key named 150,000 times, four at a time",
        "1.6 s for one request, answered with 35 MB",
        roles={"default": "submitter"},
    ),
    "tiny-chunks": Attack(
        "four clients without a credential send 200,000 chunks of one byte, two of them as a log-in",
        "20 to 60 s on a loaded machine",
        roles=None,
    ),
    "refused-writes": Attack(
        "24 clients of a user without a role ask for what they may not do",
        "a write of others took 0.392 s instead of 0.009 s",
    ),
    "idle-connections": Attack(
        "a stranger holds 3,000 connections, half of them with half a head, and opens those anew that are closed",
        "all were held for ever; with 1,024 descriptors nobody was answered until they left",
        roles=None,
    ),
    "followers": Attack(
        "200 followers of a job with 20 MB of lines read nothing",
        "median 1.3 s",
        roles={"default": "viewer"},
        target_s=FOLLOWED_S,
    ),
}
CASES = tuple(ATTACKS)


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits of others in seconds, `alone` and `beside` the attack; `told` is how the attacker was answered."""

    alone: Sequence[float]
    beside: Sequence[float]
    told: str


def run(wish: Wish) -> Iterator[Figure]:
    """Measure the wanted attacks. Raises BrokenPromise where others were refused."""
    for case in filter(wish.wants, CASES):
        # The product's own limit, not the benchmarks': it is part of the defence that is measured.
        with home_folder() as home, plane(home, cpus=1, requests_per_s=1000) as server:
            waits = measured(server, home, case, LONG_S if wish.full else ATTACK_S)
        yield from figures(case, waits)


def figures(case: str, waits: Waits) -> Iterator[Figure]:
    """Figures of the median and the longest wait; of writes beside refused ones also the ratio to those alone."""
    attack = ATTACKS[case]
    # The longest wait without any attack says how much of the other is the machine's.
    alone = f"others alone: median {median(waits.alone):.4f} s, longest {max(waits.alone):.4f} s"
    said = f"{attack.words} ({waits.told}); {alone}. Before: {attack.before}"
    limit = Target("ringleader", "<=", attack.target_s)
    yield Figure(
        case=case,
        unit="s",
        better="lower",
        ours=waits.beside,
        target=limit,
        settings=f"{case}, median of what others wait: {said}",
    )
    yield Figure(
        case=f"{case}-worst",
        unit="s",
        better="lower",
        ours=[max(waits.beside)],
        target=limit,
        settings=f"{case}-worst, the longest that anybody waits: {said}",
    )
    if case == "refused-writes":
        yield Figure(
            case=f"{case}-alone",
            unit="s",
            better="lower",
            ours=waits.beside,
            peers=waits.alone,
            peer_name="alone",
            target=Target("ratio", ">=", 1 / MOST_TIMES),
            settings=f"{case}-alone, writes of others beside refused ones and without: {said}",
        )


def measured(server: Plane, home: Path, case: str, for_s: float) -> Waits:
    """Measure requests of others, without and beside the attack: one at a time, each over its own connection."""
    attack = ATTACKS[case]
    with KeptConnection(server.url, server.token) as admin:
        job_id = admin.submit()
        token = "" if attack.roles is None else _user(admin, attack.roles)
        if case == "followers":
            _fill(server, home, job_id)
        ask = _write if case == "refused-writes" else _read
        alone = _asked(server, ask, for_s / 2)
        # A second longer than the measurement, so that the last request is beside the attack, too.
        child = Child(
            "ringleader.bench.control_plane.attack", [case, server.url, token, str(for_s + 1), job_id]
        )
        with child:
            child.answer(0, START_S)
            beside = _asked(server, ask, for_s)
            told = child.answer(1, START_S)
    return Waits(alone, beside, ", ".join(f"{count} {how}" for how, count in sorted(told.items())))


def _asked(server: Plane, ask: Callable[[KeptConnection], None], for_s: float) -> list[float]:
    took = []
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        sent = time.perf_counter()
        # A new connection each time: an attack may be one on connections.
        with KeptConnection(server.url, server.token) as other:
            ask(other)
        took.append(time.perf_counter() - sent)
        time.sleep(EVERY_S)
    return took


def _read(other: KeptConnection) -> None:
    status, told = other.call("GET", "/api/v1/jobs?limit=1")
    if status != 200:
        raise BrokenPromise(f"others were answered with {status}: {told}")


def _write(other: KeptConnection) -> None:
    other.submit()


def _user(admin: KeptConnection, roles: dict[str, str]) -> str:
    """The token of a new user."""
    for path, body in (("users", {"name": "eve", "roles": roles}), ("tokens", {"name": "t", "user": "eve"})):
        status, told = admin.call("POST", f"/api/v1/{path}", body)
        if status != 201:
            raise PeerFailed(f"POST {path} answered {status}: {told}")
    return str(told["token"])


def _fill(server: Plane, home: Path, job_id: str) -> None:
    """Post the job's log lines, as its supervisor would."""
    file = home.parent / "cluster" / "alive" / f"{job_id}.1"
    give_up_at = time.monotonic() + START_S
    while not file.exists():
        if time.monotonic() > give_up_at:
            raise PeerFailed("the job was not started.")
        time.sleep(0.02)
    with KeptConnection(server.url, json.loads(file.read_text())["token"]) as supervisor:
        for first in range(0, LINES, A_POST):
            records = [_line(seq) for seq in range(first + 1, first + A_POST + 1)]
            body = {"attempt": 1, "records": records}
            status, told = supervisor.call("POST", f"/api/v1/jobs/{job_id}/ingest", body)
            if status != 200:
                raise PeerFailed(f"ingest answered {status}: {told}")


def _line(seq: int) -> dict[str, object]:
    text = f"{seq:08} ".ljust(LINE_BYTES, "x")
    place = {"stream": "logs", "seq": seq, "at": "2026-11-21T12:00:00Z"}
    return {**place, "worker": "w0", "level": "info", "line": text}
