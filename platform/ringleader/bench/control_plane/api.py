"""The control plane as a server: submissions, lists, followers, kills under load; real HTTP, a cluster in a folder."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

from ringleader.bench.control_plane.alerts import alerts_over_kills
from ringleader.bench.control_plane.assault import DATABASES, assault, database_at
from ringleader.bench.control_plane.crowd import KeptConnection, Plane, at_once, p99, plane
from ringleader.bench.control_plane.followers import lateness
from ringleader.bench.control_plane.history import fill
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.children import peer_answers
from ringleader.bench.registry import Wish

CASES = (
    *("submissions", "submit-p99", "list-p99", "followers-500", "alert"),
    *(f"list-100k-{database}" for database in DATABASES),
    *(f"kills-50-{database}" for database in DATABASES),
)
CLIENTS = 16
EACH = 40
HISTORY = 100_000
ORDERS = (
    *("submitted_at", "name", "state", "owner", "project", "priority", "finished_at", "duration"),
    *("step", "workers", "attempt", "metric:loss:last", "metric:loss:min", "metric:none:max"),
    *("param:lr", "param:seed", "param:none", "label:run"),
)
FILTERS = (
    *("", "state=failed", "owner=u7", "label=team=t1", "label=run=r777", "param=lr=0.1", "search=r777"),
    "project=p3&param=layers=3&label=team=t3",
)
FOLLOWERS = 500
KILLS = 50
ALERTS, ALERT_KILLS = 100, 10
PEER_DEADLINE_S = 180.0
PLAIN = (
    "SQLite with synchronous=FULL, one process, 16 kept connections, the scheduler at work on a full cluster"
)


def run(wish: Wish) -> Iterator[Figure]:
    """Measure the wanted cases. Raises BrokenPromise where a submission is refused or a follower misses an event."""
    cases: dict[str, Callable[[Wish], Iterator[Figure]]] = {
        "submissions": _submissions,
        "submit-p99": _submit_p99,
        "list-p99": _list_p99,
        **{f"list-100k-{database}": partial(_list_all_ways, database) for database in DATABASES},
        "followers-500": _followers,
        "alert": _alerts,
        **{f"kills-50-{database}": partial(_kills, database) for database in DATABASES},
    }
    for case in filter(wish.wants, CASES):
        yield from cases[case](wish)


def _submissions(wish: Wish) -> Iterator[Figure]:
    """Submissions a second of both sides in turn, each on a server of its own that has taken a job before."""
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(6 if wish.full else 3):
        ours += _rates(runs=2)
        arguments = ["submissions", f"--clients={CLIENTS}", "--each=5", "--runs=2"]
        answers = peer_answers("ringleader.bench.peers.ray_jobs", arguments, PEER_DEADLINE_S)
        theirs += [answer["per_s"] for answer in answers]
    yield Figure(
        case="submissions",
        unit="1/s",
        better="higher",
        ours=ours,
        peers=theirs,
        peer_name="ray_jobs" if theirs else None,
        target=Target("ratio", ">=", 5),
        settings=f"submissions: {CLIENTS} clients; ours: {PLAIN}; ray_jobs: JobSubmissionClient, entrypoint `true`, "
        f"no runtime environment, in the memory of Ray's head",
    )


def _submit_p99(wish: Wish) -> Iterator[Figure]:
    """The 99th percentile at a steady rate; a slow answer delays no request but its own client's next one."""
    del wish
    with home_folder() as home, plane(home, cpus=1) as server, _callers(server) as callers:
        callers[0].submit()
        # Below what the server can take: at its limit the figure would be the length of the clients' own queue.
        rate = _burst(callers) / 2
        took: list[float] = []

        def paced(number: int) -> None:
            began = time.perf_counter() + number / rate
            for n in range(EACH):
                # By the schedule, not by the answer before: else a slow server would be asked less often.
                due = began + n * CLIENTS / rate
                time.sleep(max(0.0, due - time.perf_counter()))
                sent = time.perf_counter()
                callers[number].submit()
                took.append(time.perf_counter() - sent)

        at_once(CLIENTS, paced)
    yield Figure(
        case="submit-p99",
        unit="s",
        better="lower",
        ours=[p99(took)],
        target=Target("ringleader", "<=", 0.1),
        settings=f"submit-p99: {rate:.0f} submissions a second, half of what the same server took before; {PLAIN}",
    )


def _list_p99(wish: Wish) -> Iterator[Figure]:
    with home_folder() as home:
        fill(home, HISTORY)
        with plane(home, cpus=1) as server, KeptConnection(server.url, server.token) as caller:
            asked = ("limit=50", "limit=50&state=succeeded", "limit=50&project=p3", "limit=50&name=n77")
            took: list[float] = []
            for _ in range(1 + (400 if wish.full else 100)):
                for query in asked:
                    sent = time.perf_counter()
                    status, page = caller.call("GET", f"/api/v1/jobs?{query}")
                    took.append(time.perf_counter() - sent)
                    assert (status, len(page["items"])) == (200, 50), page
    yield Figure(
        case="list-p99",
        unit="s",
        better="lower",
        ours=[p99(took[len(asked) :])],
        target=Target("ringleader", "<=", 0.05),
        settings=f"list-p99: {HISTORY:,} ended jobs in SQLite; all, by state, by project, by name, in turn, one "
        f"client; the first page of each is not counted",
    )


