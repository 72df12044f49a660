"""The job of the recovery and submit benchmarks: a small network that writes down its commits."""

import time
from pathlib import Path
from typing import Any

from ringleader.bench.elasticity.commits import CommitLog
from ringleader.bench.training.workloads import PAUSE_S, WORKLOADS
from ringleader.train import Session

ENTRYPOINT = "ringleader.bench.elasticity.trained:train"
ADOPTED = "ringleader.bench.elasticity.trained:train_func"
"""The same as a function of Ray Train."""


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
    write_down_commits(session, Path(session.params["commits"]))
    for _ in range(session.params["epochs"]):
        for batch in session.batches(rows, loader_workers=session.params.get("loader_workers", 0)):
            time.sleep(pause_s)
            session.step(workload.loss(net(batch["x"]), batch["y"]))
        time.sleep(session.params.get("lines_s", 0.0))


def train_func(config: dict[str, Any]) -> None:
    """Train as `train` does, by a function of Ray Train; the params have the same names, and `batch_size`."""
    import ray.train.torch
    from torch.utils.data import DataLoader

    from ringleader.adapters.ray_train import running_session

    workload = WORKLOADS[config["workload"]]
    loader = ray.train.torch.prepare_data_loader(
        DataLoader(workload.rows(), config["batch_size"], shuffle=True)
    )
    model = ray.train.torch.prepare_model(workload.net())
    optimizer = workload.optimizer(model.parameters())
    write_down_commits(running_session(), Path(config["commits"]))
    for _ in range(config["epochs"]):
        model.train()
        for batch in loader:
            time.sleep(config["pause_s"])
            loss = workload.loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def write_down_commits(session: Session, folder: Path) -> None:
    """Write down each commit of this member from now on."""
    log = CommitLog(folder)

    def write_down() -> None:
        if generation := _generation(session):  # who only follows a member commits nothing
            log.committed(step=session.global_step, membership=generation)

    session.on_commit(write_down)


def _generation(session: Session) -> int:
    """The running generation's number, 0 without one. Not for users: a training function must not depend on it."""
    generation = session._member.current
    return generation.number if generation else 0
