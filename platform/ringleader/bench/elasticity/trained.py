"""The job of the recovery and submit benchmarks: a small network that writes down its commits."""

import time
from pathlib import Path

from ringleader.bench.elasticity.commits import CommitLog
from ringleader.bench.training.workloads import PAUSE_S, WORKLOADS
from ringleader.train import Session

ENTRYPOINT = "ringleader.bench.elasticity.trained:train"


def train(session: Session) -> None:
    """Train the workload with the params `workload`, `commits` (a folder), `epochs`, `pause_s`, `loader_workers`,
    `lines_s`.

    The loop's body sleeps `pause_s` (default: PAUSE_S), with three workers once a step. Behind each loop `lines_s` are
    slept, as for validation by hand.
    """
    pause_s = session.params.get("pause_s", PAUSE_S)
    workload = WORKLOADS[session.params["workload"]]
    rows = workload.rows()
    net = session.model(workload.net())
    session.optimizer(workload.optimizer(net.parameters()))
    log = CommitLog(Path(session.params["commits"]))

    def write_down() -> None:
        if generation := _generation(session):  # who only follows a member commits nothing
            log.committed(step=session.global_step, membership=generation)

    session.on_commit(write_down)
    for _ in range(session.params["epochs"]):
        for batch in session.batches(rows, loader_workers=session.params.get("loader_workers", 0)):
            time.sleep(pause_s)
            session.step(workload.loss(net(batch["x"]), batch["y"]))
        time.sleep(session.params.get("lines_s", 0.0))


def _generation(session: Session) -> int:
    """The running generation's number, 0 without one. Not for users: a training function must not depend on it."""
    generation = session._member.current
    return generation.number if generation else 0
