"""Submit → first committed step on a warm cluster, beside Ray Train's fit() and a Ray job on one."""

import time
from collections.abc import Iterator, Mapping, Sequence

from ringleader.bench.elasticity.commits import wait_for
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes import stack
from ringleader.bench.processes.children import peer_answers
from ringleader.bench.registry import Wish

CASES = ("warm",)
TARGET = Target("ringleader", "<=", 1.0)
DEADLINE_S = 120.0
PEER_RUN_DEADLINE_S = 90.0
PEERS = ("ray_train", "ray_jobs")
SETTINGS = (
    "warm: MLP 64-256-256-10 on rows that need no import but torch's, 3 workers; from the SDK's submit to the first "
    "committed step, each submit once the idle workers are back, the first job not counted; "
)
THEIRS = {
    "ray_train": "ray_train: fit() in a driver that is connected, on a cluster that has run it before, 3 workers, "
    "gloo, health check every 0.1 s",
    "ray_jobs": "ray_jobs: submit_job() on a cluster that has run a job before, no runtime environment; its entrypoint "
    "takes the step by itself, without a cluster or a group",
}


def run(wish: Wish) -> Iterator[Figure]:
    runs = 10 if wish.full else 4
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in PEERS}
    for number in range(2):
        with stack.up() as opened:
            # The first job of a stack is not counted; the peers leave their first one out, too.
            ours += [_submit(opened, f"warm{number}-{i}") for i in range(runs // 2 + 1)][1:]
        for name, taken in theirs.items():
            arguments, deadline_s = ["submit", f"--runs={runs // 2}"], (runs + 1) * PEER_RUN_DEADLINE_S
            answers = peer_answers(f"ringleader.bench.peers.{name}", arguments, deadline_s)
            taken += [answer["seconds"] for answer in answers]
    yield from figures(ours, theirs)


def figures(ours: Sequence[float], theirs: Mapping[str, Sequence[float]]) -> Iterator[Figure]:
    """A figure for each peer, with the same runs of ours."""
    for name, taken in theirs.items():
        yield Figure(
            case="warm",
            unit="s",
            better="lower",
            ours=ours,
            peers=taken,
            peer_name=name if taken else None,
            target=TARGET,
            settings=SETTINGS + THEIRS[name],
        )


def _submit(opened: stack.BenchStack, name: str) -> float:
    """Seconds from submit, on a warm cluster, to the first commit of any worker. Returns when the job has ended."""
    opened.await_warm()
    started = time.monotonic()
    job = opened.submit(name, workload="noise", epochs=1)

    def first_commit() -> float | None:
        commits = job.commits.all
        return commits[0].at if commits else None

    first = wait_for("a first step", first_commit, DEADLINE_S, lambda: None)
    job.job.wait(timeout=DEADLINE_S)
    return first - started