def _list_all_ways(database: str, wish: Wish) -> Iterator[Figure]:
    """Every order with every filter, both directions, while 50 follow the events of a job."""
    with home_folder() as home, database_at(database) as url:
        fill(home, HISTORY, url)
        with (
            plane(home, cpus=1, database_url=url) as server,
            KeptConnection(server.url, server.token) as caller,
        ):
            job_id = caller.submit()
            followed = threading.Thread(target=lateness, args=(server, home, job_id, 50), daemon=True)
            followed.start()
            took: list[float] = []
            for _ in range(3 if wish.full else 1):
                for order, sign, which in product(ORDERS, ("", "-"), FILTERS):
                    asked = f"limit=50&metrics=loss,accuracy&sort={sign}{order}&{which}"
                    sent = time.perf_counter()
                    status, page = caller.call("GET", f"/api/v1/jobs?{asked}")
                    took.append(time.perf_counter() - sent)
                    assert (status, bool(page.get("items"))) == (200, True), (asked, page)
            followed.join(PEER_DEADLINE_S)
    case = f"list-100k-{database}"
    for of, value, most in ((case, median(took), 0.1), (f"{case}-p99", p99(took), 0.2)):
        yield Figure(
            case=of,
            unit="s",
            better="lower",
            ours=[value],
            target=Target("ringleader", "<=", most),
            settings=f"{of}: {HISTORY:,} ended jobs in {database} with labels, parameters and metrics; {len(took)} "
            f"pages of 50, each order with each filter, one client beside 50 followers; the slowest {max(took):.3f} s",
        )


def _followers(wish: Wish) -> Iterator[Figure]:
    del wish
    with (
        home_folder() as home,
        plane(home, cpus=1) as server,
        KeptConnection(server.url, server.token) as caller,
    ):
        job_id = caller.submit()
        measured = lateness(server, home, job_id, FOLLOWERS)
    yield Figure(
        case="followers-500",
        unit="s",
        better="lower",
        ours=[measured.latest_s],
        target=Target("ringleader", "<=", 1),
        settings=f"followers-500: {measured.events} events at 20 a second, from the post to the last of {FOLLOWERS} "
        f"followers in another process; every one got every event",
    )
    yield Figure(
        case="followers-500-memory",
        unit="B",
        better="lower",
        ours=[measured.grown_bytes],
        target=Target("ringleader", "<=", 100e6),
        settings="followers-500-memory: the most the API's process held beyond what it held before they came",
    )


def _alerts(wish: Wish) -> Iterator[Figure]:
    with home_folder() as home:
        found = alerts_over_kills(home, ALERTS, ALERT_KILLS, wish.seed)
    yield Figure(
        case="alert",
        unit="s",
        better="lower",
        ours=[p99(found.took_s)],
        target=Target("ringleader", "<=", 2),
        settings=f"alert: from the request that cancels a job to the post at a webhook on loopback, p99 of "
        f"{len(found.took_s)}, median {median(found.took_s):.3f} s",
    )
    yield Figure(
        case="alert-kills",
        unit="alerts",
        better="lower",
        ours=[ALERTS - found.arrived],
        target=Target("ringleader", "<=", 0),
        settings=f"alert-kills: {found.arrived} of {ALERTS} arrived over {ALERT_KILLS} times SIGKILL, seed "
        f"{wish.seed}; {found.doubles} doubles, {found.foreign} under another id than the first",
    )


def _kills(database: str, wish: Wish) -> Iterator[Figure]:
    with home_folder() as home:
        found = assault(home, database, KILLS, wish.seed)
    yield Figure(
        case=f"kills-50-{database}",
        unit="jobs",
        better="lower",
        ours=[found.lost + found.twice + found.orphans],
        target=Target("ringleader", "<=", 0),
        settings=f"kills-50-{database}: {found.jobs} jobs accepted, {KILLS} times SIGKILL at random under load, "
        f"{found.planes} process(es), seed {wish.seed}: {found.lost} lost, {found.twice} started twice, "
        f"{found.orphans} orphans",
    )


def _rates(runs: int) -> list[float]:
    with home_folder() as home, plane(home, cpus=1) as server, _callers(server) as callers:
        callers[0].submit()
        # The submission above is not counted: Ray Jobs' cluster has taken a job before, too.
        return [_burst(callers) for _ in range(runs)]


def _burst(callers: list[KeptConnection]) -> float:
    """Submissions a second of all clients at once, each of which sends one after the other."""

    def submit(number: int) -> None:
        for _ in range(EACH):
            callers[number].submit()

    return CLIENTS * EACH / at_once(CLIENTS, submit)


@contextmanager
def _callers(server: Plane) -> Iterator[list[KeptConnection]]:
    with ExitStack() as opened:
        yield [opened.enter_context(KeptConnection(server.url, server.token)) for _ in range(CLIENTS)]


@contextmanager
def home_folder() -> Iterator[Path]:
    """A temporary home for a control plane; its cluster's folder lies beside it."""
    with tempfile.TemporaryDirectory(prefix="rl-api-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "home"
